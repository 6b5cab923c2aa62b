"""Settle what earlier commands left open: a crash, a lost reply, a request that was given up."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from tpuctl.cloud import labels
from tpuctl.cloud.api import TpuApi
from tpuctl.cloud.journal import KEEP_CLOSED, Entry, Journal
from tpuctl.cloud.looking import Thing
from tpuctl.cloud.models import Node
from tpuctl.cloud.tpu import describe_node
from tpuctl.errors import NotFoundError, PermissionDeniedError

FOUND = "found"
"""The outcome of an entry whose TPU turned out to be there after its create had ended."""

SURELY_MISSING = timedelta(minutes=5)
"""A request that has not shown by then never will: a request is answered within a minute."""

_ON_THEIR_WAY = frozenset({"CREATING", "STARTING", "RESTARTING", "REPAIRING"})


@dataclass(frozen=True)
class Settled:
    """What the journal knows now; `zombies` were given up and exist all the same."""

    zombies: tuple[Entry, ...] = ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """What costs money and is wanted by nobody."""
        return tuple(
            f"{entry.name} in {entry.zone} was given up and exists all the same; to delete it: "
            "tpuctl gc --yes"
            for entry in self.zombies
        )


def reconcile(api: TpuApi, journal: Journal | None = None) -> Settled:
    """Bring the journal in line with what there is; nothing is ever deleted here.

    Makes no request while nothing is open. Entries that a running command works on are left alone.
    """
    journal = journal or Journal()
    unsettled = [
        entry
        for entry in journal.entries(api)
        if entry.phase not in ("ready", "closed") and not journal.is_alive(entry.session)
    ]
    if not unsettled:
        return Settled()
    there = _things_of(api, unsettled)
    now = api.clock.now()
    settled = [
        _settle(api, journal, entry, there[entry.zone].get(entry.create_id), now)
        for entry in unsettled
        if entry.zone in there
    ]
    known = journal.entries(api)
    _forget_old(journal, known, now)
    winners = _winners(known, settled, there)
    given_up = [
        journal.update(entry, phase="abandoned", outcome="lost the race")
        if entry.phase not in ("abandoned", "closed")
        and winners.get(entry.race, entry.create_id) != entry.create_id
        else entry
        for entry in settled
    ]
    return Settled(tuple(e for e in given_up if e.phase == "abandoned" and not e.missing_since))


def _winners(
    known: Iterable[Entry], settled: Iterable[Entry], there: Mapping[str, Mapping[str, Thing]]
) -> dict[str | None, str]:
    """The request that has won each race: one told of before, or the cheapest that is ready now."""
    fresh = {entry.create_id for entry in settled}
    ready = [entry for entry in known if entry.race and entry.phase == "ready"]
    won = {entry.race: entry.create_id for entry in ready if entry.create_id not in fresh}
    for entry in sorted(ready, key=lambda entry: entry.usd_per_hour or math.inf):
        if entry.create_id in fresh and not there[entry.zone][entry.create_id].is_dead:
            won.setdefault(entry.race, entry.create_id)
    return won


def _things_of(api: TpuApi, entries: Iterable[Entry]) -> dict[str, dict[str, Thing]]:
    """List the zones of some entries, by create id; a zone that does not answer is left out."""
    kinds: dict[str, set[str]] = {}
    for entry in entries:
        kinds.setdefault(entry.zone, set()).add(entry.kind)
    found: dict[str, dict[str, Thing]] = {}
    for zone, wanted in kinds.items():
        try:
            nodes = api.list_nodes(zone)
            silent, things = set(nodes.unreachable_zones), [*_named(nodes.items).items()]
            if "queued" in wanted:
                queued = api.list_queued_resources(zone)
                silent |= set(queued.unreachable_zones)
                things += _named(queued.items).items()
        except (PermissionDeniedError, NotFoundError):
            continue
        if not silent:
            found[zone] = dict(reversed(things))
    return found


def _named(things: Iterable[Thing]) -> Mapping[str, Thing]:
    return {thing.labels[labels.CREATE_ID]: thing for thing in things if is_labelled(thing)}


def is_labelled(thing: Thing) -> bool:
    """Whether a thing carries the id of a create of ours."""
    return labels.CREATE_ID in thing.labels


def _settle(
    api: TpuApi, journal: Journal, entry: Entry, thing: Thing | None, now: datetime
) -> Entry:
    if thing is None:
        if entry.missing_since is None:
            return journal.update(entry, missing_since=now)
        if now - entry.missing_since >= SURELY_MISSING:
            outcome = entry.outcome or "gone"
            return journal.update(entry, phase="closed", outcome=outcome, closed=now)
        return entry
    if entry.phase == "abandoned":
        return journal.update(entry, missing_since=None) if entry.missing_since else entry
    known = {"missing_since": None, "created": thing.created}
    if not isinstance(thing, Node):
        return journal.update(entry, phase="accepted", **known)
    tpu = describe_node(thing, now=now, emulated=api.emulated)
    if tpu.is_usable or thing.state not in {*_ON_THEIR_WAY, "READY"}:
        return journal.update(entry, phase="ready", node_id=thing.id, outcome=FOUND, **known)
    return journal.update(entry, phase="accepted", node_id=thing.id, **known)


def _forget_old(journal: Journal, entries: Iterable[Entry], now: datetime) -> None:
    for entry in entries:
        if entry.phase == "closed" and entry.closed and now - entry.closed > KEEP_CLOSED:
            journal.forget(entry)
