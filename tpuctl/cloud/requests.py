"""Giving up requests: a request that nobody wants any more is cancelled, and seen to be gone."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from tpuctl.cloud.api import TpuApi
from tpuctl.cloud.journal import KEEP_CLOSED, Journal, JournalEntry, new_create_id
from tpuctl.cloud.lookup import Resource
from tpuctl.cloud.models import LABEL_CREATE_ID, Node, NodeRequest, Operation
from tpuctl.cloud.plan import CreatePlan, Offer, request_for
from tpuctl.cloud.retry import Polling
from tpuctl.cloud.tpu import describe_node
from tpuctl.errors import (
    AlreadyExistsError,
    DeadlineError,
    NotFoundError,
    PermissionDeniedError,
    TpuctlError,
    UnavailableError,
)

TIMEOUT_S = 300.0
"""How long a cancelled request is watched; after that the journal and `gc` look after it."""


def cancel(
    api: TpuApi,
    journal: Journal,
    entries: Iterable[JournalEntry],
    *,
    outcome: str,
    timeout_s: float = TIMEOUT_S,
) -> tuple[JournalEntry, ...]:
    """Cancel requests, and return those that could not be seen to be gone in time.

    The journal says first that they are unwanted. Identity is read right before every deletion:
    whatever else bears such a name is left alone.
    """
    left = [journal.update(entry, phase="abandoned", outcome=outcome) for entry in entries]
    polling = Polling(api.clock, timeout_s=timeout_s)
    while True:
        looked_at = [_cancel(api, journal, entry) for entry in left]
        left = [entry for entry in looked_at if entry]
        if not left:
            return ()
        try:
            polling.pause("", hint="")
        except DeadlineError:
            return tuple(left)


def _cancel(api: TpuApi, journal: Journal, entry: JournalEntry) -> JournalEntry | None:
    """Ask for the deletion of what a request made, unless that is under way; None when it is gone.

    What the service answers does not matter: the next look shows what it has done.
    """
    try:
        there = read_named(api, entry)
        if there is None or not is_of(there, entry):
            return _missing(api, journal, entry)
        if there.state == "DELETING":
            return entry
        if entry.kind == "queued":
            api.delete_queued_resource(entry.name, zone=entry.zone, force=True)
        else:
            api.delete_node(entry.name, zone=entry.zone)
    except TpuctlError:
        pass
    return entry


def _missing(api: TpuApi, journal: Journal, entry: JournalEntry) -> JournalEntry | None:
    """Believe at once that an accepted request is gone; one just sent may show a moment later."""
    now = api.clock.now()
    if entry.operation or entry.created:
        journal.update(entry, phase="closed", closed=now)
        return None
    if entry.missing_since is None:
        return journal.update(entry, missing_since=now)
    return None


FOUND = "found"
"""The outcome of an entry whose TPU turned out to be there after its create had ended."""

SURELY_MISSING = timedelta(minutes=5)
"""A request that has not shown by then never will: a request is answered within a minute."""

_ON_THEIR_WAY = frozenset({"CREATING", "STARTING", "RESTARTING", "REPAIRING"})


@dataclass(frozen=True)
class Reconciled:
    """What the journal knows now; `zombies` were given up and exist all the same."""

    zombies: tuple[JournalEntry, ...] = ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """What costs money and is wanted by nobody."""
        return tuple(
            f"{entry.name} in {entry.zone} was given up and exists all the same; to delete it: "
            "tpuctl gc --yes"
            for entry in self.zombies
        )


def reconcile(api: TpuApi, journal: Journal | None = None) -> Reconciled:
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
        return Reconciled()
    there = _resources_of(api, unsettled)
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
    return Reconciled(tuple(e for e in given_up if e.phase == "abandoned" and not e.missing_since))


def _winners(
    known: Iterable[JournalEntry],
    settled: Iterable[JournalEntry],
    there: Mapping[str, Mapping[str, Resource]],
) -> dict[str | None, str]:
    """The request that has won each race: one told of before, or the cheapest that is ready now."""
    fresh = {entry.create_id for entry in settled}
    ready = [entry for entry in known if entry.race and entry.phase == "ready"]
    won = {entry.race: entry.create_id for entry in ready if entry.create_id not in fresh}
    for entry in sorted(ready, key=lambda entry: entry.usd_per_hour or math.inf):
        if entry.create_id in fresh and not there[entry.zone][entry.create_id].is_dead:
            won.setdefault(entry.race, entry.create_id)
    return won


def _resources_of(api: TpuApi, entries: Iterable[JournalEntry]) -> dict[str, dict[str, Resource]]:
    """List the zones of some entries, by create id; a zone that does not answer is left out."""
    kinds: dict[str, set[str]] = {}
    for entry in entries:
        kinds.setdefault(entry.zone, set()).add(entry.kind)
    found: dict[str, dict[str, Resource]] = {}
    for zone, wanted in kinds.items():
        try:
            nodes = api.list_nodes(zone)
            silent, resources = set(nodes.unreachable_zones), [*_named(nodes.items).items()]
            if "queued" in wanted:
                queued = api.list_queued_resources(zone)
                silent |= set(queued.unreachable_zones)
                resources += _named(queued.items).items()
        except (PermissionDeniedError, NotFoundError):
            continue
        if not silent:
            found[zone] = dict(reversed(resources))
    return found


def _named(resources: Iterable[Resource]) -> Mapping[str, Resource]:
    return {
        resource.labels[LABEL_CREATE_ID]: resource
        for resource in resources
        if is_labelled(resource)
    }


def is_labelled(resource: Resource) -> bool:
    """Whether a resource carries the id of a create of ours."""
    return LABEL_CREATE_ID in resource.labels


def _settle(
    api: TpuApi, journal: Journal, entry: JournalEntry, resource: Resource | None, now: datetime
) -> JournalEntry:
    if resource is None:
        if entry.missing_since is None:
            return journal.update(entry, missing_since=now)
        if now - entry.missing_since >= SURELY_MISSING:
            outcome = entry.outcome or "gone"
            return journal.update(entry, phase="closed", outcome=outcome, closed=now)
        return entry
    if entry.phase == "abandoned":
        return journal.update(entry, missing_since=None) if entry.missing_since else entry
    known = {"missing_since": None, "created": resource.created}
    if not isinstance(resource, Node):
        return journal.update(entry, phase="accepted", **known)
    tpu = describe_node(resource, now=now, emulated=api.emulated)
    if tpu.is_usable or resource.state not in {*_ON_THEIR_WAY, "READY"}:
        return journal.update(entry, phase="ready", node_id=resource.id, outcome=FOUND, **known)
    return journal.update(entry, phase="accepted", node_id=resource.id, **known)


def _forget_old(journal: Journal, entries: Iterable[JournalEntry], now: datetime) -> None:
    for entry in entries:
        if entry.phase == "closed" and entry.closed and now - entry.closed > KEEP_CLOSED:
            journal.forget(entry)


_MOST_LOST_REPLIES = 4
_SAME = ("name", "zone", "kind", "project", "endpoint", "accelerator_type", "spot")


def submit(
    api: TpuApi,
    journal: Journal,
    plan: CreatePlan,
    offer: Offer,
    *,
    session: str,
    timeout_s: float,
    valid_for_s: float | None = None,
    race: str | None = None,
) -> JournalEntry:
    """Ask for a TPU in one zone; returns the entry of the request that was accepted.

    A place in a queue is given up by the service itself after `valid_for_s`. The entry may be that
    of an interrupted create of the same TPU. Raises what the service answers;
    UnavailableError leaves the entry open, because nobody knows whether the TPU was made.
    """
    request = request_for(plan, offer, project=api.project, create_id=new_create_id())
    entry = _entry(api, plan, offer, request.create_id, session=session, race=race)
    journal.intend(entry)
    try:
        return _send(api, journal, entry, lambda: _ask(api, entry, request, valid_for_s), timeout_s)
    except UnavailableError as error:
        raise UnavailableError(
            f"{str(error).rstrip('.')}. Whether {entry.name} was made there is not known.",
            hint="The next command of tpuctl finds out: tpuctl list",
        ) from error


def _entry(
    api: TpuApi, plan: CreatePlan, offer: Offer, create_id: str, *, session: str, race: str | None
) -> JournalEntry:
    return JournalEntry(
        create_id=create_id,
        name=plan.name,
        zone=offer.zone,
        kind="queued" if plan.queued else "node",
        project=api.project,
        endpoint=api.endpoint,
        accelerator_type=plan.accelerator_type,
        spot=plan.spot,
        usd_per_hour=offer.usd_per_hour,
        session=session,
        race=race,
    )


def read_named(api: TpuApi, entry: JournalEntry) -> Resource | None:
    """Read whatever bears the name of a request now; None when nothing does."""
    try:
        if entry.kind == "queued":
            return api.get_queued_resource(entry.name, zone=entry.zone)
        return api.get_node(entry.name, zone=entry.zone)
    except NotFoundError:
        return None


def is_of(resource: Resource, entry: JournalEntry) -> bool:
    """Whether a resource was made by this very request."""
    return resource.labels.get(LABEL_CREATE_ID) == entry.create_id


def _send(
    api: TpuApi,
    journal: Journal,
    entry: JournalEntry,
    ask: Callable[[], Operation],
    timeout_s: float,
) -> JournalEntry:
    polling, lost = None, 0
    while True:
        try:
            return journal.update(entry, phase="accepted", operation=ask().name)
        except (AlreadyExistsError, UnavailableError) as error:
            refusal = error
        except TpuctlError as error:
            # After a lost reply nothing is sure: then the next command finds out what there is.
            if not lost:
                journal.close(entry.create_id, error.code, at=api.clock.now())
            raise
        there = read_named(api, entry)
        if there and is_of(there, entry):
            return journal.update(entry, phase="accepted", created=there.created)
        if there and there.state != "DELETING":
            return _adopt(api, journal, entry, there)
        lost += isinstance(refusal, UnavailableError)
        # Only now: before the first reply the service's time is not known.
        polling = polling or Polling(api.clock, timeout_s=timeout_s)
        try:
            polling.pause("", hint="")
        except DeadlineError:
            raise refusal from None
        if lost >= _MOST_LOST_REPLIES:
            raise refusal


def _ask(
    api: TpuApi, entry: JournalEntry, request: NodeRequest, valid_for_s: float | None
) -> Operation:
    if entry.kind == "queued":
        return api.create_queued_resource(request, valid_for_s=valid_for_s)
    return api.create_node(request)


def _adopt(api: TpuApi, journal: Journal, entry: JournalEntry, there: Resource) -> JournalEntry:
    """Go on with what an interrupted create began, or one gave up but could not delete.

    Raises AlreadyExistsError for any other TPU.
    """
    earlier = journal.find(there.labels.get(LABEL_CREATE_ID, ""))
    if earlier and _is_interrupted(journal, earlier) and _is_alike(earlier, entry):
        journal.forget(entry)
        return journal.update(
            earlier,
            phase="accepted",
            outcome=None,
            missing_since=None,
            created=there.created,
            session=entry.session,
            race=entry.race,
        )
    journal.close(entry.create_id, AlreadyExistsError.code, at=api.clock.now())
    command = f"{entry.name} --zone {entry.zone}"
    if there.is_dead:
        raise AlreadyExistsError(
            f"{entry.name} in {entry.zone} is {there.state}: it is dead, and holds its name and "
            "quota until it is deleted.",
            hint=f"tpuctl delete {command}",
        )
    raise AlreadyExistsError(
        f"There is a TPU {entry.name} in {entry.zone} already; it is {there.state}.",
        hint=f"tpuctl show {command}",
    )


def _is_interrupted(journal: Journal, entry: JournalEntry) -> bool:
    """Whether nobody follows it, and nobody was told that it is ready."""
    was_told = entry.phase == "ready" and entry.outcome != FOUND
    return not was_told and not journal.is_alive(entry.session)


def _is_alike(one: JournalEntry, other: JournalEntry) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in _SAME)
