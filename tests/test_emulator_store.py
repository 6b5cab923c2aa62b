"""The state on disk: answered requests, and the time."""

import re
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("google.cloud.tpu_v2", reason="google-cloud-tpu is not installed")

from google.api_core import exceptions

from tests.emulator_world import SMALL, START, ZONE
from tests.test_emulator_properties import snapshot
from tpuctl.clock import ManualClock
from tpuctl.emulator.server import serve
from tpuctl.emulator.service import Store
from tpuctl.errors import InvalidInputError

FAULTS = [
    {"on": "create_node", "nth": 2, "error": "unavailable", "after_accept": True},
    {"on": "get_node", "nth": 3, "error": "internal"},
    {"on": "node", "name": "t1", "event": "preempt", "at_s": 200},
]


def live(world: Any) -> None:
    """Let some things happen, faults among them."""
    world.create("t1")
    with pytest.raises(exceptions.ServiceUnavailable):
        world.create("t2")
    world.queue("q1", request_id="11111111-1111-4111-8111-111111111111")
    world.clock.sleep(100)
    world.node("t1")
    world.node("t1")
    world.clock.sleep(110)


def test_a_world_is_restored_with_its_fault_counts(practice: Any, tmp_path: Path) -> None:
    world = practice({**SMALL, "faults": FAULTS}, folder=tmp_path)
    live(world)
    before = snapshot(world.emulator.advance())
    again = practice({}, folder=tmp_path, start=world.clock.now())
    assert snapshot(again.emulator.advance()) == before
    with pytest.raises(exceptions.InternalServerError):
        again.node("t1")
    repeated = again.queue("q1", request_id="11111111-1111-4111-8111-111111111111")
    assert repeated.operation.name.startswith(f"{ZONE}/operations/")
    assert len(list(again.client.list_queued_resources(parent=ZONE))) == 1


@pytest.mark.parametrize("cut", [1, 40])
def test_an_incomplete_line_is_dropped_and_the_next_one_is_whole(
    practice: Any, tmp_path: Path, cut: int
) -> None:
    world = practice(folder=tmp_path)
    world.create("t1")
    world.create("t2")
    log = tmp_path / "requests.jsonl"
    log.write_bytes(log.read_bytes()[:-cut])
    for name in ("t3", "t4"):
        again = practice({}, folder=tmp_path)
        again.create(name) if name == "t3" else None
        names = {node.name.rpartition("/")[2] for node in again.client.list_nodes(parent=ZONE)}
        assert names == {"t1", "t3"}


def test_a_restart_does_not_turn_the_time_back(tmp_path: Path) -> None:
    clock = ManualClock(START)
    with serve(SMALL, clock=clock, folder=tmp_path) as emulator:
        clock.sleep(500)
        told = emulator.headers()[0][1]
    store = Store(tmp_path)
    assert store.last_time(store.resume()) == datetime.fromisoformat(told.replace("Z", "+00:00"))


def test_a_clock_that_goes_back_stands_still(practice: Any) -> None:
    world = practice()
    world.create("t1")
    world.emulator.clock = ManualClock(START - timedelta(days=1))
    assert world.node("t1").state.name == "CREATING"
    assert world.emulator.now() == START


@pytest.mark.parametrize(
    ("pattern", "replacement"),
    [
        (r'"format": 1', '"format": 2'),
        (r'"method"', '"way"'),
        (r'^\{"at"', '["at"'),
        (r"2026", "20"),
    ],
)
def test_a_damaged_log_is_one_error_that_names_the_file(
    practice: Any, tmp_path: Path, pattern: str, replacement: str
) -> None:
    practice(folder=tmp_path).create("t1")
    log = tmp_path / "requests.jsonl"
    log.write_text(re.sub(pattern, replacement, log.read_text(), flags=re.MULTILINE))
    with pytest.raises(InvalidInputError, match=re.escape(str(log))):
        practice({}, folder=tmp_path)


def test_a_request_that_cannot_be_stored_fails(practice: Any, tmp_path: Path) -> None:
    world = practice(folder=tmp_path)
    log = tmp_path / "requests.jsonl"
    log.unlink()
    log.mkdir()
    for _ in range(2):
        with pytest.raises(exceptions.InternalServerError, match=re.escape(str(log))):
            world.create("t1")
    log.rmdir()
    with pytest.raises(exceptions.InternalServerError, match="Restart it"):
        world.node("t1")
