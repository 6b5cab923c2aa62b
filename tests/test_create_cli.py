"""`tpuctl create` as it is typed: what it says, what it asks, how it ends."""

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import tpuctl
from tests import contract
from tests.cloud_world import CloudWorld, Worlds
from tests.conftest import Tpuctl
from tests.fit_cases import too_large
from tpuctl.api.cloud import create
from tpuctl.cloud.create import Created, NotCreated
from tpuctl.codec import to_plain
from tpuctl.compile.cache import open_cache
from tpuctl.compile.models import CompileRequest, Target
from tpuctl.compile.slices import find_slice
from tpuctl.errors import NoCapacityError
from tpuctl.units import GIB
from tpuctl.usercode.function import Function

A, B, C = "us-west4-a", "us-central1-a", "us-west1-c"
ZONE = {"types": ["v5litepod-8"], "capacity_chips": 16, "quota_chips": 32}
SCENARIO = {
    "time_scale": 200,
    "provision_s": 35,
    "buckets": {"data": {"location": "EUROPE-WEST4"}},
    "zones": {A: ZONE, B: {**ZONE, "capacity_chips": 0}, C: {**ZONE, "quota_chips": 0}},
}


@pytest.fixture
def here(world: Worlds, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> CloudWorld:
    monkeypatch.setenv("TPUCTL_STATE_DIR", str(tmp_path / "state"))
    return world(SCENARIO, real_time=True)


CREATE = ("create", "t1", "--accelerator-type", "v5e-8")


def test_the_plan_is_shown_and_nothing_is_asked_for(
    here: CloudWorld, tpuctl: Tpuctl, golden: Callable[[str, str], None]
) -> None:
    result = tpuctl(
        *CREATE, "--zone", "auto", "--spot", "--ttl", "4h", "--max-usd", "5", "--dry-run"
    )
    golden("create_plan.txt", result.stdout)
    assert here.requests["create_node"] == 0


def test_a_debugger_that_reads_local_variables_changes_nothing(
    here: CloudWorld, tpuctl: Tpuctl
) -> None:
    def read(frame: FrameType, event: str, value: Any) -> Any:
        return read if frame.f_locals is not None else None

    before = sys.gettrace()
    sys.settrace(read)
    try:
        made = tpuctl("create", "t1", "--type", "v5e-8", "--zone", A, "--dry-run", "--json")
        gone = tpuctl("delete", "t1", "--dry-run", "--json")
    finally:
        sys.settrace(before)
    assert made.data["name"] == "t1"
    assert (gone.exit_code, "not_found" in gone.stdout) == (1, True)


def test_a_search_says_what_became_of_every_zone(here: CloudWorld, tpuctl: Tpuctl) -> None:
    result = tpuctl(*CREATE, "--zone", "auto", "--yes", "--ttl", "1h")
    assert result.exit_code == 0
    assert "v5litepod-8: $9.60 per hour, for 1h 00m, $9.60 at most." in result.stderr
    assert f"{C}: not tried: quota 0 chips" in result.stderr
    assert f"{B}: no capacity after " in result.stderr
    assert 'There is no more capacity in the zone "us-central1-a"' in result.stderr
    assert f"t1 is READY in {A} after " in result.stdout
    assert "emulated" in result.stdout
    assert f"tpuctl delete t1 --zone {A}" in result.stdout
    again = tpuctl(*CREATE, "--zone", A, "--dry-run").stderr
    assert f"t1 already exists in {A}; only a create" in " ".join(again.split())


def test_the_json_keeps_the_contract(here: CloudWorld, tpuctl: Tpuctl) -> None:
    document = tpuctl(*CREATE, "--zones", f"{B},{A}", "--yes", "--json").document
    assert contract.problems(document, "create", contract.CREATED) == []
    data = document["data"]
    assert [attempt["outcome"] for attempt in data["attempts"]] == ["no_capacity", "ready"]
    assert (data["usd_per_hour"], data["emulated"], data["zone"]) == (9.6, True, A)


def test_a_failure_has_its_attempts_in_the_same_envelope(here: CloudWorld, tpuctl: Tpuctl) -> None:
    result = tpuctl(*CREATE, "--zone", B, "--yes", "--json")
    assert result.exit_code == 3
    assert contract.problems(result.document, "create", {}) == []
    assert result.document["status"] == "error"
    assert result.document["errors"][0]["code"] == "no_capacity"
    assert [attempt["zone"] for attempt in result.data["attempts"]] == [B]


@pytest.mark.parametrize(
    ("words", "exit_code", "message"),
    [
        (["--zone", A], 2, "Create t1 in us-west4-a for $9.60 per hour, until you delete it?"),
        ([], 2, "--zone is not given, and no zone is set"),
        (["--zone", A, "--zones", B], 2, "exclude each other"),
        (["--zones", f"{A},,{B}"], 2, "'' is not a valid zone"),
        (["--zone", A, "--label", "x"], 2, "'x' is not a valid label"),
        (["--zone", A, "--ttl", "4"], 2, "'4' is not a duration"),
        (["--zone", A, "--ttl", "0s"], 2, "'--ttl': '0s' is not longer than 0 s"),
        (["--zone", A, "--ttl", "999999999d"], 2, "'999999999d' is longer than 366 days"),
        (["--zone", A, "--max-usd", "nan"], 2, "'nan' is not a number greater than 0"),
        (["--zone", A, "--timeout", "soon"], 2, "'soon' is not a duration"),
        (["--zone", A, "--startup-script", "/"], 1, "Could not read the startup script /"),
        (["--zone", "nowhere-a"], 1, "Location nowhere-a is not found"),
    ],
)
def test_what_cannot_be_done_is_one_error_and_no_request(
    here: CloudWorld, tpuctl: Tpuctl, words: list[str], exit_code: int, message: str
) -> None:
    result = tpuctl(*CREATE, *words)
    assert result.exit_code == exit_code
    assert message in result.stderr
    assert here.requests["create_node"] == 0


def test_the_zone_may_be_set_and_may_be_auto(
    here: CloudWorld, tpuctl: Tpuctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TPUCTL_ZONE", "auto")
    offers = tpuctl(*CREATE, "--dry-run", "--json").data["offers"]
    assert [offer["zone"] for offer in offers] == [B, A, C]


def test_a_bucket_far_away_is_a_warning_before_the_question(
    here: CloudWorld, tpuctl: Tpuctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TPUCTL_BUCKET", "gs://data/train")
    result = tpuctl(*CREATE, "--zone", A)
    assert "gs://data is in europe-west4, not in us-west4" in result.stderr
    near = tpuctl(*CREATE, "--zone", A, "--bucket", "gs://missing")
    assert "Could not find the location of gs://missing" in near.stderr


def test_the_same_in_python(here: CloudWorld) -> None:
    result = tpuctl.create("t1", "v5e-8", zone=A, ttl_s=3600, labels={"team": "vision"})
    assert isinstance(result, Created)
    assert (result.state, result.labels["team"]) == ("READY", "vision")
    assert [tpu.name for tpu in tpuctl.list(all_zones=True).tpus] == ["t1"]


VARIES = {"id", "created", "expires", "as_of", "usd_so_far", "labels", "workers"}


def comparable(data: dict[str, Any]) -> dict[str, Any]:
    """What two creates of the same TPU have in common."""
    attempts = [{**attempt, "seconds": 0} for attempt in data["attempts"]]
    return {**{k: v for k, v in data.items() if k not in VARIES}, "attempts": attempts}


def remember_that_it_does_not_fit(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("TPUCTL_CACHE_DIR", str(folder))
    target = Target("function", "train.py:make", function=Function("train.py", "make"))
    question = CompileRequest(
        target, find_slice("v5e-8"), batch_size=4096, dtype=None, training=True
    )
    cache = open_cache()
    cache.save(question, to_plain(too_large(examples=4096, needed_bytes=32 * GIB)), files=())
    cache.remember(question)


def test_the_command_and_python_do_the_same(
    world: Worlds, here: CloudWorld, tpuctl: Tpuctl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The same plan and result, the same first key, the same warnings before anything is paid."""
    monkeypatch.setenv("TPUCTL_BUCKET", "gs://data/train")
    remember_that_it_does_not_fit(monkeypatch, tmp_path)
    words = ("--zones", f"{B},{A}", "--ttl", "1h", "--json")
    planned = tpuctl(*CREATE, *words, "--dry-run")
    typed = tpuctl(*CREATE, *words, "--yes")
    (first,) = here.api.list_nodes(A).items
    searched = here.requests["list_accelerator_types"]
    there = world(SCENARIO, real_time=True)
    plan = create("t1", "v5e-8", zone=(B, A), ttl_s=3600.0, dry_run=True)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        made = create("t1", "v5e-8", zone=(B, A), ttl_s=3600.0)
    (second,) = there.api.list_nodes(A).items
    assert plan.to_dict() == planned.data
    assert comparable(made.to_dict()) == comparable(typed.data)
    assert second.metadata["ssh-keys"] == first.metadata["ssh-keys"]
    told = [line.removeprefix("Warning: ") for line in typed.stderr.splitlines() if "ning" in line]
    assert [str(warning.message) for warning in warned] == told == [*plan.warnings]
    assert any("gs://data is in europe-west4" in text for text in told)
    assert any("train.py:make does not fit" in text for text in told)
    assert searched == 0, "zones that are known to have the type are not asked"


def test_a_failure_has_the_same_data_in_python(here: CloudWorld, tpuctl: Tpuctl) -> None:
    typed = tpuctl(*CREATE, "--zone", B, "--yes", "--json")
    result = create("t1", "v5e-8", zone=B, check=False, dry_run=False)
    assert isinstance(result, NotCreated)
    assert comparable(result.to_dict()) == comparable(typed.data)
    assert [str(error) for error in result.failures] == [
        error["message"] for error in typed.document["errors"]
    ]


def test_a_search_plans_once(here: CloudWorld, tpuctl: Tpuctl) -> None:
    tpuctl(*CREATE, "--zone", "auto", "--yes")
    assert here.requests["list_locations"] == 1


def test_in_python_what_went_wrong_is_raised(here: CloudWorld) -> None:
    with pytest.raises(NoCapacityError, match="no more capacity"):
        tpuctl.create("t1", "v5e-8", zone=B)


def test_in_python_zones_are_tried_in_order(here: CloudWorld) -> None:
    result: Any = tpuctl.create("t1", "v5e-8", zone=(A, B), wait=False)
    assert [(attempt.zone, attempt.outcome) for attempt in result.attempts] == [(A, "accepted")]


def test_a_program_that_cannot_fit_is_spoken_of_before_anybody_pays(
    here: CloudWorld, tpuctl: Tpuctl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What `fit` answered last in this folder, for this type and no other."""
    monkeypatch.setenv("TPUCTL_CACHE_DIR", str(tmp_path))
    cache, slice_ = open_cache(), find_slice("v5e-8")
    target = Target("function", "train.py:make", function=Function("train.py", "make"))
    question = CompileRequest(target, slice_, batch_size=4096, dtype=None, training=True)
    cache.save(question, to_plain(too_large(examples=4096, needed_bytes=32 * GIB)), files=())
    assert "train.py:make" not in tpuctl(*CREATE, "--zone", A, "--dry-run").stderr
    cache.remember(question)
    result = tpuctl(*CREATE, "--zone", A, "--dry-run", "--json")
    [warning] = [words for words in result.document["warnings"] if "train.py:make" in words]
    assert "does not fit a v5litepod-8 with a batch of 4,096" in warning
    assert "each device needs 32 GiB and has 15.8 GiB" in warning
    result = tpuctl(*CREATE, "--zone", A, "--yes")
    assert warning in result.stderr
    assert result.exit_code == 0
