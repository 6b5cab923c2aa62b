"""The next command after a crash: what the journal finds out, and what it leaves alone."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.cloud_world import CloudWorld, Worlds
from tpuctl.cloud.api import TpuApi
from tpuctl.cloud.gc import find_orphans
from tpuctl.cloud.journal import DELETED, KEEP_CLOSED, Journal, JournalEntry, new_create_id
from tpuctl.cloud.models import NodeRequest
from tpuctl.cloud.requests import FOUND, SURELY_MISSING, reconcile, zombie_warning

A, B = "us-west4-a", "us-central1-a"
ZONE = {"types": ["v5litepod-8"], "capacity_chips": 16, "quota_chips": 32}
TWO = {"zones": {A: ZONE, B: ZONE}}
KIND, VERSION = "v5litepod-8", "v2-alpha-tpuv5-lite"


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "creates")


def intend(here: CloudWorld, journal: Journal, zone: str = A, **more: Any) -> JournalEntry:
    known = {"name": "t1", "zone": zone, "kind": "node", "accelerator_type": KIND}
    place = {"project": here.api.project, "endpoint": here.api.endpoint}
    entry = JournalEntry(create_id=new_create_id(), **{**known, **place, **more})
    journal.intend(entry)
    return entry


def send(here: CloudWorld, entry: JournalEntry) -> None:
    request = NodeRequest(entry.name, entry.zone, KIND, VERSION, entry.create_id)
    if entry.kind == "queued":
        here.api.create_queued_resource(request)
    else:
        here.api.create_node(request)


def now(journal: Journal, entry: JournalEntry) -> JournalEntry:
    found = journal.find(entry.create_id)
    assert found
    return found


def test_with_nothing_open_no_request_is_made(world: Worlds, journal: Journal) -> None:
    here = world(TWO)
    for phase in ("ready", "closed"):
        intend(here, journal, phase=phase)
    intend(here, journal, project="another")
    intend(here, journal, endpoint="tpu.googleapis.com")
    assert reconcile(here.api, journal) == ()
    assert here.emulator.requests == []


def test_a_request_that_was_never_sent_is_closed_once_it_surely_is_missing(
    world: Worlds, journal: Journal
) -> None:
    here = world(TWO)
    entry = intend(here, journal)
    reconcile(here.api, journal)
    assert now(journal, entry).phase == "intended"
    here.clock.sleep(SURELY_MISSING.total_seconds() - 1)
    reconcile(here.api, journal)
    assert now(journal, entry).phase == "intended"
    here.clock.sleep(1)
    reconcile(here.api, journal)
    assert (now(journal, entry).phase, now(journal, entry).outcome) == ("closed", "gone")


def test_one_that_shows_up_late_is_missing_no_more(world: Worlds, journal: Journal) -> None:
    here = world(TWO)
    entry = intend(here, journal)
    reconcile(here.api, journal)
    send(here, entry)
    reconcile(here.api, journal)
    assert (now(journal, entry).phase, now(journal, entry).missing_since) == ("accepted", None)


@pytest.mark.parametrize("kind", ["node", "queued"])
def test_a_tpu_that_became_ready_after_the_crash_is_found(
    world: Worlds, journal: Journal, kind: str
) -> None:
    here = world(TWO)
    entry = intend(here, journal, kind=kind)
    send(here, entry)
    reconcile(here.api, journal)
    assert now(journal, entry).phase == "accepted"
    here.clock.sleep(200)
    assert reconcile(here.api, journal) == ()
    found = now(journal, entry)
    assert (found.phase, found.outcome) == ("ready", FOUND)
    assert found.node_id == here.api.get_node("t1", zone=A).id


def test_a_deletion_that_was_killed_is_recorded_once_its_tpu_is_gone(
    world: Worlds, journal: Journal
) -> None:
    here = world({**TWO, "provision_s": 0, "delete_s": 10})
    entry = intend(here, journal, phase="ready", outcome="ready")
    send(here, entry)
    here.clock.sleep(1)
    journal.expect_end(entry.create_id, DELETED)
    reconcile(here.api, journal)
    assert (now(journal, entry).phase, now(journal, entry).outcome) == ("ready", DELETED)
    here.api.delete_node("t1", zone=A)
    here.clock.sleep(10)
    reconcile(here.api, journal)
    assert (now(journal, entry).phase, now(journal, entry).outcome) == ("closed", DELETED)


def test_what_was_given_up_and_exists_is_a_zombie_and_not_touched(
    world: Worlds, journal: Journal
) -> None:
    here = world(TWO)
    entry = intend(here, journal, phase="abandoned")
    send(here, entry)
    settled = reconcile(here.api, journal)
    assert [zombie.create_id for zombie in settled] == [entry.create_id]
    assert "tpuctl gc --yes" in zombie_warning(settled[0])
    assert here.requests["delete_node"] == 0
    here.api.delete_node("t1", zone=A)
    here.clock.sleep(60)
    assert reconcile(here.api, journal) == ()


def test_the_others_of_a_race_that_was_won_are_zombies(world: Worlds, journal: Journal) -> None:
    full = {**ZONE, "capacity_chips": 0}
    here = world({"zones": {A: full, B: ZONE}})
    lost = intend(here, journal, A, kind="queued", race="r")
    won = intend(here, journal, B, kind="queued", race="r")
    send(here, lost)
    send(here, won)
    here.clock.sleep(200)
    assert [zombie.zone for zombie in reconcile(here.api, journal)] == [A]
    assert (now(journal, won).phase, now(journal, lost).phase) == ("ready", "abandoned")


def test_of_two_that_won_the_same_race_the_cheaper_stays(world: Worlds, journal: Journal) -> None:
    here = world(TWO)
    dear = intend(here, journal, A, kind="queued", race="r", usd_per_hour=12.48)
    cheap = intend(here, journal, B, kind="queued", race="r", usd_per_hour=9.60)
    for entry in (dear, cheap):
        send(here, entry)
    here.clock.sleep(200)
    assert [zombie.zone for zombie in reconcile(here.api, journal)] == [A]
    assert (now(journal, cheap).phase, now(journal, dear).phase) == ("ready", "abandoned")
    assert [find.zone for find in find_orphans(here.api, journal=journal).found] == [A]


def test_one_that_users_were_told_of_wins_over_a_cheaper_one(
    world: Worlds, journal: Journal
) -> None:
    here = world({"zones": {A: ZONE, B: {**ZONE, "capacity_chips": 0}}})
    first = intend(here, journal, A, kind="queued", race="r", usd_per_hour=12.48)
    send(here, first)
    here.clock.sleep(200)
    reconcile(here.api, journal)
    late = intend(here, journal, B, kind="queued", race="r", usd_per_hour=9.60)
    send(here, late)
    assert [zombie.zone for zombie in reconcile(here.api, journal)] == [B]
    assert now(journal, first).phase == "ready"


def test_one_that_another_command_finds_in_the_same_moment_is_no_bug(
    world: Worlds, tmp_path: Path
) -> None:
    class Beside(Journal):
        reads = 0

        def entries(self, api: TpuApi) -> tuple[JournalEntry, ...]:
            self.reads += 1
            if self.reads == 2:
                self.update(late, phase="ready", outcome=FOUND)
            return super().entries(api)

    here = world(TWO)
    journal = Beside(tmp_path / "creates")
    late = intend(here, journal, A, kind="queued", race="r")
    assert reconcile(here.api, journal) == ()
    assert now(journal, late).phase == "ready"


def test_a_dead_one_wins_no_race(world: Worlds, journal: Journal) -> None:
    taken = {"on": "node", "zone": A, "event": "preempt", "at_s": 150}
    here = world({"zones": {A: ZONE, B: {**ZONE, "capacity_chips": 0}}, "faults": [taken]})
    dead = intend(here, journal, A, kind="queued", race="r")
    waiting = intend(here, journal, B, kind="queued", race="r")
    for entry in (dead, waiting):
        send(here, entry)
    here.clock.sleep(250)
    assert reconcile(here.api, journal) == ()
    assert now(journal, waiting).phase == "accepted"


def test_the_requests_of_a_command_that_still_runs_are_its_own(
    world: Worlds, journal: Journal
) -> None:
    here = world(TWO)
    with journal.session() as session:
        entry = intend(here, journal, session=session, phase="abandoned")
        send(here, entry)
        assert reconcile(here.api, journal) == ()
        assert here.requests["list_nodes"] == 0
    assert len(reconcile(here.api, journal)) == 1


def test_another_tpu_of_the_name_does_not_count(world: Worlds, journal: Journal) -> None:
    here = world(TWO)
    entry = intend(here, journal, phase="abandoned")
    send(here, replace(entry, create_id=new_create_id()))
    assert reconcile(here.api, journal) == ()
    assert now(journal, entry).missing_since == here.clock.now()


def test_a_zone_that_does_not_answer_settles_nothing(world: Worlds, journal: Journal) -> None:
    silent = {"on": "list_nodes", "zone": A, "error": "permission", "every": True}
    here = world({**TWO, "faults": [silent]})
    entries = [intend(here, journal, zone) for zone in (A, B)]
    reconcile(here.api, journal)
    assert [now(journal, entry).missing_since is None for entry in entries] == [True, False]


def test_old_entries_are_forgotten(world: Worlds, journal: Journal) -> None:
    here = world(TWO)
    moment = here.clock.now()
    old = intend(here, journal, phase="closed", closed=moment - KEEP_CLOSED - timedelta(hours=1))
    new = intend(here, journal, phase="closed", closed=moment - timedelta(hours=1))
    intend(here, journal)
    reconcile(here.api, journal)
    assert journal.find(old.create_id) is None
    assert now(journal, new) == new
