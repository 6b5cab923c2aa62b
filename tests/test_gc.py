"""`gc`: everything that nobody needs any more, and nothing else."""

import random
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests import contract
from tests.cloud_world import CloudWorld
from tests.tpus import FAR, HERE, ask, ask_with_ttl, journal_in, nodes_of, queue, remember, sent
from tpuctl.cloud.gc import GcResult, delete_orphans, find_orphans, why_orphaned
from tpuctl.cloud.journal import Journal
from tpuctl.cloud.lookup import ResourceGroup
from tpuctl.cloud.models import LABEL_TTL_S
from tpuctl.reporters.display import text_of

Worlds = Callable[..., CloudWorld]


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return journal_in(tmp_path)


def found(world: CloudWorld, journal: Journal) -> dict[str, str]:
    """The names of what `gc` finds, and why."""
    return {find.name: find.reason for find in find_orphans(world.api, journal=journal).found}


def collect(world: CloudWorld, journal: Journal) -> GcResult:
    """Find and delete."""
    leftovers = find_orphans(world.api, journal=journal)
    return delete_orphans(world.api, leftovers, journal=journal)


def dying(*names: str, at_s: float = 600, event: str = "preempt") -> list[dict[str, Any]]:
    return [{"on": "node", "name": name, "event": event, "at_s": at_s} for name in names]


def test_the_dead_the_expired_and_the_given_up_are_found_and_the_living_are_not(
    world: Worlds, journal: Journal, golden: Callable[[str, str], None]
) -> None:
    here = world({"faults": dying("dead", "spare")})
    ask(here, "alive")
    ask(here, "dead", spot=True)
    ask_with_ttl(journal, here, "expired", 3600)
    ask_with_ttl(journal, here, "not-yet", 14400)
    remember(journal, here, ask(here, "zombie", zone=FAR), phase="abandoned")
    remember(journal, here, ask(here, "ours"), phase="ready")
    queue(here, "spare")
    here.clock.sleep(7200)
    leftovers = find_orphans(here.api, journal=journal)
    assert {find.name for find in leftovers.found} == {"dead", "expired", "zombie", "spare"}
    assert (leftovers.status, leftovers.exit_code, leftovers.acted) == ("attention", 0, False)
    golden("gc.txt", text_of(leftovers) + "\n")
    assert "PREE" in text_of(leftovers, 44)


def test_gc_deletes_what_it_found_and_says_what_that_freed(world: Worlds, journal: Journal) -> None:
    here = world({"faults": dying("dead")})
    ask(here, "alive")
    ask(here, "dead", spot=True)
    ask_with_ttl(journal, here, "expired", 3600)
    here.clock.sleep(7200)
    ended = collect(here, journal)
    assert {find.name: find.action for find in ended.found} == {
        "dead": "deleted",
        "expired": "deleted",
    }
    assert (ended.freed_chips, ended.saved_usd_per_hour) == (16, 9.6)
    assert (ended.status, ended.exit_code) == ("ok", 0)
    assert nodes_of(here) == {"alive": "READY"}
    assert collect(here, journal).found == ()


def test_a_dead_node_in_a_suspended_queued_resource_is_one_find(
    world: Worlds, journal: Journal
) -> None:
    here = world({"faults": dying("q1")})
    queue(here, "q1", spot=True)
    here.clock.sleep(1200)
    (find,) = find_orphans(here.api, journal=journal).found
    assert (find.name, find.chips, find.kind) == ("q1", 8, "node")
    assert "PREEMPTED" in find.reason
    assert "SUSPENDED" in find.reason
    collect(here, journal)
    after = here.emulator.advance()
    assert (after.nodes, after.queued) == ({}, {})


def test_a_queued_resource_that_failed_is_found_with_its_reason(
    world: Worlds, journal: Journal
) -> None:
    fault = {"on": "create_queued_resource", "error": "stockout", "where": "operation"}
    here = world({"faults": [fault]})
    queue(here, "q1")
    queue(here, "q2")
    here.clock.sleep(300)
    reasons = found(here, journal)
    assert set(reasons) == {"q1"}
    assert "FAILED" in reasons["q1"]
    collect(here, journal)
    assert {key.name for key in here.emulator.advance().queued} == {"q2"}


def test_one_failure_among_many_stops_no_other(world: Worlds, journal: Journal) -> None:
    names = [f"t{number}" for number in range(10)]
    fault = {"on": "delete_node", "name": "t4", "error": "permission", "every": True}
    here = world({"faults": [fault, *dying(*names)]})
    for name in names:
        ask(here, name)
    here.clock.sleep(1200)
    ended = collect(here, journal)
    actions = {find.name: find.action for find in ended.found}
    assert actions.pop("t4") == "failed"
    assert set(actions.values()) == {"deleted"}
    assert (ended.status, ended.exit_code) == ("partial", 1)
    assert [error.code for error in ended.failures] == ["permission_denied"]
    assert nodes_of(here) == {"t4": "PREEMPTED"}


def test_what_was_made_anew_since_it_was_found_is_left_alone(
    world: Worlds, journal: Journal
) -> None:
    here = world({"faults": dying("t1")})
    ask(here, "t1")
    here.clock.sleep(1200)
    leftovers = find_orphans(here.api, journal=journal)
    collect(here, journal)
    ask(here, "t1")
    here.clock.sleep(300)
    ended = delete_orphans(here.api, leftovers, journal=journal)
    assert [find.action for find in ended.found] == ["replaced"]
    assert (ended.freed_chips, nodes_of(here)) == (0, {"t1": "READY"})


def test_a_life_time_that_was_prolonged_since_is_respected(world: Worlds, journal: Journal) -> None:
    here = world()
    request = ask_with_ttl(journal, here, "t1", 3600)
    here.clock.sleep(7200)
    leftovers = find_orphans(here.api, journal=journal)
    for key, node in here.emulator.advance().nodes.items():
        assert key.name == request.name
        node.document["labels"][LABEL_TTL_S] = "36000"
    ended = delete_orphans(here.api, leftovers, journal=journal)
    assert [find.action for find in ended.found] == ["left_alone"]
    assert ended.warnings
    assert nodes_of(here) == {"t1": "READY"}


def test_a_queued_resource_stays_while_one_of_its_nodes_is_needed(world: Worlds) -> None:
    here = world({"faults": dying("dead")})
    ask(here, "dead")
    ask(here, "alive")
    queue(here, "q1")
    here.clock.sleep(1200)
    dead, alive = (here.api.get_node(name, zone=HERE) for name in ("dead", "alive"))
    queued = here.api.get_queued_resource("q1", zone=HERE)

    def reason(*nodes: Any) -> str | None:
        group = ResourceGroup(nodes, queued)
        return why_orphaned(group, now=here.api.clock.now(), abandoned=frozenset())

    assert reason(dead)
    assert reason(dead, alive) is None
    assert reason(alive) is None


def test_what_is_being_deleted_already_is_no_find(world: Worlds, journal: Journal) -> None:
    here = world({"faults": dying("t1"), "delete_s": 600})
    ask(here, "t1")
    here.clock.sleep(1200)
    assert set(found(here, journal)) == {"t1"}
    here.api.delete_node("t1", zone=HERE)
    assert found(here, journal) == {}


def test_a_laptop_whose_clock_is_wrong_by_a_day_judges_by_the_services(
    world: Worlds, journal: Journal
) -> None:
    here = world()
    ask_with_ttl(journal, here, "expired", 3600)
    ask_with_ttl(journal, here, "not-yet", 10800)
    here.clock.sleep(7200)
    for days in (-1, 1):
        api = here.connect(wrong_by=timedelta(days=days))
        seen = find_orphans(api, journal=journal)
        assert [find.name for find in seen.found] == ["expired"]


def test_a_silent_zone_makes_it_partial(world: Worlds, journal: Journal) -> None:
    away = {"on": "list_nodes", "zone": FAR, "error": "unavailable", "every": True}
    here = world({"faults": [away, *dying("t1")]})
    ask(here, "t1")
    here.clock.sleep(1200)
    seen = find_orphans(here.api, journal=journal)
    assert [find.name for find in seen.found] == ["t1"]
    assert (seen.status, seen.unreachable_zones) == ("partial", (FAR,))
    assert FAR in seen.warnings[0]


def test_when_queued_resources_cannot_be_listed_a_node_still_goes_with_its_own(
    world: Worlds, journal: Journal
) -> None:
    fault = {"on": "list_queued_resources", "error": "permission", "every": True}
    here = world({"faults": [fault, *dying("q1")]})
    queue(here, "q1")
    here.clock.sleep(1200)
    ended = collect(here, journal)
    assert [find.action for find in ended.found] == ["deleted"]
    assert ended.exit_code == 1
    after = here.emulator.advance()
    assert (after.nodes, after.queued) == ({}, {})


@pytest.mark.slow
@pytest.mark.parametrize("pairs", [300, pytest.param(1000, marks=pytest.mark.soak)])
def test_all_planted_orphans_among_hundreds_of_objects_and_nothing_else(
    world: Worlds, journal: Journal, pairs: int
) -> None:
    chance = random.Random(4)
    zones = {
        zone: {"capacity_chips": 40_000, "quota_chips": 40_000, "types": ["v5litepod-8"]}
        for zone in (HERE, FAR, "us-west4-a", "us-south1-a")
    }
    dead = {f"n{number}" for number in chance.sample(range(pairs), 20)}
    suspended = {f"q{number}" for number in chance.sample(range(pairs), 15)}
    here = world({"zones": zones, "faults": dying(*dead, *suspended)})
    expired, zombies = set(), set()
    for number in range(pairs):
        seconds, zone = 600 if number % 97 == 0 else 360000, list(zones)[number % 4]
        request = ask_with_ttl(journal, here, f"n{number}", seconds, zone=zone)
        expired |= {request.name} if number % 97 == 0 else set()
        if number % 89 == 0:
            remember(journal, here, request, phase="abandoned")
            zombies.add(request.name)
        queue(here, f"q{number}", zone=list(zones)[number % 4])
    here.clock.sleep(3600)
    planted = dead | suspended | expired | zombies
    assert set(found(here, journal)) == planted
    ended = collect(here, journal)
    assert {find.action for find in ended.found} == {"deleted"}
    everything = {f"{kind}{number}" for kind in "nq" for number in range(pairs)}
    assert set(nodes_of(here)) == everything - planted


def test_gc_on_the_command_line_shows_first_and_acts_with_yes(
    world: Worlds, tpuctl: Callable[..., Any]
) -> None:
    here = world({"time_scale": 500, "delete_s": 20}, real_time=True)
    ask_with_ttl(Journal(), here, "t1", 1)
    tpuctl("wait", "t1")
    shown = tpuctl("gc", "--json")
    assert contract.problems(shown.document, "gc", contract.LEFTOVERS) == []
    assert (shown.exit_code, shown.document["status"]) == (0, "attention")
    assert [find["action"] for find in shown.data["found"]] == ["delete"]
    assert tpuctl("gc", "--yes", "--dry-run").exit_code == 0
    assert sent(here, "delete_node") == []
    assert "tpuctl gc --yes" in tpuctl("gc").stdout
    done = tpuctl("gc", "--yes", "--json")
    assert [find["action"] for find in done.data["found"]] == ["deleted"]
    assert (done.exit_code, done.data["freed_chips"]) == (0, 8)
    assert "Nothing to clean up" in tpuctl("gc").stdout
