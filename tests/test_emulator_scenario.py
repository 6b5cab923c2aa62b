"""Scenarios: what is understood, and how everything else is refused."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Tpuctl
from tpuctl.emulator.errors import load_data
from tpuctl.emulator.faults import (
    BYTE_FAULTS,
    COMPUTE_ERRORS,
    ERRORS,
    EVENTS,
    INSTANCE_EVENTS,
    STORAGE_ERRORS,
    STORAGE_METHODS,
    CallFault,
    NodeEvent,
)
from tpuctl.emulator.methods import METHODS
from tpuctl.emulator.scenario import load_scenario, parse_scenario
from tpuctl.errors import InvalidInputError, NotFoundError

PAGE = Path(__file__).parents[1] / "docs" / "emulator.md"
EXAMPLES = re.findall(r"```json\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("text", EXAMPLES)
def test_every_example_of_the_page_is_a_scenario(text: str) -> None:
    assert parse_scenario(json.loads(text)).document


def test_every_key_error_and_event_is_on_the_page_and_in_an_example() -> None:
    page, examples = PAGE.read_text(encoding="utf-8"), " ".join(EXAMPLES)
    keys = (
        "time_scale epoch project zones provision_s delete_s faults latency_ms"
        " rate_limits_per_minute buckets types capacity_chips quota_chips spot_quota_chips"
        " reserved_chips on error zone name nth every where after_s after_accept event at_s"
        " worker for_s after_bytes machine_types pools compute refused_types regions external_ip"
        " single_host_attributes pending_delete_s"
    )
    for word in (
        *keys.split(),
        *ERRORS,
        *COMPUTE_ERRORS,
        *INSTANCE_EVENTS,
        *EVENTS,
        *STORAGE_METHODS,
        *STORAGE_ERRORS,
        *BYTE_FAULTS,
    ):
        assert f"`{word}`" in page, word
    for word in (*keys.split(), *EVENTS, *INSTANCE_EVENTS):
        assert f'"{word}"' in examples, word


def test_the_scenario_of_the_contract_means_what_it_says() -> None:
    scenario = parse_scenario(json.loads(EXAMPLES[0]))
    assert scenario.time_scale == 100
    assert scenario.zones["us-central1-a"].types == ("v5litepod-8",)
    assert scenario.call_faults == (
        CallFault("create_node", "*", "*", 1, False, "stockout", "operation", 20.0, False),
    )
    assert scenario.node_events == (NodeEvent("*", "t1", "preempt", 300.0, 1, False, 0, 600.0),)


def test_without_a_scenario_there_is_every_known_zone_with_plenty() -> None:
    scenario = parse_scenario({})
    assert "v5litepod-8" in scenario.zones["us-central1-a"].types
    assert "v6e-8" in scenario.zones["us-east1-d"].types
    assert all(zone.types and zone.capacity_chips for zone in scenario.zones.values())


@pytest.mark.parametrize(
    ("fault", "where"),
    [
        ({"on": "create_node", "error": "stockout"}, "operation"),
        ({"on": "create_node", "error": "stockout", "where": "rpc"}, "rpc"),
        ({"on": "create_node", "error": "quota"}, "rpc"),
        ({"on": "create_node", "error": "quota", "after_s": 5}, "operation"),
        ({"on": "get_node", "error": "stockout"}, "rpc"),
        ({"on": "create_node", "after_accept": True}, "rpc"),
    ],
)
def test_the_default_of_where_depends_on_the_error(fault: dict[str, Any], where: str) -> None:
    (found,) = parse_scenario({"faults": [fault]}).call_faults
    assert found.where == where


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ([], "must be an object"),
        (None, "must be an object"),
        ({"zone": {}}, "zone is not a known key"),
        ({"time_scale": 0}, "time_scale must be larger than 0"),
        ({"time_scale": "fast"}, "time_scale must be a number"),
        ({"time_scale": True}, "time_scale must be a number"),
        ({"provision_s": -1}, "provision_s must be at least 0"),
        ({"provision_s": 1e300}, "provision_s must be at least 0 and at most 1e+09"),
        ({"time_scale": 1e7}, "time_scale must be larger than 0 and at most 1e+06"),
        ({"epoch": "0001-01-01"}, "epoch must be between"),
        ({"epoch": "yesterday"}, "epoch is not a date"),
        ({"project": 7}, "project must be a non-empty string"),
        ({"zones": []}, "zones must be an object"),
        ({"zones": {}}, "zones must name at least one zone"),
        ({"zones": {"US": {}}}, "zones.US is not a valid zone name"),
        ({"zones": {"a": {"chips": 1}}}, "zones.a.chips is not a known key"),
        ({"zones": {"a": {"types": ["v9-8"]}}}, "zones.a.types[0] is not an accelerator type"),
        ({"zones": {"a": {"types": ["tpu7x-8"]}}}, "zones.a.types[0] is tpu7x-8"),
        ({"zones": {"a": {"types": "v5e-8"}}}, "zones.a.types must be a list of strings"),
        ({"zones": {"a": {"capacity_chips": 1.5}}}, "zones.a.capacity_chips must be a whole"),
        ({"zones": {"a": {"quota_chips": -1}}}, "zones.a.quota_chips must be a whole"),
        (
            {"zones": {"a-b-c": {"machine_types": ["n2"]}}},
            "zones.a-b-c.machine_types[0] is not one",
        ),
        ({"zones": {"a-b-c": {"pools": {"spot": -1}}}}, "zones.a-b-c.pools.spot must be a whole"),
        ({"zones": {"a-b-c": {"pools": {"spot": {"x": 1}}}}}, "pools.spot has 'x', which is not"),
        ({"compute": {"quota": 1}}, "compute.quota is not a known key"),
        ({"compute": {"regions": {"r": {"chips": 1}}}}, "compute.regions.r.chips is not a known"),
        ({"faults": [{"on": "instance", "event": "suspend"}]}, "faults[0].event must be one of"),
        (
            {"faults": [{"on": "compute_instances_get", "error": "busy", "where": "operation"}]},
            "faults[0].where cannot be 'operation'",
        ),
        ({"faults": {}}, "faults must be a list"),
        ({"faults": [{}]}, "faults[0].on is missing"),
        ({"faults": [{"on": "createNode", "error": "quota"}]}, "faults[0].on must be one of"),
        ({"faults": [{"on": ["node"]}]}, "faults[0].on must be one of"),
        ({"faults": [{"on": "get_node"}]}, "faults[0].error is missing"),
        ({"faults": [{"on": "get_node", "error": "bad"}]}, "faults[0].error must be one of"),
        ({"faults": [{"on": "get_node", "error": "quota", "nth": 0}]}, "faults[0].nth must be"),
        (
            {"faults": [{"on": "get_node", "error": "quota", "where": "operation"}]},
            "faults[0].where cannot be 'operation'",
        ),
        (
            {"faults": [{"on": "delete_node", "after_accept": True, "where": "operation"}]},
            "faults[0].after_accept loses the reply",
        ),
        ({"faults": [{"on": "node"}]}, "faults[0].event is missing"),
        ({"faults": [{"on": "node", "event": "die"}]}, "faults[0].event must be one of"),
        (
            {"faults": [{"on": "node", "event": "vanish", "error": "x"}]},
            "faults[0].error is not a known",
        ),
        ({"faults": [{"on": "node", "event": "vanish", "every": 1}]}, "faults[0].every must be"),
        (
            {"rate_limits_per_minute": {"create": 1}},
            "rate_limits_per_minute.create is not a",
        ),
        ({"buckets": {"bbb": {"place": "us"}}}, "buckets.bbb.place is not a known key"),
        ({"buckets": {"Photos": {}}}, "buckets.Photos is not a valid bucket name"),
        ({"buckets": {"a": {}}}, "buckets.a is not a valid bucket name"),
        (
            {"faults": [{"on": "create_node", "error": "unfinished", "where": "rpc"}]},
            "'unfinished' is only for an operation",
        ),
    ],
)
def test_an_invalid_scenario_is_refused_with_the_place(document: Any, problem: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        parse_scenario(document, source="bad.json")
    assert str(refused.value).startswith("bad.json")
    assert problem in str(refused.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "Expecting property name"),
        ('{"provision_s": NaN}', "NaN is not valid JSON"),
        ('{"provision_s": 1, "provision_s": 2}', "'provision_s' appears twice"),
        ("[" * 100_000, "Could not read the scenario"),
        ("\xff", "Could not read the scenario"),
    ],
)
def test_a_file_that_is_not_json_is_one_error(text: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(InvalidInputError, match=re.escape(problem)):
        load_scenario(path)


def test_a_missing_or_special_file_is_one_error(tmp_path: Path, tpuctl: Tpuctl) -> None:
    with pytest.raises(NotFoundError):
        load_scenario(tmp_path / "none.json")
    with pytest.raises(InvalidInputError):
        load_scenario(tmp_path)
    with pytest.raises(InvalidInputError):
        load_scenario(Path("/dev/zero"))


def test_every_planned_error_has_a_text_and_a_code() -> None:
    assert set(ERRORS) - {"unfinished"} <= set(load_data("errors")["errors"])


def test_a_method_is_named_once() -> None:
    assert len({(method.service, method.rpc) for method in METHODS.values()}) == len(METHODS)


@pytest.mark.slow
def test_the_python_of_the_page_runs() -> None:
    pytest.importorskip("google.cloud.tpu_v2", reason="google-cloud-tpu is not installed")
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (example,) = (each for each in examples if "clock" in each)
    script = f"{example}\nassert clock.now() >= emulator.world.now"
    output = subprocess.check_output([sys.executable, "-c", script], text=True)
    assert output.startswith("127.0.0.1:")
