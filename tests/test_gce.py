"""TPUs on Compute Engine: one set of verbs for both control planes."""

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import tpuctl as library
from tests.cloud_world import MORNING, Worlds
from tests.conftest import Tpuctl
from tests.gce_world import PLAIN, V6E, ZONE, open_gce
from tpuctl.cloud.api import TpuApi
from tpuctl.cloud.connect import connect
from tpuctl.cloud.create import Created, NotCreated, create
from tpuctl.cloud.delete import delete, plan_delete
from tpuctl.cloud.error_table import RequestContext
from tpuctl.cloud.gc import find_orphans
from tpuctl.cloud.gce import reading
from tpuctl.cloud.gce._http import error_of_operation
from tpuctl.cloud.gce.bodies import group_body, instance_body, mark_of, read_mark, template_body
from tpuctl.cloud.journal import Journal
from tpuctl.cloud.list import list_tpus
from tpuctl.cloud.models import ALL_ZONES, NodeRequest
from tpuctl.cloud.placement import complete_plan
from tpuctl.cloud.plan import CreateOptions, plan_create, request_for
from tpuctl.cloud.requests import reconcile
from tpuctl.cloud.wait import wait_until_ready
from tpuctl.emulator.confine import Confinement
from tpuctl.errors import (
    InvalidArgumentError,
    NoCapacityError,
    NotFoundError,
    UsageError,
    WorkerError,
)
from tpuctl.providers.control_planes import choose_control_plane, provider_to_watch
from tpuctl.providers.registry import open_to_create, owner_of
from tpuctl.remote.run import recipes, set_up

Made = Created | NotCreated
FAST = {**PLAIN, "time_scale": 500, "provision_s": 20, "delete_s": 20}


def make(api: TpuApi, name: str = "t1", kind: str = "v6e-4", **options: Any) -> Made:
    asked = CreateOptions(name, kind, (options.pop("zone", ZONE),), provider="gce", **options)
    return create(api, complete_plan(api, plan_create(asked)), journal=Journal())


def fault(**fields: Any) -> dict[str, Any]:
    return {**PLAIN, "faults": [{"on": "compute_instances_insert", "zone": "*", **fields}]}


@pytest.mark.parametrize(
    ("act", "words"),
    [
        ("preempt", "it was preempted at"),
        ("expire", "its time to live ended at"),
        ("delete", "you@example.com deleted it at"),
    ],
)
def test_why_a_tpu_is_gone_is_known_after_it_is_gone(
    world: Worlds, monkeypatch: pytest.MonkeyPatch, tpuctl: Tpuctl, act: str, words: str
) -> None:
    events = [{"on": "instance", "name": "t1", "event": "preempt", "at_s": 600}]
    here = open_gce(world, monkeypatch, {**PLAIN, "faults": events if act == "preempt" else []})
    assert isinstance(make(here.api, spot=True, ttl_s=3600), Created)
    if act == "delete":
        here.api.delete_node("t1", zone=ZONE)
    here.clock.sleep(5000)
    with pytest.raises(NotFoundError):
        here.api.get_node("t1", zone=ZONE)
    gone = here.api.why_gone("t1", zone=ZONE)
    assert words in str(gone)
    assert str(here.api.why_gone("t1", zone=ALL_ZONES)) == str(gone)
    shown = tpuctl("show", "t1", "--zone", ZONE)
    assert shown.exit_code == 1
    assert words in " ".join(shown.stderr.split())


def test_a_tpu_of_the_same_name_does_not_inherit_an_end(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = open_gce(world, monkeypatch)
    make(here.api)
    here.api.delete_node("t1", zone=ZONE)
    here.clock.sleep(600)
    assert here.api.why_gone("t1", zone=ZONE)
    make(here.api)
    assert here.api.why_gone("t1", zone=ZONE) is None


@pytest.mark.parametrize(
    ("error", "code"),
    [("stockout", "no_capacity"), ("quota", "quota_exceeded"), ("permission", "permission_denied")],
)
def test_what_is_refused_says_which_kind_of_refusal_it_is(
    world: Worlds, monkeypatch: pytest.MonkeyPatch, error: str, code: str
) -> None:
    where = "rpc" if error == "permission" else "operation"
    here = open_gce(world, monkeypatch, fault(error=error, where=where))
    made = make(here.api)
    assert isinstance(made, NotCreated)
    assert made.error.code == code
    assert here.api.list_nodes(ALL_ZONES).items == ()


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"zones": {ZONE: {"capacity_chips": 12}}}, "no_capacity"),
        ({"compute": {"quota_chips": 12}}, "quota_exceeded"),
    ],
)
@pytest.mark.parametrize("kind", ["v6e-4", "v6e-16"])
def test_a_slice_says_why_its_machines_are_not_made(
    world: Worlds, monkeypatch: pytest.MonkeyPatch, changes: Any, code: str, kind: str
) -> None:
    here = open_gce(world, monkeypatch, {**PLAIN, **changes})
    made = make(here.api, "s1", kind)
    assert [error.code for error in made.failures] == ([code] if kind == "v6e-16" else [])
    left = [node.name for node in here.api.list_nodes(ALL_ZONES, leftovers=True).items]
    assert left == ([] if kind == "v6e-16" else ["s1"])


def test_v5e_is_refused_by_an_allowlist_and_the_other_plane_is_named(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = open_gce(world, monkeypatch)
    made = make(here.api, kind="v5e-4")
    assert isinstance(made, NotCreated)
    assert made.error.code == "permission_denied"
    assert "--provider cloud-tpu" in str(made.error.hint)


def test_a_lost_reply_makes_no_second_vm(world: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = fault(error="unavailable", after_accept=True, nth=1)
    here = open_gce(world, monkeypatch, lost)
    assert isinstance(make(here.api), Created)
    assert len(here.api.list_nodes(ALL_ZONES).items) == 1


def test_the_whole_project_is_listed_with_one_request_for_each_kind(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = open_gce(world, monkeypatch)
    make(here.api)
    make(here.api, "s1", "v6e-16")
    sent: list[str] = []

    def note(reply: Any, *_: Any, **__: Any) -> None:
        sent.append(reply.request.path_url.partition("?")[0].rpartition("/projects/practice/")[2])

    here.api._api._http._session.hooks["response"].append(note)  # type: ignore[attr-defined]
    found = list_tpus(here.api)
    assert {tpu.name: len(tpu.workers) for tpu in found.tpus} == {"t1": 1, "s1": 4}
    assert sorted(sent) == ["aggregated/instanceGroupManagers", "aggregated/instances"]


def test_flex_start_waits_as_pending_and_lapses_by_itself(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = open_gce(world, monkeypatch, {"zones": {ZONE: {"capacity_chips": 0}}})
    states: list[str] = []
    asked = CreateOptions("t1", "v6e-4", (ZONE,), provider="gce", flex=True, ttl_s=3600)
    plan = complete_plan(here.api, plan_create(asked))
    made = create(
        here.api, plan, journal=Journal(), timeout_s=1800,
        on_progress=lambda progress: states.append(progress.note),
    )  # fmt: skip
    assert isinstance(made, NotCreated)
    assert "PENDING" in states
    assert made.error.code == "no_capacity"
    assert here.api.list_nodes(ALL_ZONES).items == ()
    assert Counter(entry.phase for entry in Journal().entries(here.api)) == {"closed": 1}


def test_a_pending_tpu_costs_nothing_and_has_no_end_yet(
    world: Worlds, monkeypatch: pytest.MonkeyPatch, tpuctl: Tpuctl
) -> None:
    here = open_gce(world, monkeypatch, {"zones": {ZONE: {"capacity_chips": 0}}})
    asked = CreateOptions("t1", "v6e-4", (ZONE,), provider="gce", flex=True, ttl_s=3600)
    plan = complete_plan(here.api, plan_create(asked))
    made = create(here.api, plan, journal=Journal(), wait=False)
    assert isinstance(made, Created)
    (tpu,) = list_tpus(here.api).tpus
    assert (tpu.state, tpu.usd_per_hour, tpu.usd_so_far) == ("PENDING", 0.0, 0.0)
    assert (tpu.expires, tpu.provisioning) == (None, "flex")
    assert "v6e-4 flex" in (listed := tpuctl("list").stdout)
    assert "1h 00m from start" in listed
    assert "no limit" not in tpuctl("show", "t1").stdout


@pytest.mark.slow
def test_to_wait_for_a_flex_start_that_lapses_ends_as_its_create_does(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = open_gce(world, monkeypatch, {"zones": {ZONE: {"capacity_chips": 0}}})
    asked = CreateOptions("t1", "v6e-4", (ZONE,), provider="gce", flex=True, ttl_s=3600)
    create(here.api, complete_plan(here.api, plan_create(asked)), journal=Journal(), wait=False)
    with pytest.raises(NoCapacityError) as lapsed:
        wait_until_ready(here.api, "t1")
    assert not str(lapsed.value).endswith("..")


def test_the_bill_is_that_of_the_emulator_for_every_model(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = open_gce(world, monkeypatch)
    for name, options in (("a", {}), ("b", {"spot": True}), ("c", {"flex": True, "ttl_s": 7200})):
        made = make(here.api, name, **options)
        assert isinstance(made, Created)
    prices = {tpu.name: tpu.usd_per_hour for tpu in list_tpus(here.api).tpus}
    assert prices == {"a": 10.8, "b": 5.6132, "c": 5.4}


def request(kind: str = "v6e-4", **fields: Any) -> NodeRequest:
    asked = CreateOptions("t1", kind, (ZONE,), provider="gce", **fields)
    plan = plan_create(asked)
    return request_for(plan, plan.offers[0], project="p", create_id="c1")


def test_the_body_of_a_vm_has_the_server_keep_the_time_to_live() -> None:
    body = instance_body(request(spot=True, ttl_s=7200))
    assert body["scheduling"] == {
        "provisioningModel": "SPOT", "onHostMaintenance": "TERMINATE", "automaticRestart": False,
        "instanceTerminationAction": "DELETE", "maxRunDuration": {"seconds": "7200"},
    }  # fmt: skip
    disk = body["disks"][0]["initializeParams"]
    assert disk["diskSizeGb"] == "200"
    assert "diskType" not in disk
    assert body["labels"]["tpuctl-create"] == "c1"
    assert "startup-script" not in {item["key"] for item in body["metadata"]["items"]}


def test_what_a_generation_needs_is_asked_for() -> None:
    seven = instance_body(request("tpu7x-8"))
    assert seven["disks"][0]["initializeParams"]["diskType"].endswith("hyperdisk-balanced")
    assert seven["shieldedInstanceConfig"] == {"enableSecureBoot": False}
    assert seven["disks"][0]["initializeParams"]["sourceImage"].endswith("2404-amd64-tpu-tpu7x")
    eight = instance_body(request("v6e-8"))
    assert eight["advancedMachineFeatures"] == {"threadsPerCore": 1}
    reserved = instance_body(request("tpu7x-8", reservation="mine"))
    assert reserved["scheduling"]["provisioningModel"] == "RESERVATION_BOUND"
    assert reserved["reservationAffinity"]["values"] == ["mine"]


def test_the_parts_of_a_slice_carry_its_mark_and_full_paths() -> None:
    long = "a" * 63
    asked = request("tpu7x-32", subnetwork="mine")
    named = NodeRequest(**{**vars(asked), "name": long})
    mark = mark_of(named, MORNING)
    template, group = template_body(named, mark, "p"), group_body(named, mark, "p")
    assert read_mark(template) == read_mark(group) == mark
    network = template["properties"]["networkInterfaces"][0]
    assert network["subnetwork"] == "projects/p/regions/us-east5/subnetworks/mine"
    assert len(template["name"]) <= 63
    assert len(group["baseInstanceName"].replace("###[1]", "")) <= 58
    assert group["targetSize"] == 4
    assert read_mark({"description": "somebody's own words"}) is None


@pytest.mark.parametrize(
    "fields", [{"flex": True}, {"flex": True, "ttl_s": 60.0}, {"flex": True, "ttl_s": 1e6}]
)
def test_flex_start_needs_a_time_to_live_that_the_service_takes(fields: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="--flex needs a time to live of 10m"):
        request(**fields)


def test_models_exclude_each_other() -> None:
    with pytest.raises(UsageError, match="--spot and --flex exclude"):
        request(spot=True, flex=True, ttl_s=7200.0)


@pytest.mark.parametrize(
    ("kind", "zones", "options", "plane", "why"),
    [
        ("tpu7x-8", (), {}, "gce", "does not have tpu7x"),
        ("v4-8", (), {}, "cloud-tpu", "does not have v4"),
        ("v5e-4", (), {}, "cloud-tpu", "allowlist"),
        ("v6e-4", (), {"flex": True}, "gce", "only it has --flex"),
        ("v6e-4", (), {"queued": True}, "cloud-tpu", "only it has --queued"),
        ("v6e-4", ("us-south1-ai1b",), {}, "gce", "only it has v6e in us-south1-ai1b"),
        ("v6e-4", (ZONE,), {}, "cloud-tpu", "both have the quota"),
    ],
)
def test_auto_takes_the_plane_that_has_it_and_says_why(
    world: Worlds, monkeypatch: pytest.MonkeyPatch,
    kind: str, zones: tuple[str, ...], options: Any, plane: str, why: str,
) -> None:  # fmt: skip
    open_gce(world, monkeypatch)
    chosen, said = choose_control_plane(kind, zones, options)
    assert chosen == plane
    assert why in said


def test_auto_takes_the_plane_with_the_quota(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    none = {"zones": {ZONE: {"capacity_chips": 64, "quota_chips": 0}}}
    open_gce(world, monkeypatch, {**none, "compute": {"quota_chips": 64}})
    chosen, said = choose_control_plane("v6e-4", (ZONE,), {})
    assert (chosen, "0 on the Cloud TPU API and 64 on Compute Engine" in said) == ("gce", True)


def test_one_plane_is_not_asked_while_only_the_other_is_an_emulator(
    world: Worlds, tpuctl: Tpuctl
) -> None:
    world(PLAIN)
    assert choose_control_plane("v6e-4", (ZONE,), {})[0] == "cloud-tpu"
    listed = tpuctl("list", "--provider", "gce", "--json")
    (error,) = listed.document["errors"]
    assert "TPUCTL_GCE_ENDPOINT is not set" in error["message"]


def test_the_same_commands_work_on_a_tpu_of_either_plane(
    world: Worlds, monkeypatch: pytest.MonkeyPatch, tpuctl: Tpuctl
) -> None:
    open_gce(world, monkeypatch, FAST, real_time=True)
    for name, provider in (("old", "cloud-tpu"), ("new", "gce")):
        words = ["create", name, "--type", "v6e-4", "--zone", ZONE, "--ttl", "9h", "--yes"]
        made = tpuctl(*words, "--provider", provider, "--json")
        assert (made.exit_code, made.data["provider"]) == (0, provider)
        assert made.data["expires"]
    listed = tpuctl("list", "--json").data["tpus"]
    assert {(tpu["name"], tpu["provider"]) for tpu in listed} == {
        ("old", "cloud-tpu"), ("new", "gce"),
    }  # fmt: skip
    for name, provider in (("old", "cloud-tpu"), ("new", "gce")):
        assert tpuctl("show", name, "--json").data["provider"] == provider
        assert tpuctl("wait", name, "--json").data["reached"] == "ready"
    deleted = tpuctl("delete", "old", "new", "--yes", "--json")
    assert {tpu["outcome"] for tpu in deleted.data["tpus"]} == {"deleted"}
    assert tpuctl("list", "--json").data["tpus"] == []


def test_a_name_is_free_on_the_other_plane_once_its_tpu_is_gone(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = open_gce(world, monkeypatch, PLAIN)
    assert isinstance(make(here.api), Created)
    with pytest.raises(UsageError, match="Compute Engine has a TPU t1"):
        open_to_create("cloud-tpu", "t1", project=None, on_warning=print)
    here.api.delete_node("t1", zone=ZONE)
    here.clock.sleep(600)
    opened = open_to_create("cloud-tpu", "t1", project=None, on_warning=print)
    assert opened.abilities.name == "cloud-tpu"


def test_a_name_of_somebody_else_is_looked_up_on_both_planes(
    world: Worlds, monkeypatch: pytest.MonkeyPatch, tpuctl: Tpuctl
) -> None:
    here = open_gce(world, monkeypatch)
    make(here.api)
    _forget(here.api)
    assert tpuctl("show", "t1", "--json").data["provider"] == "gce"
    missing = tpuctl("show", "t2")
    assert missing.exit_code == 1
    assert "TPU t2 not found" in missing.stderr


def _forget(api: TpuApi) -> None:
    for entry in Journal().entries(api):
        Journal().forget(entry)


@pytest.mark.slow
def test_no_verb_acts_on_the_other_of_two_tpus_of_a_name(
    world: Worlds, monkeypatch: pytest.MonkeyPatch, tpuctl: Tpuctl, tmp_path: Path
) -> None:
    here = open_gce(world, monkeypatch, FAST, real_time=True)
    library.create("t1", "v6e-4", zone=ZONE, provider="cloud-tpu")
    _forget(old := connect("practice"))
    make(here.api)
    assert tpuctl("show", "t1", "--json").data["provider"] == "gce"
    assert f"{ZONE} on gce" in tpuctl("list").stdout
    _forget(here.api)
    (tmp_path / "a").write_text("")
    for words in (
        ["show", "t1"], ["show", "t1", "--zone", ZONE], ["wait", "t1"], ["run", "t1", "--", "true"],
        ["cp", str(tmp_path / "a"), "t1:b"], ["ssh", "t1", "--dry-run"], ["stop", "t1"],
        ["free", "t1"], ["top", "t1", "--once"], ["logs", "t1"], ["delete", "t1", "--yes"],
        ["watch", "t1", "--dry-run", str(tmp_path / "a")],
    ):  # fmt: skip
        done = tpuctl(*words)
        assert (done.exit_code, "Both Cloud TPU and Compute Engine" in done.stderr) == (2, True)
    assert tpuctl("gc", "--json").data["found"] == []
    monkeypatch.setenv("TPUCTL_PROVIDER", "gce")
    assert tpuctl("delete", "t1", "--yes").exit_code == 0
    again = tpuctl("delete", "t1", "--yes")
    assert (again.exit_code, "TPUCTL_PROVIDER=cloud-tpu before" in again.stderr) == (2, True)
    assert [node.name for node in old.list_nodes(ALL_ZONES).items] == ["t1"]


def test_a_watch_means_the_tpu_in_the_zone_given(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    zones = {**PLAIN["zones"], "us-east5-b": {}}
    here = open_gce(world, monkeypatch, {**FAST, "zones": zones}, real_time=True)
    library.create("t1", "v6e-4", zone="us-east5-b", provider="cloud-tpu")
    _forget(connect("practice"))
    here.api.create_node(request())
    with pytest.raises(UsageError, match="Both"):
        provider_to_watch("t1", "v6e-4", None, {})
    for zone, plane in ((ZONE, "gce"), ("us-east5-b", "cloud-tpu")):
        assert provider_to_watch("t1", "v6e-4", zone, {}).abilities.name == plane


def test_the_journal_does_not_decide_once_its_tpu_was_replaced_on_the_other_plane(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = open_gce(world, monkeypatch, FAST, real_time=True)
    for name in ("t1", "t2"):
        library.create(name, "v6e-4", zone=ZONE, provider="cloud-tpu")
        connect("practice").delete_node(name, zone=ZONE)
    here.clock.sleep(60)
    assert owner_of("t1").abilities.name == "cloud-tpu"
    here.api.create_node(request())
    assert owner_of("t1").abilities.name == owner_of("t1", zone=ZONE).abilities.name == "gce"
    make(here.api, "t2")
    with pytest.raises(UsageError, match="Compute Engine has a TPU t2"):
        open_to_create("cloud-tpu", "t2", project=None, on_warning=print)


def test_a_slice_and_a_vm_of_one_name_are_not_both_created(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = open_gce(world, monkeypatch)
    for name, first, second in (("t1", "v6e-4", "v6e-16"), ("s1", "v6e-16", "v6e-4")):
        assert isinstance(make(here.api, name, first), Created)
        again = make(here.api, name, second)
        assert isinstance(again, NotCreated)
        assert (again.error.code, again.error.hint) == (
            "already_exists", f"tpuctl show {name} --zone {ZONE}",
        )  # fmt: skip
    kinds = {node.name: node.accelerator_type for node in here.api.list_nodes(ALL_ZONES).items}
    assert kinds == {"t1": "v6e-4", "s1": "v6e-16"}


def test_slices_with_the_longest_names_have_vms_of_their_own(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = open_gce(world, monkeypatch)
    names = ["a" * 62 + last for last in "bc"]
    for name in names:
        assert isinstance(make(here.api, name, "v6e-16"), Created)
    for name in names:
        assert len(here.api.get_node(name, zone=ZONE).endpoints) == 4
    here.api.delete_node(names[0], zone=ZONE)
    assert here.api.why_gone(names[1], zone=ZONE) is None


def test_a_slice_of_which_a_user_stopped_a_vm_says_which(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = open_gce(world, monkeypatch)
    make(here.api, "s1", "v6e-16")
    api: Any = here.connect()
    path = f"projects/practice/zones/{ZONE}/instances/s1-w-002/stop"
    api._api._http.send("POST", path, api._api._doing("stop", "s1"))
    here.clock.sleep(120)
    node = here.api.get_node("s1", zone=ZONE)
    assert (node.state, node.health_description) == ("STOPPED", "s1-w-002 is TERMINATED")


@pytest.mark.slow
def test_a_slice_of_which_one_vm_never_runs_says_which(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = open_gce(world, monkeypatch)
    plan = complete_plan(
        here.api, plan_create(CreateOptions("s1", "v6e-16", (ZONE,), provider="gce"))
    )

    def stage(reply: Any, *_: Any, **__: Any) -> None:
        if reply.request.method == "GET" and reply.request.path_url.partition("?")[0].endswith(
            "/instances"
        ):
            text = reply.content.replace(b'"RUNNING"', b'"STAGING"', 1)
            reply._content, reply._content_consumed = text, True

    api: Any = here.api
    api._api._http._session.hooks["response"].append(stage)
    made = create(here.api, plan, journal=Journal(), timeout_s=3600)
    assert isinstance(made, NotCreated)
    assert "it was CREATING, s1-w-001 is STAGING after 1h" in str(made.error)
    assert here.api.list_nodes(ALL_ZONES, leftovers=True).items == ()


def test_a_zone_that_an_aggregated_list_leaves_out_is_named() -> None:
    silent = {"zones/us-east5-b": {"warning": {"code": "UNREACHABLE"}}}
    first: dict[str, Any] = {"items": {"zones/a": {}, **silent}}
    pages = [first, {"unreachables": ["zones/c"]}, {"items": []}]
    assert reading.unreachable(pages) == ("c", "us-east5-b")


@pytest.mark.parametrize(
    ("codes", "status", "code"),
    [
        (["ZONE_RESOURCE_POOL_EXHAUSTED", "QUOTA_EXCEEDED"], 503, "quota_exceeded"),
        (["QUOTA_EXCEEDED", "ZONE_RESOURCE_POOL_EXHAUSTED"], 403, "quota_exceeded"),
        (["ZONE_RESOURCE_POOL_EXHAUSTED", "INTERNAL_ERROR"], 503, "no_capacity"),
    ],
)
def test_of_several_errors_one_that_waiting_does_not_help_decides(
    codes: list[str], status: int, code: str
) -> None:
    errors = [{"code": each, "message": each} for each in codes]
    operation = {"httpErrorStatusCode": status, "error": {"errors": errors}}
    found = error_of_operation(operation, RequestContext("Could not create t1", "p", ZONE, "t1"))
    assert found
    assert found.code == code


def test_a_plane_that_the_user_may_not_see_and_does_not_use_is_a_note(
    world: Worlds, monkeypatch: pytest.MonkeyPatch, tpuctl: Tpuctl
) -> None:
    refused = {"on": "compute_instances_aggregated_list", "every": True, "error": "permission"}
    here = open_gce(world, monkeypatch, {**PLAIN, "faults": [refused]})
    listed = tpuctl("list")
    assert (listed.exit_code, "Left out: Could not list" in listed.stderr) == (0, True)
    assert tpuctl("gc").exit_code == 0
    assert isinstance(make(here.api), Created)
    assert tpuctl("list").exit_code == 1


def test_migrate_shows_the_command_and_makes_it_beside_the_old_one(
    world: Worlds, monkeypatch: pytest.MonkeyPatch, tpuctl: Tpuctl
) -> None:
    open_gce(world, monkeypatch, FAST, real_time=True)
    library.create("t1", "v6e-4", zone=ZONE, spot=True, ttl_s=36000, provider="cloud-tpu")
    shown = tpuctl("migrate", "t1", "--json").data
    assert "tpuctl create t1-gce --provider gce --accelerator-type v6e-4" in shown["command"]
    assert "--spot --ttl 36000s" in shown["command"]
    assert (shown["usd_per_hour"], shown["created"]) == (5.6132, None)
    assert shown["quota"]["spot_chips"] == 512
    assert any("--setup jax" in each for each in shown["differences"])
    assert [tpu.name for tpu in library.list().tpus] == ["t1"]
    made = tpuctl("migrate", "t1", "--yes", "--json").data["created"]
    assert (made["name"], made["provider"], made["spot"]) == ("t1-gce", "gce", True)
    assert {tpu.name for tpu in library.list().tpus} == {"t1", "t1-gce"}


def test_a_reservation_is_not_made_up(
    world: Worlds, monkeypatch: pytest.MonkeyPatch, tpuctl: Tpuctl
) -> None:
    zones = {ZONE: {**V6E, "reserved_chips": 16}}
    open_gce(world, monkeypatch, {**FAST, "zones": zones}, real_time=True)
    library.create("t1", "v6e-4", zone=ZONE, reserved=True, ttl_s=36000, provider="cloud-tpu")
    refused = tpuctl("migrate", "t1", "--yes")
    assert refused.exit_code == 2
    assert "--reservation RESERVATION" in refused.stderr
    assert [tpu.name for tpu in library.list().tpus] == ["t1"]


def test_what_compute_engine_does_not_have_is_not_migrated(
    world: Worlds, monkeypatch: pytest.MonkeyPatch, tpuctl: Tpuctl
) -> None:
    zones = {"us-central2-b": {"types": ["v4-8"], "capacity_chips": 64}}
    open_gce(world, monkeypatch, {**FAST, "zones": zones}, real_time=True)
    library.create("t1", "v4-8", zone="us-central2-b", provider="cloud-tpu")
    refused = tpuctl("migrate", "t1", "--json")
    (error,) = refused.document["errors"]
    assert "Compute Engine does not offer v4" in error["message"]
    assert "tpuctl show t1" in error["hint"]


RELAY = """#!{python}
import os, socket, sys, threading
open({log!r}, "a").write(" ".join(sys.argv[1:]) + "\\n")
here = socket.create_connection(({address!r}, {port}))
def up():
    while data := os.read(0, 65536):
        here.sendall(data)
    here.shutdown(socket.SHUT_WR)
threading.Thread(target=up, daemon=True).start()
while data := here.recv(65536):
    os.write(1, data)
"""


# gcloud 528 takes the VM of a Cloud TPU from the same guest attribute.
@pytest.mark.parametrize(("provider", "vm"), [("gce", "t1"), ("cloud-tpu", "t1-w-0")])
def test_workers_are_reached_through_iap_with_gcloud_as_proxy_command(
    world: Worlds,
    monkeypatch: pytest.MonkeyPatch,
    tpuctl: Tpuctl,
    tmp_path: Path,
    provider: str,
    vm: str,
) -> None:
    pytest.importorskip("asyncssh", reason="asyncssh is not installed")
    open_gce(world, monkeypatch, FAST, real_time=True, machines=tmp_path / "machines")
    library.create("t1", "v6e-4", zone=ZONE, provider=provider, internal_ip=True)
    (host,) = library.Workers("t1").reach()[0]
    program, log = tmp_path / "bin" / "gcloud", tmp_path / "log"
    program.parent.mkdir()
    known = {"log": str(log), "address": host.address, "port": host.port}
    program.write_text(RELAY.format(python=sys.executable, **known))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    ran = tpuctl("run", "t1", "--iap", "--", "echo", "through the tunnel")
    assert (ran.exit_code, ran.stdout.strip()) == (0, "through the tunnel"), ran.stderr
    words = "22 --listen-on-stdin --project=practice --zone=us-east5-a"
    first = log.read_text().splitlines()[0]
    assert re.fullmatch(f"compute start-iap-tunnel ({vm}) {words}", first)
    shell = tpuctl("ssh", "t1", "--iap", "--json").data["argv"]
    assert any(word.startswith(f"ProxyCommand={program} compute start-iap") for word in shell)


def test_iap_without_gcloud_says_what_to_install(
    world: Worlds, monkeypatch: pytest.MonkeyPatch, tpuctl: Tpuctl, tmp_path: Path
) -> None:
    open_gce(world, monkeypatch, FAST, real_time=True)
    library.create("t1", "v6e-4", zone=ZONE, provider="gce")
    monkeypatch.setenv("PATH", str(tmp_path))
    refused = tpuctl("run", "t1", "--iap", "--", "true")
    assert refused.exit_code == 1
    assert "--iap needs gcloud" in refused.stderr


@pytest.mark.slow
def test_setup_installs_and_verifies_on_all_workers(
    world: Worlds, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("asyncssh", reason="asyncssh is not installed")
    open_gce(world, monkeypatch, FAST, real_time=True, machines=tmp_path)
    library.create("s1", "v6e-16", zone=ZONE, provider="gce")
    hosts, access, _ = library.Workers("s1").reach()
    recipe = {"install": "echo made > made", "verify": 'test -s made && test "$TPUCTL_CHIPS" = 16'}
    steps: list[str] = []
    set_up(hosts, access, recipe, chips=16, on_step=steps.append)
    assert steps == ["install", "verify"]
    with pytest.raises(
        WorkerError, match="'verify' of its setup failed on worker 0: no TPU"
    ) as caught:
        set_up(hosts, access, {**recipe, "verify": "echo no TPU >&2; exit 3"}, chips=16)
    assert "tpuctl delete s1" in str(caught.value.hint)
    # One of four, which the same command repairs.
    set_up(hosts[2:3], access, {**recipe, "install": "touch made broken"}, chips=16)
    once = {**recipe, "install": "[ ! -e broken ] || { rm broken; exit 9; }"}
    with pytest.raises(WorkerError, match="'install' of its setup failed on worker 2"):
        set_up(hosts, access, once, chips=16)
    set_up(hosts, access, once, chips=16)


@pytest.mark.parametrize("framework", ["jax", "torch"])
def test_the_recipes_are_scripts_that_a_shell_can_read(framework: str) -> None:
    for script in recipes()[framework].values():
        assert subprocess.run(["bash", "-n", "-c", script], check=False).returncode == 0
    verify = recipes()[framework]["verify"].partition("-c '")[2].rstrip("'")
    compile(verify, framework, "exec")


def test_an_unknown_setup_is_wrong_usage(
    world: Worlds, monkeypatch: pytest.MonkeyPatch, tpuctl: Tpuctl
) -> None:
    open_gce(world, monkeypatch)
    words = ["create", "t1", "--type", "v6e-4", "--zone", ZONE, "--setup", "keras", "--yes"]
    assert tpuctl(*words).exit_code == 2


def test_a_refused_slice_leaves_no_parts(world: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    method = "compute_instance_group_managers_insert"
    refusal = {"on": method, "zone": "*", "error": "quota", "where": "rpc"}
    here = open_gce(world, monkeypatch, {**PLAIN, "faults": [refusal]})
    made = make(here.api, "s1", "v6e-16")
    assert isinstance(made, NotCreated)
    assert made.error.code == "quota_exceeded"
    assert here.api.list_nodes(ALL_ZONES, leftovers=True).items == ()
    assert isinstance(make(here.api, "s1", "v6e-16"), Created)


def test_parts_of_a_slice_are_deleted_by_name_and_hold_no_chips(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = "compute_instance_group_managers_insert"
    lost = [{"on": method, "zone": "*", "nth": n, "error": "unavailable"} for n in range(1, 9)]
    here = open_gce(world, monkeypatch, {**PLAIN, "faults": lost})
    assert isinstance(make(here.api, "s1", "v6e-16"), NotCreated)
    left = here.api.list_nodes(ALL_ZONES, leftovers=True).items
    assert [node.state for node in left] == ["INCOMPLETE"]
    plan = plan_delete(here.api, ["s1"], journal=Journal())
    assert (plan.tpus[0].state, plan.freed_chips) == ("INCOMPLETE", 0)
    assert delete(here.api, plan, journal=Journal()).failures == ()
    assert here.api.list_nodes(ALL_ZONES, leftovers=True).items == ()


def test_a_slice_is_made_although_the_service_was_away_at_its_last_part(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = "compute_instance_group_managers_insert"
    here = open_gce(
        world, monkeypatch, {**PLAIN, "faults": [{"on": method, "error": "unavailable"}]}
    )
    assert isinstance(make(here.api, "s1", "v6e-16"), Created)


def test_a_waiting_flex_start_is_pending_all_the_time(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    zones = {**PLAIN["zones"], ZONE: {"pools": {"flex": {"0": 0, "1200": 64}}}}
    here = open_gce(world, monkeypatch, {**PLAIN, "zones": zones})
    seen: list[str] = []
    options = CreateOptions("f1", "v6e-4", (ZONE,), provider="gce", flex=True, ttl_s=3600)
    made = create(
        here.api, complete_plan(here.api, plan_create(options)), journal=Journal(),
        on_progress=lambda progress: seen.append(progress.note),
    )  # fmt: skip
    assert isinstance(made, Created)
    changes = [note for note, before in zip(seen, ["", *seen], strict=False) if note != before]
    assert len(changes) <= 5, changes
    assert seen.count("PENDING") > 20


def test_a_host_error_of_a_slice_is_shown(
    world: Worlds, monkeypatch: pytest.MonkeyPatch, tpuctl: Tpuctl
) -> None:
    event = {"on": "instance", "name": "s1-w-002", "event": "host_error", "at_s": 900}
    here = open_gce(world, monkeypatch, {**PLAIN, "faults": [event]})
    assert isinstance(make(here.api, "s1", "v6e-16"), Created)
    assert "machine failed" not in tpuctl("show", "s1").stdout
    here.clock.sleep(1000)
    shown = tpuctl("show", "s1")
    assert "its VM s1-w-002 failed at" in shown.stdout


def test_a_create_that_is_killed_in_its_setup_is_resumed(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = open_gce(world, monkeypatch)
    ready: list[str] = []

    def again(act: Any) -> Made:
        plan = plan_create(CreateOptions("t1", "v6e-4", (ZONE,), provider="gce"))
        return create(here.api, complete_plan(here.api, plan), journal=Journal(), set_up=act)

    def fail(node: Any) -> None:
        raise WorkerError("the step 'install' failed")

    with pytest.raises(WorkerError):
        again(fail)
    reconcile(here.api, Journal())
    assert find_orphans(here.api, journal=Journal()).found == ()
    made = again(lambda node: ready.append(node.name))
    assert isinstance(made, Created)
    assert ready == ["t1"]
    taken = again(lambda node: ready.append("not again"))
    assert isinstance(taken, NotCreated)
    assert ready == ["t1"]


@pytest.mark.parametrize(
    ("event", "state", "words"),
    [
        ("preempt", "PREEMPTED", "it was preempted at"),
        ("expire", "TERMINATED", "its time to live ended at"),
    ],
)
@pytest.mark.parametrize("kind", ["v6e-4", "v6e-16"])
def test_a_vm_that_the_service_is_ending_is_not_taken_for_one_that_a_user_stopped(
    world: Worlds,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    event: str,
    state: str,
    words: str,
) -> None:
    ends = {"on": "instance", "name": "t1*", "event": event, "at_s": 600}
    here = open_gce(world, monkeypatch, {**PLAIN, "delete_s": 400, "faults": [ends]})
    assert isinstance(make(here.api, kind=kind, spot=True, ttl_s=7200), Created)
    here.clock.sleep(650)
    node = here.api.get_node("t1", zone=ZONE)
    assert (node.state, words in node.health_description) == (state, True)


def test_a_vm_that_is_being_deleted_says_so(world: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    here = open_gce(world, monkeypatch)
    assert isinstance(make(here.api), Created)
    here.api.delete_node("t1", zone=ZONE)
    node = here.api.get_node("t1", zone=ZONE)
    assert (node.state, "deleted it" in node.health_description) == ("DELETING", True)


def test_watch_creates_a_missing_tpu_on_the_control_plane_that_is_set(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_gce(world, monkeypatch)

    def plane(options: dict[str, Any] | None = None, **known: Any) -> str:
        return provider_to_watch("new", "v6e-16", ZONE, options or {}, **known).abilities.name

    assert plane() == "cloud-tpu"
    assert plane({"flex": True}) == plane(provider="gce") == "gce"
    monkeypatch.setenv("TPUCTL_PROVIDER", "gce")
    assert plane() == "gce"
    assert plane(provider="cloud-tpu") == "cloud-tpu"


def test_workers_find_each_other_by_the_names_of_their_vms(
    world: Worlds, monkeypatch: pytest.MonkeyPatch, tpuctl: Tpuctl, tmp_path: Path
) -> None:
    pytest.importorskip("asyncssh", reason="asyncssh is not installed")
    open_gce(world, monkeypatch, FAST, real_time=True, machines=tmp_path / "machines")
    (home := tmp_path / "own" / "home").mkdir(parents=True)
    own = Confinement(home, tmp_path / "own" / "tmp")
    has_namespaces = own.is_supported
    own.close()
    if not has_namespaces:
        pytest.skip("this system has no namespaces for us")
    for name, kind in (("s1", "v6e-16"), ("t1", "v6e-4")):
        library.create(name, kind, zone=ZONE, provider="gce")
    look = "import socket; print(*map(socket.gethostbyname, ['s1-w-001', 's1-w-004', {!r}]))"
    full = f"t1.{ZONE}.c.practice.internal"
    told = tpuctl("run", "s1", "--worker", "2", "--", "python3", "-c", look.format(full))
    first, last, other = told.stdout.split()
    internal = {tpu.name: [each.internal_ip for each in tpu.workers] for tpu in library.list().tpus}
    assert [first, last, other] == [internal["s1"][0], internal["s1"][3], internal["t1"][0]]


def test_a_dry_run_in_a_named_zone_shows_its_quota(
    world: Worlds, monkeypatch: pytest.MonkeyPatch, tpuctl: Tpuctl
) -> None:
    open_gce(world, monkeypatch, {**PLAIN, "compute": {"quota_chips": 3}})
    words = ["create", "t1", "--type", "v6e-4", "--provider", "gce", "--zone", ZONE, "--dry-run"]
    planned = tpuctl(*words, "--json")
    assert [offer["quota_chips"] for offer in planned.data["offers"]] == [3]
    assert f"{ZONE} will refuse it: quota 3 chips" in planned.document["warnings"][0]
    assert "none needed" in tpuctl(*words, "--reservation", "practice").stdout


def test_a_dry_run_says_why_a_quota_is_unknown(
    world: Worlds, monkeypatch: pytest.MonkeyPatch, tpuctl: Tpuctl
) -> None:
    refusal = {"on": "list_quota_infos", "every": True, "error": "permission"}
    open_gce(world, monkeypatch, {**PLAIN, "faults": [refusal]})
    words = ["create", "t1", "--type", "v6e-4", "--provider", "gce", "--zone", ZONE, "--dry-run"]
    planned = tpuctl(*words, "--json")
    assert [offer["quota_chips"] for offer in planned.data["offers"]] == [None]
    assert f"The quota in {ZONE} is unknown: Could not" in planned.document["warnings"][0]
