"""Create against the emulator, over real gRPC: what is made, what is tried, what is left behind."""

import json
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.cloud_world import CloudWorld, CrowdClock, Worlds
from tpuctl.cloud.api import TpuApi
from tpuctl.cloud.connect import connect
from tpuctl.cloud.create import Created, NotCreated, create
from tpuctl.cloud.journal import Journal
from tpuctl.cloud.models import ALL_ZONES, NodeRequest, Operation
from tpuctl.cloud.placement import complete_plan
from tpuctl.cloud.plan import CreateOptions, plan_create
from tpuctl.errors import (
    InvalidInputError,
    PermissionDeniedError,
    QuotaExceededError,
    StoppedError,
    WriteError,
)
from tpuctl.progress import Progress
from tpuctl.reporters import changes as report

A, B, C = "us-west4-a", "us-central1-a", "us-central1-b"
ZONE = {"types": ["v5litepod-8", "v5litepod-16"], "capacity_chips": 16, "quota_chips": 32}
ONE = {A: ZONE}
TWO = {A: ZONE, B: ZONE}


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "creates")


def ask(
    api: TpuApi,
    journal: Journal,
    name: str = "t1",
    *,
    kind: str = "v5e-8",
    zones: tuple[str, ...] = (A, B),
    how: dict[str, Any] | None = None,
    **options: Any,
) -> Created | NotCreated:
    plan = complete_plan(api, plan_create(CreateOptions(name, kind, zones=zones, **options)))
    return create(api, plan, journal=journal, **(how or {}))


def outcomes(result: Created | NotCreated) -> list[tuple[str, str]]:
    return [(attempt.zone, attempt.outcome) for attempt in result.attempts]


def there(world: CloudWorld) -> list[tuple[str, str, str]]:
    """Everything that exists, and so may be billed."""
    nodes = world.api.list_nodes(ALL_ZONES).items
    queued = world.api.list_queued_resources(ALL_ZONES).items
    return [("node", n.zone, n.name) for n in nodes] + [("queued", q.zone, q.name) for q in queued]


def phases(world: CloudWorld, journal: Journal) -> list[str]:
    return sorted(entry.phase for entry in journal.entries(world.api))


def test_a_two_minute_create_takes_fewer_than_twelve_requests(
    world: Worlds, journal: Journal
) -> None:
    here = world({"zones": ONE, "provision_s": 120})
    result = ask(here.api, journal, zones=(A,))
    assert isinstance(result, Created)
    assert (result.state, result.is_usable, result.emulated) == ("READY", True, True)
    assert outcomes(result) == [(A, "ready")]
    assert here.requests["create_node"] == 1
    assert sum(here.requests.values()) < 12
    (entry,) = journal.entries(here.api)
    assert (entry.phase, entry.node_id, entry.created) == ("ready", result.id, result.created)


def test_a_tpu_that_is_ready_but_not_healthy_comes_with_a_warning(
    world: Worlds, journal: Journal
) -> None:
    here = world({"zones": ONE, "faults": [{"on": "node", "event": "worker_down"}]})
    result = ask(here.api, journal, zones=(A,))
    assert outcomes(result) == [(A, "ready")]
    assert "its health is TIMEOUT" in result.warnings[0]


def test_a_queued_create_takes_fewer_than_twelve_requests_as_well(
    world: Worlds, journal: Journal
) -> None:
    here = world({"zones": ONE, "provision_s": 120})
    result = ask(here.api, journal, zones=(A,), queued=True)
    assert isinstance(result, Created)
    assert result.queued_resource == "t1"
    assert sum(here.requests.values()) < 12


def test_every_worker_of_a_slice_has_an_address(world: Worlds, journal: Journal) -> None:
    here = world({"zones": ONE})
    result = ask(here.api, journal, kind="v5e-16", zones=(A,))
    assert isinstance(result, Created)
    assert [bool(worker.internal_ip) for worker in result.workers] == [True] * 4


def test_a_stockout_in_the_operation_leads_to_the_next_zone(
    world: Worlds, journal: Journal
) -> None:
    stockout = {"on": "create_node", "zone": A, "error": "stockout", "after_s": 20}
    here = world({"zones": TWO, "faults": [stockout]})
    result = ask(here.api, journal)
    assert outcomes(result) == [(A, "no_capacity"), (B, "ready")]
    assert "no more capacity" in result.attempts[0].reason
    assert there(here) == [("node", B, "t1")]
    assert phases(here, journal) == ["closed", "ready"]


def test_without_capacity_anywhere_the_exit_code_says_later(
    world: Worlds, journal: Journal
) -> None:
    here = world({"zones": {A: {**ZONE, "capacity_chips": 0}, B: {**ZONE, "capacity_chips": 0}}})
    result = ask(here.api, journal)
    assert isinstance(result, NotCreated)
    assert outcomes(result) == [(A, "no_capacity"), (B, "no_capacity")]
    assert (result.exit_code, result.error.code) == (3, "no_capacity")
    assert "in any of 2 zones: 2 no capacity" in str(result.error)
    assert there(here) == []


def test_quota_is_not_retried_and_waiting_is_not_advised(world: Worlds, journal: Journal) -> None:
    here = world({"zones": {A: {**ZONE, "quota_chips": 0}}})
    result = ask(here.api, journal, zones=(A,))
    assert isinstance(result, NotCreated)
    assert (result.exit_code, result.error.code) == (1, "quota_exceeded")
    assert here.requests["create_node"] == 1
    assert there(here) == []


class QuotaOfTheRegion:
    """The real API, whose quota happens to count for a region."""

    def __init__(self, api: TpuApi, region: str) -> None:
        self._api, self._region = api, region
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._api, name)

    def create_node(self, request: NodeRequest) -> Operation:
        self.asked.append(request.zone)
        if request.zone.startswith(self._region):
            raise QuotaExceededError(
                "Could not create TPU t1: Quota limit 'TPUV5sLitepodPerProjectPerRegionForTPUAPI' "
                f"has been exceeded. Limit: 0 in region {self._region}."
            )
        return self._api.create_node(request)


def test_a_quota_of_the_region_skips_its_other_zones(world: Worlds, journal: Journal) -> None:
    here = world({"zones": {A: ZONE, B: ZONE, C: ZONE}})
    api: Any = QuotaOfTheRegion(here.api, "us-central1")
    result = ask(api, journal, zones=(B, C, A))
    assert outcomes(result) == [(B, "quota_exceeded"), (C, "not_tried"), (A, "ready")]
    assert api.asked == [B, A]
    assert "applies to all of its zones" in result.attempts[1].reason


def test_auto_tries_the_cheapest_zone_first_and_none_without_quota(
    world: Worlds, journal: Journal
) -> None:
    zones = {
        "us-west4-a": ZONE,
        "us-central1-a": {**ZONE, "capacity_chips": 0},
        "us-west1-c": {**ZONE, "spot_quota_chips": 0},
        "us-central2-b": {"types": ["v4-8"]},
    }
    here = world({"zones": zones})
    result = ask(here.api, journal, zones=(), spot=True)
    assert outcomes(result) == [
        ("us-west1-c", "not_tried"),
        ("us-central1-a", "no_capacity"),
        ("us-west4-a", "ready"),
    ]
    assert "quota 0 chips" in result.attempts[0].reason


def test_auto_asks_nowhere_when_it_is_no_use(world: Worlds, journal: Journal) -> None:
    here = world({"zones": {A: {**ZONE, "quota_chips": 4}}})
    result = ask(here.api, journal, zones=())
    assert isinstance(result, NotCreated)
    assert (result.exit_code, result.error.code) == (1, "quota_exceeded")
    assert "us-west4-a: quota 4 chips, and a v5litepod-8 has 8" in str(result.error)
    assert here.requests["create_node"] == 0


def test_auto_says_so_when_no_zone_has_the_type(world: Worlds, journal: Journal) -> None:
    here = world({"zones": {A: {"types": ["v4-8"]}}})
    with pytest.raises(InvalidInputError, match="No zone visible to this project has v5litepod"):
        ask(here.api, journal, zones=())


def test_a_zone_that_our_facts_do_not_know_is_asked(world: Worlds, journal: Journal) -> None:
    here = world({"zones": {"mars-north1-a": ZONE}})
    assert isinstance(ask(here.api, journal, zones=("mars-north1-a",)), Created)
    with pytest.raises(
        InvalidInputError, match="does not have v4-8; it has v5litepod-16, v5litepod-8"
    ):
        ask(here.api, journal, kind="v4-8", zones=("mars-north1-a",))


def test_a_name_that_is_still_being_deleted_is_waited_for(world: Worlds, journal: Journal) -> None:
    here = world({"zones": ONE, "delete_s": 90})
    first = ask(here.api, journal, zones=(A,))
    here.api.delete_node("t1", zone=A)
    second = ask(here.api, journal, zones=(A,))
    assert isinstance(first, Created)
    assert isinstance(second, Created)
    assert second.id != first.id


@pytest.mark.parametrize("event", ["vanish", "preempt"])
def test_what_is_taken_away_while_it_is_created_leads_to_the_next_zone(
    world: Worlds, journal: Journal, event: str
) -> None:
    fault = {"on": "node", "zone": A, "name": "t1", "event": event, "at_s": 60}
    here = world({"zones": TWO, "faults": [fault]})
    result = ask(here.api, journal)
    assert outcomes(result) == [(A, "preempted"), (B, "ready")]
    assert there(here) == [("node", B, "t1")]


@pytest.mark.parametrize("after_accept", [True, False])
@pytest.mark.parametrize("queued", [False, True])
def test_a_lost_reply_makes_one_tpu_and_not_two(
    world: Worlds, journal: Journal, queued: bool, after_accept: bool
) -> None:
    method = "create_queued_resource" if queued else "create_node"
    lost = {"on": method, "error": "unavailable", "after_accept": after_accept, "where": "rpc"}
    here = world({"zones": ONE, "faults": [lost]})
    result = ask(here.api, journal, zones=(A,), queued=queued)
    assert outcomes(result) == [(A, "ready")]
    expected = [("node", A, "t1")] + ([("queued", A, "t1")] if queued else [])
    assert there(here) == expected
    assert phases(here, journal) == ["ready"]


@pytest.mark.parametrize("error", ["internal", "unavailable"])
def test_an_operation_that_fails_for_the_service_is_no_reason_to_end_the_search(
    world: Worlds, journal: Journal, error: str
) -> None:
    fault = {"on": "create_node", "zone": A, "error": error, "where": "operation"}
    here = world({"zones": TWO, "faults": [fault]})
    result = ask(here.api, journal)
    assert outcomes(result) == [(A, "unavailable"), (B, "ready")]
    assert there(here) == [("node", B, "t1")]
    assert phases(here, journal) == ["closed", "ready"]


@pytest.mark.parametrize(
    ("error", "hint"), [("stockout", "--queued"), ("busy", "the same command again")]
)
def test_a_place_in_line_is_advised_only_where_there_is_no_capacity(
    world: Worlds, journal: Journal, error: str, hint: str
) -> None:
    fault = {"on": "create_node", "error": error, "every": True}
    here = world({"zones": TWO, "faults": [fault]})
    result = ask(here.api, journal)
    assert isinstance(result, NotCreated)
    assert (result.exit_code, len(result.attempts)) == (3, 2)
    assert hint in str(result.error.hint)


def test_a_service_that_never_answers_leaves_an_entry_that_says_so(
    world: Worlds, journal: Journal
) -> None:
    down = {"on": "create_node", "error": "unavailable", "every": True}
    here = world({"zones": TWO, "faults": [down]})
    result = ask(here.api, journal)
    assert isinstance(result, NotCreated)
    assert (result.exit_code, result.error.code) == (3, "unavailable")
    assert "is unknown whether" in str(result.error)
    assert outcomes(result) == [(A, "unavailable")]
    assert phases(here, journal) == ["intended"]


def test_a_lost_reply_that_cannot_be_looked_into_stays_in_the_journal(
    world: Worlds, journal: Journal
) -> None:
    lost = {"on": "create_node", "error": "unavailable", "after_accept": True}
    blind = {"on": "get_node", "error": "permission"}
    here = world({"zones": TWO, "faults": [lost, blind]})
    result = ask(here.api, journal)
    assert isinstance(result, NotCreated)
    assert outcomes(result) == [(A, "permission_denied")]
    assert there(here) == [("node", A, "t1")]
    assert phases(here, journal) == ["intended"]


@pytest.mark.parametrize("days", [-1, 1])
def test_a_laptop_whose_clock_is_wrong_by_a_day_changes_nothing(
    world: Worlds, journal: Journal, days: int
) -> None:
    here = world({"zones": ONE})
    api = here.connect(wrong_by=timedelta(days=days))
    result = ask(api, journal, zones=(A,), ttl_s=3600.0)
    assert isinstance(result, Created)
    assert result.expires == result.created + timedelta(hours=1)
    assert abs((here.clock.now() - result.created).total_seconds()) < 200
    assert 100 < result.attempts[0].seconds < 200
    assert result.usd_so_far is not None
    assert 0 < result.usd_so_far < 1
    slow = world({"zones": ONE, "provision_s": 5000})
    late = ask(slow.connect(wrong_by=timedelta(days=days)), journal, zones=(A,))
    assert outcomes(late) == [(A, "deadline")]


def test_past_the_deadline_a_request_is_cancelled_and_the_next_zone_tried(
    world: Worlds, journal: Journal
) -> None:
    here = world({"zones": TWO, "provision_s": 600})
    result = ask(here.api, journal, how={"timeout_s": 100.0})
    assert isinstance(result, NotCreated)
    assert outcomes(result) == [(A, "deadline"), (B, "deadline")]
    assert result.exit_code == 3
    assert "t1 in us-west4-a: it was CREATING after 1m 40s" in str(result.attempts[0].error)
    assert there(here) == []
    assert phases(here, journal) == ["closed", "closed"]


def test_the_first_of_a_race_wins_and_the_others_are_cancelled(
    world: Worlds, journal: Journal
) -> None:
    zones = {A: {**ZONE, "capacity_chips": 0}, B: ZONE, C: {**ZONE, "capacity_chips": 0}}
    here = world({"zones": zones})
    result = ask(here.api, journal, zones=(A, B, C), queued=True)
    assert outcomes(result) == [(A, "cancelled"), (C, "cancelled"), (B, "ready")]
    assert there(here) == [("node", B, "t1"), ("queued", B, "t1")]
    assert phases(here, journal) == ["closed", "closed", "ready"]


def test_a_race_is_not_ended_by_one_that_fails(world: Worlds, journal: Journal) -> None:
    quota = {"on": "create_queued_resource", "zone": A, "error": "quota", "where": "rpc"}
    here = world({"zones": TWO, "faults": [quota]})
    result = ask(here.api, journal, queued=True)
    assert outcomes(result) == [(A, "quota_exceeded"), (B, "ready")]


def test_a_race_goes_on_when_one_reply_stays_unknown(world: Worlds, journal: Journal) -> None:
    down = {"on": "create_queued_resource", "zone": A, "error": "unavailable", "every": True}
    here = world({"zones": TWO, "faults": [down]})
    result = ask(here.api, journal, queued=True)
    assert outcomes(result) == [(A, "unavailable"), (B, "ready")]
    assert phases(here, journal) == ["intended", "ready"]


def test_one_that_is_provisioning_for_ever_is_given_up(world: Worlds, journal: Journal) -> None:
    here = world({"zones": ONE, "provision_s": 1e6})
    result = ask(here.api, journal, zones=(A,), queued=True)
    assert isinstance(result, NotCreated)
    assert outcomes(result) == [(A, "deadline")]
    assert "it was PROVISIONING after 1h" in str(result.error)
    assert there(here) == []


def test_a_login_that_ends_in_mid_create_says_what_may_exist(
    world: Worlds, journal: Journal
) -> None:
    ended = {"on": "get_operation", "error": "permission", "every": True}
    here = world({"zones": TWO, "faults": [ended]})
    with pytest.raises(PermissionDeniedError) as caught:
        ask(here.api, journal)
    assert "t1 was requested and may exist: tpuctl list" in str(caught.value.hint)
    assert phases(here, journal) == ["accepted"]


@pytest.mark.slow
def test_a_queue_that_gives_nothing_in_time_is_left_by_all(world: Worlds, journal: Journal) -> None:
    full = {**ZONE, "capacity_chips": 0}
    here = world({"zones": {A: full, B: full}})
    result = ask(here.api, journal, queued=True, how={"timeout_s": 4000.0})
    assert isinstance(result, NotCreated)
    assert outcomes(result) == [(A, "deadline"), (B, "deadline")]
    assert there(here) == []


def test_a_queue_that_its_create_has_left_behind_ends_by_itself(
    world: Worlds, journal: Journal
) -> None:
    here = world({"zones": {A: {**ZONE, "capacity_chips": 0}}})
    ask(here.api, journal, zones=(A,), queued=True, how={"timeout_s": 60.0, "wait": False})
    here.clock.sleep(1000)
    (queued,) = here.api.list_queued_resources(A).items
    assert queued.is_dead


def test_a_second_create_says_that_the_limits_of_the_first_hold(
    world: Worlds, journal: Journal
) -> None:
    here = world({"zones": ONE})
    ask(here.api, journal, zones=(A,), how={"wait": False})
    result = ask(here.api, journal, zones=(A,), ttl_s=7200.0)
    assert isinstance(result, Created)
    assert result.expires is None
    assert "has no effect" in result.warnings[0]
    assert here.requests["create_node"] == 2


def test_a_dead_tpu_of_that_name_is_named_with_the_command_that_removes_it(
    world: Worlds, journal: Journal
) -> None:
    fault = {"on": "node", "event": "preempt", "at_s": 300}
    here = world({"zones": TWO, "faults": [fault]})
    ask(here.api, journal, zones=(A,))
    here.clock.sleep(600)
    result = ask(here.api, journal)
    assert isinstance(result, NotCreated)
    assert result.error.code == "already_exists"
    assert "is PREEMPTED: it is dead" in str(result.error)
    assert result.error.hint == f"tpuctl delete t1 --zone {A}"
    assert outcomes(result) == [(A, "already_exists")]


def test_a_tpu_of_somebody_else_is_left_alone(world: Worlds, journal: Journal) -> None:
    here = world({"zones": TWO})
    kind, version = "v5litepod-8", "v2-alpha-tpuv5-lite"
    here.api.create_node(NodeRequest("t1", A, kind, version, "theirs"))
    before = here.api.get_node("t1", zone=A)
    result = ask(here.api, journal)
    assert isinstance(result, NotCreated)
    assert result.error.code == "already_exists"
    assert there(here) == [("node", A, "t1")]
    assert here.api.get_node("t1", zone=A).id == before.id
    assert phases(here, journal) == ["closed"]


def test_a_name_that_is_taken_ends_a_race_everywhere(world: Worlds, journal: Journal) -> None:
    here = world({"zones": TWO})
    first = ask(here.api, journal, zones=(B,), queued=True)
    assert isinstance(first, Created)
    result = ask(here.api, Journal(journal.folder / "other laptop"), queued=True)
    assert isinstance(result, NotCreated)
    assert result.error.code == "already_exists"
    assert outcomes(result) == [(B, "already_exists"), (A, "cancelled")]
    assert there(here) == [("node", B, "t1"), ("queued", B, "t1")]


def test_without_waiting_the_accepted_request_is_shown_and_journalled(
    world: Worlds, journal: Journal
) -> None:
    here = world({"zones": TWO})
    result = ask(here.api, journal, how={"wait": False})
    assert isinstance(result, Created)
    assert (result.state, outcomes(result)) == ("CREATING", [(A, "accepted")])
    queued = ask(here.api, journal, "t2", queued=True, how={"wait": False})
    assert isinstance(queued, Created)
    assert outcomes(queued) == [(A, "accepted"), (B, "accepted")]
    assert queued.queued_resource == "t2"
    assert (result.warnings, len(queued.warnings)) == ((), 1)
    assert "queued in 2 zones, and every TPU that is granted costs money" in queued.warnings[0]
    here.clock.sleep(3600)
    late = ask(here.api, journal, "t3", queued=True, how={"wait": False})
    assert isinstance(late, Created)
    assert late.usd_so_far == 0.0
    assert "queueing is free" in str(report.render_created(late))
    assert "to cancel it: tpuctl delete t3" in str(report.render_created(late))
    assert phases(here, journal) == ["accepted"] * 5


def test_one_that_fails_before_it_could_be_shown_says_why(world: Worlds, journal: Journal) -> None:
    stockout = {"on": "create_node", "error": "stockout", "after_s": 0}
    here = world({"zones": ONE, "faults": [stockout]})
    result = ask(here.api, journal, zones=(A,), how={"wait": False})
    assert isinstance(result, NotCreated)
    assert outcomes(result) == [(A, "no_capacity")]


def test_where_the_journal_cannot_be_written_nothing_is_asked_for(
    world: Worlds, journal: Journal
) -> None:
    here = world({"zones": ONE})
    plan = complete_plan(here.api, plan_create(CreateOptions("t1", "v5e-8", zones=(A,))))
    journal.folder.write_text("in the way")
    with pytest.raises(WriteError):
        create(here.api, plan, journal=journal)
    assert here.requests["create_node"] == 0


EMULATOR = """
import json, sys
from pathlib import Path
from tpuctl.emulator.service import ScaledClock
from tpuctl.emulator.server import serve
from tests.cloud_world import MORNING
scenario, folder, port = json.loads(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
clock = ScaledClock(MORNING, scenario["time_scale"])
with serve(scenario, clock=clock, folder=folder, port=port) as emulator:
    print(emulator.endpoint, flush=True)
    sys.stdin.read()
"""


class KillableEmulator:
    """An emulator in a process of its own, that can be killed and started again."""

    def __init__(self, scenario: dict[str, Any], folder: Path) -> None:
        self._scenario, self._folder = scenario, folder
        self.kills, self._port = 0, 0
        self.start()

    def start(self) -> None:
        words = [json.dumps(self._scenario), str(self._folder), str(self._port)]
        self._process = subprocess.Popen(
            [sys.executable, "-c", EMULATOR, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout
        self.endpoint = self._process.stdout.readline().strip()
        self._port = int(self.endpoint.rpartition(":")[2])

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()
        self.kills += 1


@pytest.mark.slow
def test_an_emulator_that_is_killed_in_mid_create_is_waited_for(
    journal: Journal, tmp_path: Path
) -> None:
    scenario = {"zones": ONE, "provision_s": 400, "time_scale": 1000}
    emulator = KillableEmulator(scenario, tmp_path / "emulator")

    def kill_once(_: Progress) -> None:
        if not emulator.kills:
            emulator.kill()
            emulator.start()

    api = connect(None, endpoint=emulator.endpoint)
    how = {"on_progress": kill_once, "timeout_s": 1e6}
    result = ask(api, journal, zones=(A,), how=how)
    emulator.kill()
    assert emulator.kills == 2
    assert isinstance(result, Created)
    assert outcomes(result) == [(A, "ready")]
    assert [entry.phase for entry in journal.entries(api)] == ["ready"]


@pytest.mark.slow
@pytest.mark.parametrize("count", [40, pytest.param(200, marks=pytest.mark.soak)])
def test_many_creates_at_once_all_end_in_a_known_state(
    world: Worlds, journal: Journal, count: int
) -> None:
    from concurrent.futures import ThreadPoolExecutor

    fit = count * 3 // 4
    many = {**ZONE, "capacity_chips": 8 * fit, "quota_chips": 8 * 2 * fit}
    clock = CrowdClock()
    limits = {"create_node": fit * 2 // 5}
    here = world({"zones": {A: many}, "rate_limits_per_minute": limits}, clock=clock)

    def one(number: int) -> Created | NotCreated:
        try:
            return ask(here.api, journal, f"t{number}", zones=(A,))
        finally:
            clock.leave()

    with clock.members(count), ThreadPoolExecutor(count) as pool:
        results = list(pool.map(one, range(count)))
    ready = [result for result in results if isinstance(result, Created)]
    assert len(ready) == fit
    assert {r.error.code for r in results if isinstance(r, NotCreated)} == {"no_capacity"}
    assert len(there(here)) == fit
    assert phases(here, journal) == ["closed"] * (count - fit) + ["ready"] * fit


def test_what_is_cancelled_and_takes_long_to_go_is_not_called_uncancelled(
    world: Worlds, journal: Journal
) -> None:
    here = world({"zones": ONE, "provision_s": 1e6, "delete_s": 1e5})

    def interrupt(progress: Progress) -> None:
        if progress.note == "CREATING":
            raise KeyboardInterrupt

    with pytest.raises(StoppedError, match="was cancelled, but is not gone yet") as stopped:
        ask(here.api, journal, zones=(A,), how={"on_progress": interrupt})
    assert "tpuctl gc" in str(stopped.value.hint)
    assert phases(here, journal) == ["abandoned"]


def test_ctrl_c_when_the_tpu_has_become_ready_names_what_costs_money(
    world: Worlds, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    here = world({"zones": ONE})
    monkeypatch.setattr("tpuctl.cloud.create.describe_node", interrupt)
    with pytest.raises(StoppedError, match=f"in {A} is ready, and costs money") as stopped:
        ask(here.api, journal, zones=(A,))
    assert f"--zone {A}" in str(stopped.value.hint)
    assert phases(here, journal) == ["ready"]
