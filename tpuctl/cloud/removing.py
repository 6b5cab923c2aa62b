"""Deleting exactly what was meant, however slow or lossy the service is."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Literal

from tpuctl.cloud import labels
from tpuctl.cloud.api import TpuApi
from tpuctl.cloud.groups import Group, is_replaced, read_again
from tpuctl.cloud.journal import Journal
from tpuctl.cloud.models import Operation
from tpuctl.cloud.parallel import attempt_all
from tpuctl.cloud.polling import Polling
from tpuctl.cloud.tpu import known_type, price_now
from tpuctl.errors import (
    NotFoundError,
    RateLimitedError,
    TpuctlError,
    TryAgainError,
    UnavailableError,
)
from tpuctl.progress import OnProgress, Progress, silent

TIMEOUT_S = 1800.0
"""How long a deletion is followed. It goes on at the service whether we look or not."""

_MOST_SENDS = 4
_AT_ONCE = 16

Ending = Literal["planned", "deleted", "already_deleted", "replaced", "left_alone", "failed"]


@dataclass(frozen=True)
class Removal:
    """One TPU or queued resource to be deleted, or what became of that.

    `already_deleted` was gone before we asked; `replaced` was too, and another one bears its name;
    `left_alone` has come back to life since it was planned. `takes_along` are the other nodes of
    its queued resource, which go with it; `remains` is what stays behind, and may go on costing
    money. Chips and dollars are those of all of it.
    """

    kind: Literal["node", "queued_resource"]
    name: str
    zone: str
    state: str
    accelerator_type: str
    chips: int | None
    usd_per_hour: float | None
    queued_resource: str | None
    takes_along: tuple[str, ...]
    remains: tuple[str, ...]
    group: Group = field(metadata={"internal": True})
    outcome: Ending = "planned"
    reason: str | None = None
    seconds: float = 0.0
    error: TpuctlError | None = field(default=None, metadata={"internal": True})


def plan_removal(group: Group, *, name: str | None = None) -> Removal:
    """Say what deleting a group means; `name` is what it was asked for by."""
    queued = group.queued
    lead = next(thing for thing in (*group.nodes, queued) if thing and name in (None, thing.name))
    prices = [price_now(node) for node in group.nodes]
    known = [price for price in prices if price is not None]
    kind = known_type(lead.accelerator_type)
    how_many = max(1, len(queued.nodes)) if queued else 1
    return Removal(
        kind="queued_resource" if lead is queued else "node",
        name=lead.name,
        zone=lead.zone,
        state=lead.state,
        accelerator_type=lead.accelerator_type,
        chips=kind.chips * how_many if kind else None,
        usd_per_hour=round(sum(known), 4) if len(known) == len(prices) else None,
        queued_resource=queued.name if queued else None,
        takes_along=tuple(node.name for node in group.nodes if node is not lead),
        remains=tuple(
            f"data disk {disk.rpartition('/')[2]}"
            for node in group.nodes
            for disk in node.data_disks
        ),
        group=group,
    )


def remove_all(
    api: TpuApi,
    planned: Sequence[Removal],
    *,
    journal: Journal,
    timeout_s: float = TIMEOUT_S,
    still_wanted: Callable[[Group], bool] = lambda _: True,
    on_progress: OnProgress = silent,
) -> tuple[Removal, ...]:
    """Delete everything that was planned, several at once; one that fails stops no other.

    `still_wanted` judges each group once more as it is right before its deletion is sent. The
    journal learns what exists no longer.
    """
    ended: list[str] = []

    def work(removal: Removal) -> Removal:
        result = remove(api, removal, timeout_s=timeout_s, still_wanted=still_wanted)
        if result.outcome not in ("left_alone", "failed"):
            _close(journal, result, at=api.clock.now())
        ended.append(removal.name)
        on_progress(Progress("Deleting", len(ended), len(planned), "TPUs", removal.name))
        return result

    results = attempt_all([partial(work, removal) for removal in planned], at_once=_AT_ONCE)
    return tuple(result for result in results if isinstance(result, Removal))


def remove(
    api: TpuApi,
    planned: Removal,
    *,
    timeout_s: float = TIMEOUT_S,
    still_wanted: Callable[[Group], bool] = lambda _: True,
) -> Removal:
    """Delete one group and follow that to its end; a failure is in the result, not raised."""
    polling = Polling(api.clock, timeout_s=timeout_s)
    try:
        outcome, reason = _remove(api, planned, polling, still_wanted)
    except TpuctlError as error:
        return replace(
            planned, outcome="failed", reason=str(error), error=error, seconds=polling.waited_s
        )
    return replace(planned, outcome=outcome, reason=reason, seconds=polling.waited_s)


def exit_code_of(failures: Sequence[TpuctlError]) -> int:
    """0 without failures; 3 when nothing is broken; else 1."""
    if not failures:
        return 0
    return 3 if all(isinstance(failure, TryAgainError) for failure in failures) else 1


def warnings_of(removals: Sequence[Removal]) -> tuple[str, ...]:
    """What was left alone, and what stays behind and may go on costing money."""
    left = [f"{r.name} in {r.zone}: {r.reason}." for r in removals if r.reason and not r.error]
    stays = [
        f"{', '.join(r.remains)} of {r.name} in {r.zone} stays, and costs money until deleted."
        for r in removals
        if r.remains and r.outcome in ("planned", "deleted")
    ]
    return (*left, *stays)


def _close(journal: Journal, ended: Removal, *, at: datetime) -> None:
    for create_id in {thing.labels.get(labels.CREATE_ID) for thing in ended.group.things}:
        journal.close(create_id, "deleted", at=at)


def _remove(
    api: TpuApi, planned: Removal, polling: Polling, still_wanted: Callable[[Group], bool]
) -> tuple[Ending, str | None]:
    sent = 0
    while sent < _MOST_SENDS:
        now = _wait_while_deleting(api, planned, polling)
        if is_replaced(planned.group, now):
            reason = "another one bears the name by now, and was left alone"
            return ("deleted" if sent else "replaced"), reason
        if not now.things:
            return ("deleted" if sent else "already_deleted"), None
        if not sent and not still_wanted(now):
            return "left_alone", f"it is {now.things[0].state} by now, and was left alone"
        try:
            operation = _send(api, now)
        except RateLimitedError as error:
            _pause(planned, polling, at_least_s=error.retry_after_s)
            continue
        sent += 1
        if operation:
            _follow(api, operation, planned, polling)
        else:
            _pause(planned, polling)
    raise UnavailableError(
        f"Could not delete {planned.name} in {planned.zone}: asked {_MOST_SENDS} times, and it is "
        "still there.",
        hint=f"tpuctl show {planned.name} --zone {planned.zone}",
    )


def _wait_while_deleting(api: TpuApi, planned: Removal, polling: Polling) -> Group:
    """Read the group, and go on reading while somebody's deletion of it is under way."""
    while True:
        now = read_again(api, planned.group)
        if not now.things or now.things[0].state != "DELETING" or is_replaced(planned.group, now):
            return now
        _pause(planned, polling)


def _send(api: TpuApi, group: Group) -> Operation | None:
    """Ask for the deletion; None when the reply was lost, or there is nothing to delete any more.

    What to believe then is what the group looks like when it is read again.
    """
    target = group.things[0]
    try:
        if target is group.queued:
            return api.delete_queued_resource(target.name, zone=target.zone, force=True)
        return api.delete_node(target.name, zone=target.zone)
    except (NotFoundError, UnavailableError):
        return None


def _follow(api: TpuApi, operation: Operation, planned: Removal, polling: Polling) -> None:
    """Wait for the end of an operation; raises what it failed with."""
    while not operation.done:
        _pause(planned, polling)
        try:
            operation = api.get_operation(operation.name)
        except NotFoundError:
            return
    if operation.error and not isinstance(operation.error, NotFoundError):
        raise operation.error


def _pause(planned: Removal, polling: Polling, *, at_least_s: float | None = None) -> None:
    polling.pause(
        f"{planned.name} in {planned.zone} is not gone",
        at_least_s=at_least_s or 0.0,
        hint="The deletion goes on without us; to follow it: "
        f"tpuctl wait {planned.name} --zone {planned.zone} --for gone",
    )
