"""Sending one request for a TPU so that there is never a second, and never one nobody knows of."""

from collections.abc import Callable

from tpuctl.cloud import labels
from tpuctl.cloud.api import TpuApi
from tpuctl.cloud.journal import Entry, Journal, new_create_id
from tpuctl.cloud.looking import Thing
from tpuctl.cloud.models import NodeRequest, Operation
from tpuctl.cloud.plan import CreatePlan, Offer, request_for
from tpuctl.cloud.polling import Polling
from tpuctl.cloud.reconcile import FOUND
from tpuctl.errors import (
    AlreadyExistsError,
    DeadlineError,
    NotFoundError,
    TpuctlError,
    UnavailableError,
)

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
) -> Entry:
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
) -> Entry:
    return Entry(
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


def read_named(api: TpuApi, entry: Entry) -> Thing | None:
    """Read whatever bears the name of a request now; None when nothing does."""
    try:
        if entry.kind == "queued":
            return api.get_queued_resource(entry.name, zone=entry.zone)
        return api.get_node(entry.name, zone=entry.zone)
    except NotFoundError:
        return None


def is_of(thing: Thing, entry: Entry) -> bool:
    """Whether a thing was made by this very request."""
    return thing.labels.get(labels.CREATE_ID) == entry.create_id


def _send(
    api: TpuApi,
    journal: Journal,
    entry: Entry,
    ask: Callable[[], Operation],
    timeout_s: float,
) -> Entry:
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


def _ask(api: TpuApi, entry: Entry, request: NodeRequest, valid_for_s: float | None) -> Operation:
    if entry.kind == "queued":
        return api.create_queued_resource(request, valid_for_s=valid_for_s)
    return api.create_node(request)


def _adopt(api: TpuApi, journal: Journal, entry: Entry, there: Thing) -> Entry:
    """Go on with what an interrupted create began, or one gave up but could not delete.

    Raises AlreadyExistsError for any other TPU.
    """
    earlier = journal.find(there.labels.get(labels.CREATE_ID, ""))
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


def _is_interrupted(journal: Journal, entry: Entry) -> bool:
    """Whether nobody follows it, and nobody was told that it is ready."""
    was_told = entry.phase == "ready" and entry.outcome != FOUND
    return not was_told and not journal.is_alive(entry.session)


def _is_alike(one: Entry, other: Entry) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in _SAME)
