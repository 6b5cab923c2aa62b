"""`wait`: ready means every worker, gone means that one, and neither takes for ever."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.cloud_world import CloudWorld
from tests.tpus import FAR, HERE, ask, queue, sent
from tpuctl.cloud.wait import wait_until_gone, wait_until_ready
from tpuctl.errors import DeadlineError, NotFoundError, UnavailableError, WrongStateError
from tpuctl.progress import Progress
from tpuctl.reporters import tpus as report

Worlds = Callable[..., CloudWorld]


def test_ready_is_reached_when_every_worker_has_an_address(world: Worlds) -> None:
    here = world({"provision_s": 120})
    ask(here, "pod", kind="v5e-16")
    steps: list[Progress] = []
    waited = wait_until_ready(here.api, "pod", on_progress=steps.append)
    assert waited.tpu
    assert [worker.state for worker in waited.tpu.workers] == ["READY"] * 4
    assert 120 <= waited.seconds <= 130
    assert {step.note for step in steps} == {"CREATING"}
    assert report.render_waited(waited) == f"pod in {HERE} is ready on 4 workers, after 2m 00s."


def test_a_worker_that_does_not_respond_is_no_barrier_but_a_warning(world: Worlds) -> None:
    here = world({"faults": [{"on": "node", "event": "worker_down", "worker": 1, "at_s": 0}]})
    ask(here, "pod", kind="v5e-16")
    waited = wait_until_ready(here.api, "pod")
    assert waited.warnings == (
        f"pod in {HERE} is READY, but its health is TIMEOUT: Worker 1 does not respond.",
    )
    assert wait_until_gone(here.api, "nobody").warnings == ()


def test_a_wait_of_two_minutes_asks_less_than_fifteen_times(world: Worlds) -> None:
    here = world({"provision_s": 120})
    ask(here, "t1")
    before = len(here.emulator.requests)
    wait_until_ready(here.api, "t1", zone=HERE)
    assert len(here.emulator.requests) - before < 15


def test_what_is_ready_already_is_said_at_once(world: Worlds) -> None:
    here = world()
    ask(here, "t1")
    here.clock.sleep(300)
    waited = wait_until_ready(here.api, "t1")
    assert waited.seconds == 0
    assert report.render_waited(waited) == f"t1 in {HERE} is already ready on 1 worker."


def test_the_timeout_is_kept_and_says_how_to_go_on(world: Worlds) -> None:
    here = world({"provision_s": 600})
    ask(here, "t1")
    began = here.clock.now()
    with pytest.raises(DeadlineError, match="CREATING, not ready, after 1m 35s") as late:
        wait_until_ready(here.api, "t1", timeout_s=95)
    assert (here.clock.now() - began).total_seconds() == pytest.approx(95, abs=1)
    assert late.value.exit_code == 3
    assert f"tpuctl wait t1 --zone {HERE} --for ready" in str(late.value.hint)


@pytest.mark.parametrize("days", [-1, 1])
def test_the_timeout_is_kept_by_a_laptop_whose_clock_is_wrong(world: Worlds, days: int) -> None:
    here = world({"provision_s": 600})
    ask(here, "t1")
    for wait_until in (wait_until_ready, wait_until_gone):
        began = here.clock.now()
        with pytest.raises(DeadlineError, match="after 1m 35s"):
            wait_until(here.connect(wrong_by=timedelta(days=days)), "t1", timeout_s=95)
        assert (here.clock.now() - began).total_seconds() == pytest.approx(95, abs=1)


def test_waiting_for_what_is_dead_ends_at_once(world: Worlds) -> None:
    here = world({"faults": [{"on": "node", "event": "preempt", "at_s": 200}]})
    ask(here, "t1", spot=True)
    here.clock.sleep(300)
    with pytest.raises(WrongStateError, match="PREEMPTED and will not become ready") as dead:
        wait_until_ready(here.api, "t1")
    assert f"tpuctl delete t1 --zone {HERE}" in str(dead.value.hint)


def test_waiting_for_what_vanishes_while_it_is_made_says_so(world: Worlds) -> None:
    here = world({"faults": [{"on": "create_node", "error": "stockout", "after_s": 20}]})
    ask(here, "t1")
    with pytest.raises(WrongStateError, match=f"t1 vanished in {HERE} while it was CREATING"):
        wait_until_ready(here.api, "t1")


def test_waiting_for_a_queued_resource_ends_with_its_node(world: Worlds) -> None:
    here = world({"zones": {HERE: {"capacity_chips": 8}}, "delete_s": 30})
    ask(here, "first")
    here.clock.sleep(200)
    queue(here, "second")
    here.clock.sleep(60)
    here.api.delete_node("first", zone=HERE)
    waited = wait_until_ready(here.api, "second", timeout_s=1000)
    assert waited.tpu
    assert waited.tpu.queued_resource == "second"


def test_waiting_for_a_failed_queued_resource_ends_with_the_reason(world: Worlds) -> None:
    fault = {"on": "create_queued_resource", "error": "stockout", "where": "operation"}
    here = world({"faults": [fault]})
    queue(here, "q1")
    with pytest.raises(WrongStateError, match=f"q1 in {HERE} is FAILED"):
        wait_until_ready(here.api, "q1", timeout_s=1000)


def test_waiting_for_nothing_is_not_found_and_gone_is_true_at_once(world: Worlds) -> None:
    here = world()
    with pytest.raises(NotFoundError):
        wait_until_ready(here.api, "t1")
    assert wait_until_gone(here.api, "t1").tpu is None


def test_gone_is_reached_when_the_deletion_has_ended(world: Worlds) -> None:
    here = world({"delete_s": 45})
    ask(here, "t1")
    here.clock.sleep(200)
    here.api.delete_node("t1", zone=HERE)
    waited = wait_until_gone(here.api, "t1")
    assert 45 <= waited.seconds <= 55
    assert report.render_waited(waited).startswith(f"t1 in {HERE} is gone, after")


def test_another_of_the_same_name_does_not_keep_gone_waiting(world: Worlds) -> None:
    here = world({"delete_s": 5})
    ask(here, "t1")
    here.clock.sleep(200)

    def recreate(_: Progress) -> None:
        if sent(here, "delete_node") == []:
            here.api.delete_node("t1", zone=HERE)
            here.clock.sleep(6)
            ask(here, "t1")

    assert wait_until_gone(here.api, "t1", on_progress=recreate, timeout_s=60).tpu is None


def test_gone_is_not_believed_while_a_zone_is_silent(world: Worlds) -> None:
    away = {"on": "list_nodes", "zone": FAR, "error": "unavailable", "every": True}
    here = world({"faults": [away]})
    with pytest.raises(UnavailableError):
        wait_until_gone(here.api, "t1")


def test_wait_on_the_command_line_ends_ready_gone_or_late(
    world: Worlds, tpuctl: Callable[..., Any]
) -> None:
    slow = world({"time_scale": 500, "provision_s": 1e6}, real_time=True)
    ask(slow, "t1")
    late = tpuctl("wait", "t1", "--timeout", "20s", "--json")
    assert (late.exit_code, late.document["errors"][0]["code"]) == (3, "deadline")
    here = world({"time_scale": 500, "provision_s": 40, "delete_s": 20}, real_time=True)
    ask(here, "t1")
    ready = tpuctl("wait", "t1", "--json")
    assert (ready.exit_code, ready.data["reached"], ready.data["tpu"]["name"]) == (0, "ready", "t1")
    here.api.delete_node("t1", zone=HERE)
    gone = tpuctl("wait", "t1", "--for", "gone", "--json")
    assert (gone.exit_code, gone.data["reached"], gone.data["tpu"]) == (0, "gone", None)


@pytest.mark.parametrize(
    "words", [("t1", "--for", "lunch"), ("t1", "--timeout", "5"), (), ("t1", "--timeout", "-3s")]
)
def test_wait_refuses_what_it_cannot_mean(
    world: Worlds, tpuctl: Callable[..., Any], words: tuple[str, ...]
) -> None:
    here = world()
    result = tpuctl("wait", "--json", *words)
    assert result.exit_code in (1, 2)
    assert result.document["errors"]
    assert here.emulator.requests == []
