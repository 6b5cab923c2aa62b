"""`delete`: exactly what was meant, whatever the service, the network or somebody else does."""

import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cloud_world import CloudWorld
from tests.tpus import FAR, HERE, ask, journal_in, nodes_of, queue, remember, sent
from tests.waiting import wait_until
from tpuctl.cloud.delete import DeleteResult, TpuDeletion, delete, plan_delete, plan_group_deletion
from tpuctl.cloud.journal import Journal
from tpuctl.cloud.lookup import ResourceGroup
from tpuctl.cloud.models import DataDisk
from tpuctl.errors import NotFoundError, PermissionDeniedError, UsageError
from tpuctl.reporters import changes as report

Worlds = Callable[..., CloudWorld]
Tpuctl = Callable[..., Any]

ONE_LIST_AND_READY_S = 300


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return journal_in(tmp_path)


def ready(world: CloudWorld, *names: str, **options: Any) -> None:
    """Make TPUs, and wait until they are ready."""
    for name in names:
        ask(world, name, **options)
    world.clock.sleep(ONE_LIST_AND_READY_S)


def planned(
    world: CloudWorld, journal: Journal, *names: str, zone: str | None = None
) -> DeleteResult:
    return plan_delete(world.api, names, zone=zone, journal=journal)


def deleted(world: CloudWorld, journal: Journal, *names: str, **options: Any) -> TpuDeletion:
    """Plan and delete one TPU."""
    plan = planned(world, journal, *names)
    (removal,) = delete(world.api, plan, journal=journal, **options).tpus
    return removal


def test_a_plan_says_what_would_go_and_changes_nothing(world: Worlds, journal: Journal) -> None:
    here = world()
    ready(here, "t1", "t2")
    plan = planned(here, journal, "t1", "t2", "t1")
    assert [removal.name for removal in plan.tpus] == ["t1", "t2"]
    assert (plan.saved_usd_per_hour, plan.freed_chips, plan.dry_run) == (19.2, 16, True)
    assert report.delete_question(plan).endswith("Delete these 2 TPUs? This saves $19.20 per hour.")
    assert sent(here, "delete_node") == []


def test_a_deletion_is_followed_to_its_end(world: Worlds, journal: Journal) -> None:
    here = world({"delete_s": 45})
    ready(here, "t1")
    removal = deleted(here, journal, "t1")
    assert removal.outcome == "deleted"
    assert 45 <= removal.seconds <= 55
    assert nodes_of(here) == {}
    assert sent(here, "delete_node") == ["t1"]


def test_a_lost_reply_of_a_delete_deletes_once(world: Worlds, journal: Journal) -> None:
    lost = {"on": "delete_node", "error": "unavailable", "after_accept": True}
    here = world({"faults": [lost]})
    ready(here, "t1")
    assert deleted(here, journal, "t1").outcome == "deleted"
    assert sent(here, "delete_node") == ["t1"]
    assert nodes_of(here) == {}


def test_a_delete_that_never_arrived_is_sent_again(world: Worlds, journal: Journal) -> None:
    here = world({"faults": [{"on": "delete_node", "error": "unavailable"}]})
    ready(here, "t1")
    assert deleted(here, journal, "t1").outcome == "deleted"
    assert sent(here, "delete_node") == ["t1", "t1"]


def test_what_is_made_anew_while_the_reply_is_lost_survives(
    world: Worlds, journal: Journal
) -> None:
    lost = {"on": "delete_node", "error": "unavailable", "after_accept": True}
    here = world({"faults": [lost], "delete_s": 4})
    ready(here, "t1")
    plan = planned(here, journal, "t1")
    (first,) = plan.tpus
    here.api.clock = Meddler(here, after_s=5, act=lambda: ask(here, "t1"))
    (removal,) = delete(here.api, plan, journal=journal).tpus
    assert removal.outcome == "deleted"
    assert "left alone" in str(removal.reason)
    assert sent(here, "delete_node") == ["t1"]
    assert nodes_of(here) == {"t1": "CREATING"}
    assert here.api.get_node("t1", zone=HERE).id != first.group.nodes[0].id


def test_a_slow_delete_that_outlives_a_recreation_leaves_the_new_one_alone(
    world: Worlds, journal: Journal
) -> None:
    here = world({"delete_s": 30})
    ready(here, "t1")
    slow = planned(here, journal, "t1")
    assert deleted(here, journal, "t1").outcome == "deleted"
    ready(here, "t1")
    ended = delete(here.api, slow, journal=journal)
    assert [removal.outcome for removal in ended.tpus] == ["replaced"]
    assert (ended.status, ended.exit_code, ended.saved_usd_per_hour) == ("attention", 0, 0)
    assert "another TPU has its name" in ended.warnings[0]
    assert nodes_of(here) == {"t1": "READY"}
    assert sent(here, "delete_node") == ["t1"]


def test_a_name_that_is_being_deleted_is_waited_for_and_not_deleted_again(
    world: Worlds, journal: Journal
) -> None:
    here = world({"delete_s": 60})
    ready(here, "t1")
    here.api.delete_node("t1", zone=HERE)
    removal = deleted(here, journal, "t1")
    assert removal.outcome == "already_deleted"
    assert removal.seconds >= 50
    assert sent(here, "delete_node") == ["t1"]


def test_a_deletion_that_takes_too_long_goes_on_without_us(world: Worlds, journal: Journal) -> None:
    here = world({"delete_s": 600})
    ready(here, "t1")
    plan = planned(here, journal, "t1")
    ended = delete(here.api, plan, journal=journal, timeout_s=60)
    assert (ended.exit_code, ended.status) == (3, "error")
    (failure,) = ended.failures
    assert failure.code == "deadline"
    assert f"tpuctl wait t1 --zone {HERE} --for gone" in str(failure.hint)
    here.clock.sleep(600)
    assert nodes_of(here) == {}


def test_a_refused_rate_is_waited_out(world: Worlds, journal: Journal) -> None:
    here = world({"rate_limits_per_minute": {"delete_node": 2}})
    ready(here, "t1", "t2", "t3", "t4", "t5")
    plan = planned(here, journal, "t1", "t2", "t3", "t4", "t5")
    ended = delete(here.api, plan, journal=journal)
    assert {removal.outcome for removal in ended.tpus} == {"deleted"}
    assert nodes_of(here) == {}
    assert len(sent(here, "delete_node")) > 5


def test_a_failed_operation_is_a_failure_with_its_reason(world: Worlds, journal: Journal) -> None:
    fault = {"on": "delete_node", "error": "internal", "where": "operation", "name": "t1"}
    here = world({"faults": [fault]})
    ready(here, "t1", "t2")
    ended = delete(here.api, planned(here, journal, "t1", "t2"), journal=journal)
    assert [removal.outcome for removal in ended.tpus] == ["failed", "deleted"]
    assert (ended.status, ended.exit_code) == ("partial", ended.failures[0].exit_code)
    assert nodes_of(here) == {"t1": "READY"}


def test_a_forbidden_delete_says_so(world: Worlds, journal: Journal) -> None:
    here = world({"faults": [{"on": "delete_node", "error": "permission", "every": True}]})
    ready(here, "t1")
    ended = delete(here.api, planned(here, journal, "t1"), journal=journal)
    assert (ended.status, ended.exit_code) == ("error", 1)
    assert isinstance(ended.failures[0], PermissionDeniedError)


@pytest.mark.parametrize("state", ["PREEMPTED", "CREATING", "READY"])
def test_a_tpu_is_deleted_in_whatever_state(world: Worlds, journal: Journal, state: str) -> None:
    here = world({"faults": [{"on": "node", "name": "dead", "event": "preempt", "at_s": 200}]})
    name = "dead" if state == "PREEMPTED" else "t1"
    ask(here, name)
    here.clock.sleep(5 if state == "CREATING" else 300)
    assert nodes_of(here) == {name: state}
    assert deleted(here, journal, name).outcome == "deleted"
    assert nodes_of(here) == {}


def test_a_node_goes_with_its_queued_resource(world: Worlds, journal: Journal) -> None:
    here = world()
    queue(here, "q1")
    here.clock.sleep(300)
    plan = planned(here, journal, "q1")
    assert plan.tpus[0].queued_resource == "q1"
    assert "with its queued resource q1" in report.delete_question(plan)
    (removal,) = delete(here.api, plan, journal=journal).tpus
    assert removal.outcome == "deleted"
    world_now = here.emulator.advance()
    assert (world_now.nodes, world_now.queued) == ({}, {})
    assert sent(here, "delete_node") == []


def test_a_queued_resource_that_waits_is_deleted(world: Worlds, journal: Journal) -> None:
    here = world({"zones": {HERE: {"capacity_chips": 0}}})
    queue(here, "q1")
    here.clock.sleep(60)
    removal = deleted(here, journal, "q1")
    ended = (removal.kind, removal.outcome, removal.usd_per_hour)
    assert ended == ("queued_resource", "deleted", 0)
    assert here.emulator.advance().queued == {}


def test_a_request_that_is_fulfilled_between_the_question_and_yes_goes_too(
    world: Worlds, journal: Journal
) -> None:
    here = world({"zones": {HERE: {"capacity_chips": 8}}, "delete_s": 5})
    ready(here, "first")
    queue(here, "q1")
    here.clock.sleep(60)
    plan = planned(here, journal, "q1")
    assert plan.tpus[0].kind == "queued_resource"
    here.api.delete_node("first", zone=HERE)
    here.clock.sleep(300)
    assert nodes_of(here) == {"q1": "READY"}
    delete(here.api, plan, journal=journal)
    world_now = here.emulator.advance()
    assert (world_now.nodes, world_now.queued) == ({}, {})


def test_the_end_is_noted_in_the_journal_and_a_repeat_is_no_error(
    world: Worlds, journal: Journal
) -> None:
    here = world()
    request = ask(here, "t1")
    remember(journal, here, request, phase="ready")
    here.clock.sleep(300)
    deleted(here, journal, "t1")
    entry = journal.find(request.create_id)
    assert entry
    assert (entry.phase, entry.outcome) == ("closed", "deleted")
    for zone in (None, HERE):
        again = planned(here, journal, "t1", zone=zone)
        assert (again.tpus, again.exit_code, again.status) == ((), 0, "ok")
        assert report.render_deletion(again) == f"Already deleted: t1 in {HERE}"
    with pytest.raises(NotFoundError, match=FAR):
        planned(here, journal, "t1", zone=FAR)


def test_one_name_among_several_that_is_nowhere_stops_no_other(
    world: Worlds, journal: Journal
) -> None:
    here = world()
    ready(here, "t1")
    plan = planned(here, journal, "t1", "nobody")
    assert [error.code for error in plan.failures] == ["not_found"]
    ended = delete(here.api, plan, journal=journal)
    assert (ended.status, ended.exit_code) == ("partial", 1)
    assert nodes_of(here) == {}


def test_all_deletes_everything_in_the_zone_and_nothing_elsewhere(
    world: Worlds, journal: Journal
) -> None:
    here = world()
    ready(here, "t1", "t2")
    queue(here, "q1")
    ready(here, "far", zone=FAR)
    plan = plan_delete(here.api, None, zone=HERE, journal=journal)
    assert [removal.name for removal in plan.tpus] == ["q1", "t1", "t2"]
    delete(here.api, plan, journal=journal)
    assert nodes_of(here) == {"far": "READY"}


def test_all_with_a_silent_zone_is_partial(world: Worlds, journal: Journal) -> None:
    away = {"on": "list_nodes", "zone": FAR, "error": "unavailable", "every": True}
    here = world({"faults": [away]})
    ready(here, "t1")
    plan = plan_delete(here.api, None, journal=journal)
    ended = delete(here.api, plan, journal=journal)
    assert (ended.status, ended.unreachable_zones) == ("partial", (FAR,))
    assert FAR in ended.warnings[0]


def test_the_disks_that_stay_behind_are_named_with_the_way_to_delete_them(
    world: Worlds, journal: Journal
) -> None:
    here = world()
    ready(here, "t1")
    node = here.api.get_node("t1", zone=HERE)
    disk = f"projects/practice/zones/{HERE}/disks/photos"
    plan = DeleteResult(
        (plan_group_deletion(ResourceGroup((replace(node, data_disks=(DataDisk(disk),)),))),)
    )
    ended = delete(here.api, plan, journal=journal)
    assert ended.tpus[0].remaining_disks == ("photos",)
    (warning,) = ended.warnings
    assert f"gcloud compute disks delete photos --zone {HERE}" in warning


def test_delete_asks_and_without_a_terminal_says_how(world: Worlds, tpuctl: Tpuctl) -> None:
    here = world()
    ready(here, "t1")
    refused = tpuctl("delete", "t1", "--json")
    (error,) = refused.document["errors"]
    assert (refused.exit_code, error["code"], error["hint"]) == (
        2,
        "usage",
        "Add --yes to the same command.",
    )
    assert nodes_of(here) == {"t1": "READY"}


def test_a_dry_run_deletes_nothing_and_asks_nothing(world: Worlds, tpuctl: Tpuctl) -> None:
    here = world()
    ready(here, "t1")
    result = tpuctl("delete", "t1", "--dry-run")
    assert result.exit_code == 0
    assert result.stdout.startswith(
        f"Would delete t1 in {HERE} (v5litepod-8, READY, $9.60 per hour)"
    )
    assert sent(here, "delete_node") == []


def test_only_a_dry_run_calls_itself_one(world: Worlds, tpuctl: Tpuctl) -> None:
    world()
    asked, acted = (
        tpuctl("delete", "--all", word, "--json").data for word in ("--dry-run", "--yes")
    )
    assert (asked["dry_run"], acted["dry_run"], acted["tpus"]) == (True, False, [])


def test_delete_on_the_command_line_waits_until_it_is_gone(world: Worlds, tpuctl: Tpuctl) -> None:
    here = world({"time_scale": 500, "delete_s": 20}, real_time=True)
    ask(here, "t1")
    result = tpuctl("delete", "t1", "--yes", "--json")
    assert result.exit_code == 0, result.stdout
    assert [tpu["outcome"] for tpu in result.data["tpus"]] == ["deleted"]
    assert nodes_of(here) == {}
    again = tpuctl("delete", "t1", "--yes", "--zone", HERE, "--json")
    (error,) = again.document["errors"]
    assert (again.exit_code, error["code"]) == (1, "not_found")
    assert HERE in error["message"]


@pytest.mark.parametrize("words", [(), ("t1", "--all")])
def test_names_or_all_but_not_both_and_not_neither(
    world: Worlds, tpuctl: Tpuctl, words: tuple[str, ...]
) -> None:
    here = world()
    result = tpuctl("delete", "--yes", "--json", *words)
    assert (result.exit_code, result.document["errors"][0]["code"]) == (2, UsageError.code)
    assert here.emulator.requests == []


def test_there_is_nothing_to_delete(world: Worlds, tpuctl: Tpuctl) -> None:
    world()
    result = tpuctl("delete", "--all", "--yes")
    assert (result.exit_code, result.stdout) == (0, "Nothing to delete.\n")


@pytest.mark.slow
def test_ctrl_c_leaves_the_deletion_going_and_the_same_command_follows_it(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRPC_VERBOSITY", "NONE")
    from tests.watch_world import JumpingClock

    clock = JumpingClock(scale=20)
    slow = {"time_scale": 20, "provision_s": 1, "delete_s": 1e5}
    here = world(slow, clock=clock, real_time=True)
    ask(here, "t1")
    ask(here, "t2")
    command = [sys.executable, "-m", "tpuctl", "delete", "t1", "t2", "--yes", "--zone", HERE]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: len(sent(here, "delete_node")) == 2)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130
    assert "run the same command again to follow it" in said
    assert set(nodes_of(here).values()) == {"DELETING"}
    before = here.requests.total()
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as again:
        wait_until(lambda: here.requests.total() >= before + 12)
        clock.jump(1e5)
        assert again.wait(120) == 0
    assert nodes_of(here) == {}
    assert len(sent(here, "delete_node")) == 2


class Meddler:
    """The service's clock, during whose first sleep somebody else acts."""

    def __init__(self, world: CloudWorld, *, after_s: float, act: Callable[[], object]) -> None:
        self._clock, self._after_s, self._act = world.api.clock, after_s, act
        self._has_acted = False

    def now(self) -> Any:
        return self._clock.now()

    def sleep(self, seconds: float) -> None:
        if self._has_acted or seconds < self._after_s:
            self._clock.sleep(seconds)
            return
        self._has_acted = True
        self._clock.sleep(self._after_s)
        self._act()
        self._clock.sleep(seconds - self._after_s)
