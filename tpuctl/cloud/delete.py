"""Deleting exactly what was meant, however slow or lossy the service is."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Literal

from tpuctl.cloud.api import TpuApi
from tpuctl.cloud.journal import COLLECTED, DELETED, Journal, JournalEntry
from tpuctl.cloud.lookup import (
    ResourceGroup,
    attempt_all,
    find,
    group_resources,
    is_replaced,
    read_group,
    reread_group,
    take_snapshot,
)
from tpuctl.cloud.models import ALL_ZONES, LABEL_CREATE_ID, Operation
from tpuctl.cloud.retry import Polling
from tpuctl.cloud.tpu import known_type, price_now
from tpuctl.errors import (
    NotFoundError,
    RateLimitedError,
    TpuctlError,
    TryAgainError,
    UnavailableError,
)
from tpuctl.outcome import Outcome, Status
from tpuctl.progress import OnProgress, Progress, silent
from tpuctl.units import format_duration

TIMEOUT_S = 1800.0
"""How long a deletion is followed. It goes on at the service whether we look or not."""

_MOST_SENDS = 4
_AT_ONCE = 16

DeletionOutcome = Literal[
    "planned", "deleted", "already_deleted", "replaced", "left_alone", "failed"
]


@dataclass(frozen=True)
class TpuDeletion:
    """One TPU or queued resource to be deleted, or what became of that.

    `already_deleted` was gone before we asked; `replaced` was too, and another one bears its name;
    `left_alone` has come back to life since it was planned. `takes_along` are the other nodes of
    its queued resource, which go with it; `remaining_disks` stay behind, and go on costing
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
    remaining_disks: tuple[str, ...]
    group: ResourceGroup = field(metadata={"internal": True})
    outcome: DeletionOutcome = "planned"
    reason: str | None = None
    seconds: float = 0.0
    error: TpuctlError | None = field(default=None, metadata={"internal": True})

    @property
    def where(self) -> str:
        """Its name and zone, for a sentence."""
        return f"{self.name} in {self.zone}"


def plan_group_deletion(group: ResourceGroup, *, name: str | None = None) -> TpuDeletion:
    """Say what deleting a group means; `name` is what it was asked for by."""
    queued = group.queued
    lead = next(
        resource
        for resource in (*group.nodes, queued)
        if resource and name in (None, resource.name)
    )
    prices = [price_now(node) for node in group.nodes]
    known = [price for price in prices if price is not None]
    kind = known_type(lead.accelerator_type)
    how_many = max(1, len(queued.nodes)) if queued else 1
    return TpuDeletion(
        kind="queued_resource" if lead is queued else "node",
        name=lead.name,
        zone=lead.zone,
        state=lead.state,
        accelerator_type=lead.accelerator_type,
        chips=kind.chips * how_many if kind else None,
        usd_per_hour=round(sum(known), 4) if len(known) == len(prices) else None,
        queued_resource=queued.name if queued else None,
        takes_along=tuple(node.name for node in group.nodes if node is not lead),
        remaining_disks=tuple(disk.name for node in group.nodes for disk in node.data_disks),
        group=group,
    )


def delete_all(
    api: TpuApi,
    planned: Sequence[TpuDeletion],
    *,
    journal: Journal,
    timeout_s: float = TIMEOUT_S,
    still_wanted: Callable[[ResourceGroup], bool] = lambda _: True,
    on_progress: OnProgress = silent,
) -> tuple[TpuDeletion, ...]:
    """Delete everything that was planned, several at once, and follow each to its end.

    One that fails stops no other: its error is in its result. `still_wanted` judges each group once
    more as it is right before its deletion is sent. The journal learns that it is to go before the
    service does, and what exists no longer.
    """
    ended: list[str] = []

    def tell(note: str = "") -> None:
        on_progress(Progress("Deleting", len(ended), len(planned), "TPUs", note))

    def work(removal: TpuDeletion) -> TpuDeletion:
        def may_go(group: ResourceGroup) -> bool:
            if not still_wanted(group):
                return False
            for create_id in _create_ids(group):
                journal.expect_end(create_id, _outcome_of(group))
            return True

        result = _Deleter(api, removal, timeout_s, may_go, tell).carry_out()
        if result.outcome not in ("left_alone", "failed"):
            _close(journal, result, at=api.clock.now())
        ended.append(removal.name)
        tell(removal.name)
        return result

    if planned:
        tell()
    results = attempt_all([partial(work, removal) for removal in planned], at_once=_AT_ONCE)
    return tuple(
        _failed(removal, result) if isinstance(result, TpuctlError) else result
        for removal, result in zip(planned, results, strict=True)
    )


def exit_code_of(failures: Sequence[TpuctlError]) -> int:
    """0 without failures; 3 when nothing is broken; else 1."""
    if not failures:
        return 0
    return 3 if all(isinstance(failure, TryAgainError) for failure in failures) else 1


def warnings_of(removals: Sequence[TpuDeletion]) -> tuple[str, ...]:
    """What was left alone, and what stays behind and may go on costing money."""
    left = [f"{r.where}: {r.reason}." for r in removals if r.reason and not r.error]
    stays = [
        f"The data disk {disk} of {r.where} stays, and costs money until it is deleted: "
        f"gcloud compute disks delete {disk} --zone {r.zone}"
        for r in removals
        if r.outcome in ("planned", "deleted")
        for disk in r.remaining_disks
    ]
    return (*left, *stays)


def _failed(removal: TpuDeletion, error: TpuctlError) -> TpuDeletion:
    return replace(removal, outcome="failed", reason=str(error), error=error)


def _close(journal: Journal, ended: TpuDeletion, *, at: datetime) -> None:
    outcome = _outcome_of(ended.group) if ended.outcome == "deleted" else COLLECTED
    for create_id in _create_ids(ended.group):
        journal.close(create_id, outcome, at=at)


def _outcome_of(group: ResourceGroup) -> str:
    return COLLECTED if all(resource.is_dead for resource in group.resources) else DELETED


def _create_ids(group: ResourceGroup) -> set[str | None]:
    return {resource.labels.get(LABEL_CREATE_ID) for resource in group.resources}


class _Deleter:
    """One deletion on its way."""

    def __init__(
        self,
        api: TpuApi,
        planned: TpuDeletion,
        timeout_s: float,
        may_go: Callable[[ResourceGroup], bool],
        tell: Callable[[str], None],
    ) -> None:
        self._api, self._planned = api, planned
        self._may_go, self._tell = may_go, tell
        self._polling = Polling(api.clock, timeout_s=timeout_s)

    def carry_out(self) -> TpuDeletion:
        """Delete the group and follow that to its end; a failure is in the result, not raised."""
        try:
            outcome, reason = self._delete()
        except TpuctlError as error:
            return replace(_failed(self._planned, error), seconds=self._polling.waited_s)
        return replace(
            self._planned, outcome=outcome, reason=reason, seconds=self._polling.waited_s
        )

    def _delete(self) -> tuple[DeletionOutcome, str | None]:
        sent = 0
        while sent < _MOST_SENDS:
            now = self._settled()
            if is_replaced(self._planned.group, now):
                reason = "another one bears the name by now, and was left alone"
                return ("deleted" if sent else "replaced"), reason
            if not now.resources:
                return ("deleted" if sent else "already_deleted"), None
            if not sent and not self._may_go(now):
                return "left_alone", f"it is {now.resources[0].state} by now, and was left alone"
            try:
                operation = self._send(now)
            except RateLimitedError as error:
                self._pause(at_least_s=error.retry_after_s)
                continue
            sent += 1
            self._follow(operation)
        raise UnavailableError(
            f"Could not delete {self._planned.where}: asked {_MOST_SENDS} times, and it is still "
            "there.",
            hint=f"tpuctl show {self._planned.name} --zone {self._planned.zone}",
        )

    def _settled(self) -> ResourceGroup:
        """Read the group, and go on reading while somebody's deletion of it is under way."""
        while True:
            now = reread_group(self._api, self._planned.group)
            is_going = now.resources and now.resources[0].state == "DELETING"
            if not is_going or is_replaced(self._planned.group, now):
                return now
            self._pause()

    def _send(self, group: ResourceGroup) -> Operation | None:
        """Ask for the deletion; None when the reply was lost, or nothing is there any more.

        What to believe then is what the group looks like when it is read again.
        """
        target = group.resources[0]
        try:
            if target is group.queued:
                return self._api.delete_queued_resource(target.name, zone=target.zone, force=True)
            return self._api.delete_node(target.name, zone=target.zone)
        except (NotFoundError, UnavailableError):
            return None

    def _follow(self, operation: Operation | None) -> None:
        """Wait for the end of an operation, if it is known; raises what it failed with."""
        if operation is None:
            self._pause()
            return
        while not operation.done:
            self._pause()
            try:
                operation = self._api.get_operation(operation.name)
            except NotFoundError:
                return
        if operation.error and not isinstance(operation.error, NotFoundError):
            raise operation.error

    def _pause(self, *, at_least_s: float | None = None) -> None:
        name, zone = self._planned.name, self._planned.zone
        self._tell(f"{name}, {format_duration(self._polling.waited_s)}")
        self._polling.pause(
            f"{self._planned.where} is not gone",
            hint="The deletion goes on without us; to follow it: "
            f"tpuctl wait {name} --zone {zone} --for gone",
            at_least_s=at_least_s or 0.0,
        )


@dataclass(frozen=True)
class DeletedEarlier:
    """A TPU that is not there any more, and that the journal remembers."""

    name: str
    zone: str


@dataclass(frozen=True)
class DeleteResult(Outcome):
    """What is to be deleted, or what became of each; see `Removal` for the words.

    `saved_usd_per_hour` and `freed_chips` leave out what is not known.
    """

    tpus: tuple[TpuDeletion, ...]
    already_deleted: tuple[DeletedEarlier, ...] = ()
    unreachable_zones: tuple[str, ...] = ()
    dry_run: bool = True
    saved_usd_per_hour: float = 0.0
    freed_chips: int = 0
    not_planned: tuple[TpuctlError, ...] = field(default=(), metadata={"internal": True})

    @property
    def status(self) -> Status:
        """`error` when nothing could be done, `partial` when not everything could."""
        if self.failures or self.unreachable_zones:
            done = self.already_deleted or any(not removal.error for removal in self.tpus)
            return "partial" if done else "error"
        return "attention" if self.warnings else "ok"

    @property
    def exit_code(self) -> int:
        """1 when something is still there; 3 when the same command may do better later."""
        return exit_code_of(self.failures)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was left alone, what stays behind, and where nobody answered."""
        zones = ", ".join(self.unreachable_zones)
        missed = (f"No answer from {zones}: nothing is deleted there.",) if zones else ()
        return (*missed, *warnings_of(self.tpus))

    @property
    def failures(self) -> tuple[TpuctlError, ...]:
        """Names that are nowhere, and deletions that failed."""
        return (*self.not_planned, *(r.error for r in self.tpus if r.error))


def plan_delete(
    api: TpuApi, names: Sequence[str] | None, *, zone: str | None = None, journal: Journal
) -> DeleteResult:
    """Find what bears the names, and say what deleting it means; changes nothing.

    No names at all mean everything in the zone, or in all zones.

    A name that the journal knows to be gone is no error. A name that nobody knows is one among the
    failures, and raised where it is the only one.
    """
    if names is None:
        return _plan_everything(api, zone)
    planned: list[TpuDeletion] = []
    gone: list[DeletedEarlier] = []
    failures: list[TpuctlError] = []
    for name in dict.fromkeys(names):
        try:
            planned.append(plan_group_deletion(read_group(api, find(api, name, zone)), name=name))
        except NotFoundError as error:
            remembered = _remembered(journal.entries(api), name, zone)
            gone += remembered
            failures += [] if remembered else [error]
        except TpuctlError as error:
            failures.append(error)
    if len(failures) == 1 and not planned and not gone:
        raise failures[0]
    return _summed(DeleteResult(_once(planned), tuple(gone), not_planned=tuple(failures)))


def _plan_everything(api: TpuApi, zone: str | None) -> DeleteResult:
    seen = take_snapshot(api, zone or ALL_ZONES)
    planned = [plan_group_deletion(group) for group in group_resources(seen)]
    in_order = sorted(planned, key=lambda removal: (removal.zone, removal.name))
    return _summed(
        DeleteResult(
            tuple(in_order),
            unreachable_zones=seen.unreachable_zones,
            not_planned=seen.failures,
        )
    )


def delete(
    api: TpuApi,
    plan: DeleteResult,
    *,
    journal: Journal,
    timeout_s: float = TIMEOUT_S,
    on_progress: OnProgress = silent,
) -> DeleteResult:
    """Delete what was planned, each exactly as it was when it was planned, and wait for its end."""
    ended = delete_all(
        api, plan.tpus, journal=journal, timeout_s=timeout_s, on_progress=on_progress
    )
    return _summed(replace(plan, tpus=ended, dry_run=False))


def _summed(deletion: DeleteResult) -> DeleteResult:
    """Add up what is planned, or what has really gone."""
    counted = [r for r in deletion.tpus if r.outcome in ("planned", "deleted")]
    return replace(
        deletion,
        saved_usd_per_hour=round(sum(removal.usd_per_hour or 0 for removal in counted), 4),
        freed_chips=sum(removal.chips or 0 for removal in counted),
    )


def _once(planned: Sequence[TpuDeletion]) -> tuple[TpuDeletion, ...]:
    """Leave out what goes with something else that is named as well."""
    first: dict[tuple[str, str], TpuDeletion] = {}
    for removal in planned:
        first.setdefault((removal.zone, removal.queued_resource or f"node {removal.name}"), removal)
    return tuple(first.values())


def _remembered(
    entries: Sequence[JournalEntry], name: str, zone: str | None
) -> list[DeletedEarlier]:
    """The TPUs of that name that did exist, and were made by us."""
    existed = (
        entry
        for entry in entries
        if entry.name == name and zone in (None, entry.zone)
        if entry.phase == "ready" or entry.outcome in (COLLECTED, DELETED)
    )
    return [DeletedEarlier(name, each) for each in dict.fromkeys(entry.zone for entry in existed)]
