"""The life of a create request: sent, cancelled, and reconciled after a crash."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

from tpuctl.cloud.api import TpuApi
from tpuctl.cloud.journal import KEEP_CLOSED, Journal, JournalEntry, new_create_id
from tpuctl.cloud.lookup import Resource, attempt, read_optional
from tpuctl.cloud.models import INCOMPLETE, LABEL_CREATE_ID, Node, Operation, QueuedResource
from tpuctl.cloud.plan import CreatePlan, Offer, request_for
from tpuctl.cloud.retry import Polling
from tpuctl.cloud.tpu import describe_node
from tpuctl.errors import (
    AlreadyExistsError,
    NotFoundError,
    PermissionDeniedError,
    TpuctlError,
    UnavailableError,
)
from tpuctl.hardware.compute_engine import GCE, flex_limits, model_of

CANCEL_TIMEOUT_S = 300.0
"""How long a cancelled request is followed; after that, the journal and `gc` take care of it."""

FOUND = "found"
"""The outcome of an entry whose TPU turned up after its create had ended."""

SURELY_MISSING = timedelta(minutes=5)
"""A request that has had no effect by then never will: requests are answered within a minute."""

_STARTING = frozenset({"CREATING", "PENDING", "STARTING", "RESTARTING", "REPAIRING", INCOMPLETE})
_MAX_LOST_REPLIES = 4
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
    """Request a TPU in one zone; return the entry of the accepted request.

    The service itself drops a queued request after `valid_for_s`. The entry may be that of an
    interrupted create of the same TPU, which is resumed. Raises the service's error;
    UnavailableError leaves the entry open, because the TPU may or may not have been created.
    """
    request = request_for(plan, offer, project=api.project, create_id=new_create_id())
    entry = JournalEntry(
        create_id=request.create_id,
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
    journal.intend(entry)
    if plan.flex:
        request = replace(request, valid_for_s=min(timeout_s, flex_limits().max_wait_s))

    def send() -> Operation:
        if plan.queued:
            return api.create_queued_resource(request, valid_for_s=valid_for_s)
        return api.create_node(request)

    try:
        accepted = _send(api, journal, entry, send, timeout_s, plan)
        if accepted.create_id == entry.create_id:
            return accepted
        return _complete(api, journal, accepted, plan, offer)
    except UnavailableError as error:
        raise UnavailableError(
            f"{str(error).rstrip('.')}. It is unknown whether {entry.name} was created there.",
            hint="To find out: tpuctl list",
        ) from error
    except TpuctlError as error:
        if plan.provider == GCE and plan.workers > 1:
            _delete_parts(api, journal, entry, error)
        raise


def _delete_parts(api: TpuApi, journal: Journal, entry: JournalEntry, error: TpuctlError) -> None:
    """Delete what a refused slice has made already; what cannot be is left to `gc`."""
    found = attempt(partial(read_resource, api, entry))
    is_part = isinstance(found, Node) and found.state == INCOMPLETE and is_of(found, entry)
    known = journal.find(entry.create_id)
    if is_part and known and known.phase == "closed":
        cancel(api, journal, [known], outcome=error.code)


def _send(
    api: TpuApi,
    journal: Journal,
    entry: JournalEntry,
    send: Callable[[], Operation],
    timeout_s: float,
    plan: CreatePlan,
) -> JournalEntry:
    polling, lost = None, 0
    while True:
        try:
            return journal.update(entry, phase="accepted", operation=send().name)
        except (AlreadyExistsError, UnavailableError) as error:
            refusal = error
        except TpuctlError as error:
            # After a lost reply a TPU may exist in spite of this error. Then the entry stays open,
            # and the next command reconciles it.
            if not lost:
                journal.close(entry.create_id, error.code, at=api.clock.now())
            raise
        # Either the name is taken, perhaps by our own request whose reply was lost, or the reply
        # was lost just now. Only the label tells.
        resource = read_resource(api, entry)
        is_own = resource is not None and is_of(resource, entry)
        if resource and is_own and resource.state != INCOMPLETE:
            return journal.update(entry, phase="accepted", created=resource.created)
        if resource and not is_own and resource.state != "DELETING":
            return _adopt(api, journal, entry, resource, plan)
        lost += isinstance(refusal, UnavailableError)
        polling = polling or Polling(api.clock, timeout_s=timeout_s)
        if not polling.next() or lost >= _MAX_LOST_REPLIES:
            raise refusal


def _complete(
    api: TpuApi, journal: Journal, entry: JournalEntry, plan: CreatePlan, offer: Offer
) -> JournalEntry:
    """Make what an interrupted create has not made: it may have made only parts of a slice."""
    if plan.provider != GCE:
        return entry
    resource = read_resource(api, entry)
    if not isinstance(resource, Node) or resource.state != INCOMPLETE:
        return entry
    request = request_for(plan, offer, project=api.project, create_id=entry.create_id)
    return journal.update(entry, operation=api.create_node(request).name)


def read_resource(api: TpuApi, entry: JournalEntry) -> Resource | None:
    """Read whatever has the name of a request now; None when nothing does."""
    if entry.kind == "queued":
        return read_optional(api.get_queued_resource, entry.name, entry.zone)
    return read_optional(api.get_node, entry.name, entry.zone)


def is_of(resource: Resource, entry: JournalEntry) -> bool:
    """Whether a resource was created by this very request.

    A label can be copied to another TPU, so name and zone must match too, and what is known of the
    id and the create time.
    """
    named = (resource.labels.get(LABEL_CREATE_ID), resource.name, resource.zone)
    if named != (entry.create_id, entry.name, entry.zone):
        return False
    if isinstance(resource, Node) and entry.node_id not in (None, resource.id):
        return False
    # Once a queued entry knows its node, `created` is that of the node.
    is_kind = isinstance(resource, Node) == (entry.kind == "node" or entry.node_id is not None)
    return not is_kind or entry.created in (None, resource.created)


def entries_of(journal: Journal, resources: Iterable[Resource]) -> list[JournalEntry]:
    """Return the entries of the requests that created some resources."""
    found = ((each, journal.find(each.labels.get(LABEL_CREATE_ID, ""))) for each in resources)
    return [entry for resource, entry in found if entry and is_of(resource, entry)]


def _adopt(
    api: TpuApi, journal: Journal, entry: JournalEntry, resource: Resource, plan: CreatePlan
) -> JournalEntry:
    """Resume an interrupted create of the same TPU; raises AlreadyExistsError for any other TPU.

    A create is interrupted when no process follows it and it was not reported as ready.
    """
    earlier = next(iter(entries_of(journal, [resource])), None)
    if (
        earlier
        and (earlier.phase != "ready" or earlier.outcome == FOUND)
        and not journal.is_alive(earlier.session)
        and all(getattr(earlier, name) == getattr(entry, name) for name in _SAME)
        and (isinstance(resource, QueuedResource) or model_of(resource) == model_of(plan.options))
    ):
        journal.forget(entry)
        return journal.update(
            earlier,
            phase="accepted",
            outcome=None,
            missing_since=None,
            created=resource.created,
            node_id=resource.id if isinstance(resource, Node) else None,
            session=entry.session,
            race=entry.race,
        )
    journal.close(entry.create_id, AlreadyExistsError.code, at=api.clock.now())
    command = f"{entry.name} --zone {entry.zone}"
    if resource.is_dead:
        raise AlreadyExistsError(
            f"{entry.name} in {entry.zone} is {resource.state}: it is dead, but holds its name and "
            "quota until it is deleted.",
            hint=f"tpuctl delete {command}",
        )
    if resource.state == INCOMPLETE:
        raise AlreadyExistsError(
            f"Parts of another slice {entry.name} are left in {entry.zone}.",
            hint=f"tpuctl delete {command}",
        )
    raise AlreadyExistsError(
        f"A TPU {entry.name} already exists in {entry.zone}; it is {resource.state}.",
        hint=f"tpuctl show {command}",
    )


def cancel(
    api: TpuApi,
    journal: Journal,
    entries: Iterable[JournalEntry],
    *,
    outcome: str,
) -> tuple[JournalEntry, ...]:
    """Cancel requests; return those that could not be seen to be gone in time.

    The journal is updated first, so that after a crash `gc` knows that they are unwanted. Nothing
    else of the same name is deleted.
    """
    left = [journal.update(entry, phase="abandoned", outcome=outcome) for entry in entries]
    polling = Polling(api.clock, timeout_s=CANCEL_TIMEOUT_S)
    while True:
        remaining = [_cancel(api, journal, entry) for entry in left]
        left = [entry for entry in remaining if entry]
        if not left or not polling.next():
            return tuple(left)


def _cancel(api: TpuApi, journal: Journal, entry: JournalEntry) -> JournalEntry | None:
    """Delete what a request created, unless that is in progress; None when it is gone."""
    try:
        resource = read_resource(api, entry)
        if resource is None or not is_of(resource, entry):
            return _missing(api, journal, entry)
        if resource.state == "DELETING":
            return entry
        if entry.created is None:
            node_id = resource.id if isinstance(resource, Node) else None
            entry = journal.update(entry, created=resource.created, node_id=node_id)
        if entry.kind == "queued":
            api.delete_queued_resource(entry.name, zone=entry.zone, force=True)
        else:
            api.delete_node(entry.name, zone=entry.zone)
    except TpuctlError:
        # Whatever the service answers, the next look shows what it has done.
        pass
    return entry


def _missing(api: TpuApi, journal: Journal, entry: JournalEntry) -> JournalEntry | None:
    now = api.clock.now()
    if entry.operation or entry.created:
        journal.update(entry, phase="closed", closed=now)
        return None
    # A request that was just sent may take effect a moment later, so look twice.
    if entry.missing_since is None:
        return journal.update(entry, missing_since=now)
    return None


def zombie_warning(entry: JournalEntry) -> str:
    """Warn of a TPU that costs money although its request was cancelled."""
    return (
        f"{entry.name} in {entry.zone} was created after its request was cancelled; to delete it: "
        "tpuctl gc --yes"
    )


def reconcile(api: TpuApi, journal: Journal) -> tuple[JournalEntry, ...]:
    """Update the journal to what exists; returns the requests that were cancelled, but exist.

    Deletes nothing, and sends no request while no entry is open. Entries of a running command are
    left alone.
    """
    journal.clean_up()
    unsettled = [
        entry
        for entry in journal.entries(api)
        if (entry.phase not in ("ready", "closed") or entry.is_ending)
        and not journal.is_alive(entry.session)
    ]
    if not unsettled:
        return ()
    existing = _list_existing(api, unsettled)
    now = api.clock.now()
    settled = [
        _settle(api, journal, entry, existing[entry.zone].get(entry.create_id), now)
        for entry in unsettled
        if entry.zone in existing
    ]
    known = journal.entries(api)
    for entry in known:
        if entry.phase == "closed" and entry.closed and now - entry.closed > KEEP_CLOSED:
            journal.forget(entry)
    winners = _winners(known, settled, existing)
    after_races = [
        journal.update(entry, phase="abandoned", outcome="lost the race")
        if entry.phase not in ("abandoned", "closed")
        and winners.get(entry.race, entry.create_id) != entry.create_id
        else entry
        for entry in settled
    ]
    return tuple(e for e in after_races if e.phase == "abandoned" and not e.missing_since)


def _winners(
    known: Iterable[JournalEntry],
    settled: Iterable[JournalEntry],
    existing: Mapping[str, Mapping[str, Resource]],
) -> dict[str | None, str]:
    """Return the winner of each race: the one reported earlier, or else the cheapest ready one."""
    fresh = {entry.create_id for entry in settled}
    ready = [entry for entry in known if entry.race and entry.phase == "ready"]
    won = {entry.race: entry.create_id for entry in ready if entry.create_id not in fresh}
    for entry in sorted(ready, key=lambda entry: entry.usd_per_hour or math.inf):
        # Another process may have found one that was not there yet when we looked.
        resource = existing.get(entry.zone, {}).get(entry.create_id)
        if entry.create_id in fresh and resource and not resource.is_dead:
            won.setdefault(entry.race, entry.create_id)
    return won


def _list_existing(api: TpuApi, entries: Iterable[JournalEntry]) -> dict[str, dict[str, Resource]]:
    """List the zones of some entries, by create id; leaves out zones that do not answer."""
    kinds: dict[str, set[str]] = {}
    known = {entry.create_id: entry for entry in entries}
    for entry in known.values():
        kinds.setdefault(entry.zone, set()).add(entry.kind)
    found: dict[str, dict[str, Resource]] = {}
    for zone, wanted in kinds.items():
        try:
            nodes = api.list_nodes(zone, leftovers=True)
            queued = api.list_queued_resources(zone) if "queued" in wanted else None
        except (PermissionDeniedError, NotFoundError):
            continue
        if nodes.unreachable_zones or (queued and queued.unreachable_zones):
            continue
        # A queued resource carries the same id as its node. The node comes last, and so counts.
        resources: tuple[Resource, ...] = (*(queued.items if queued else ()), *nodes.items)
        found[zone] = {
            each.labels[LABEL_CREATE_ID]: each
            for each in resources
            if (ours := known.get(each.labels.get(LABEL_CREATE_ID, ""))) and is_of(each, ours)
        }
    return found


def _settle(
    api: TpuApi, journal: Journal, entry: JournalEntry, resource: Resource | None, now: datetime
) -> JournalEntry:
    if entry.is_ending:
        return entry if resource else journal.update(entry, phase="closed", closed=now)
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
        return journal.update(entry, phase="accepted", node_id=None, **known)
    tpu = describe_node(resource, now=now, emulated=api.emulated)
    if tpu.is_usable or resource.state not in {*_STARTING, "READY"}:
        return journal.update(entry, phase="ready", node_id=resource.id, outcome=FOUND, **known)
    return journal.update(entry, phase="accepted", node_id=resource.id, **known)
