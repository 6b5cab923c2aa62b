"""Delete exactly the TPUs that were planned, however slow or lossy the service is."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

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
from tpuctl.cloud.models import ALL_ZONES, DeletionOutcome, Node, Operation, ResourceKind
from tpuctl.cloud.requests import entries_of
from tpuctl.cloud.retry import Polling
from tpuctl.cloud.tpu import known_type, price_now
from tpuctl.errors import (
    NotFoundError,
    RateLimitedError,
    TpuctlError,
    TryAgainError,
    UnavailableError,
)
from tpuctl.hardware.compute_engine import CLOUD_TPU, place_of
from tpuctl.outcome import Outcome, Status
from tpuctl.progress import OnProgress, Progress, silent
from tpuctl.units import format_duration

TIMEOUT_S = 1800.0
"""How long a deletion is followed; the service completes it whether we follow or not."""

# A slice on Compute Engine has parts that are deleted one after the other.
_MAX_SENDS, _AT_ONCE = 6, 16


@dataclass(frozen=True)
class TpuDeletion:
    """The planned or finished deletion of one TPU or queued resource.

    `already_deleted`: gone before our request. `replaced`: gone, and another TPU has its name.
    `left_alone`: it changed since it was planned, and is needed again. `takes_along` are the other
    nodes of its queued resource, which are deleted with it; `remaining_disks` stay, and keep
    costing money. Chips and dollars are those of the whole group.
    """

    kind: ResourceKind
    name: str
    zone: str | None
    state: str
    accelerator_type: str
    chips: int | None = None
    usd_per_hour: float | None = None
    queued_resource: str | None = None
    takes_along: tuple[str, ...] = ()
    remaining_disks: tuple[str, ...] = ()
    group: ResourceGroup = field(default=ResourceGroup(()), metadata={"internal": True})
    provider: str = CLOUD_TPU
    id: str = ""
    outcome: DeletionOutcome = "planned"
    reason: str | None = None
    seconds: float = 0.0
    error: TpuctlError | None = field(default=None, metadata={"internal": True})

    @property
    def warnings(self) -> tuple[str, ...]:
        """Why it was left alone, and which disks stay and keep costing money."""
        where = f"{self.name} in {place_of(self.zone, self.provider)}"
        goes = self.outcome in ("planned", "deleted")
        left = (f"{where}: {self.reason}.",) if self.reason and not goes and not self.error else ()
        stays = (
            f"The data disk {disk} of {where} stays, and costs money until it is deleted: "
            f"gcloud compute disks delete {disk} --zone {self.zone}"
            for disk in self.remaining_disks
            if goes
        )
        return (*left, *stays)


Summary = TypeVar("Summary", bound="DeletionSummary")


@dataclass(frozen=True, kw_only=True)
class DeletionSummary(Outcome):
    """The common part of the results of delete and gc; the sums leave out unknown values.

    Before the deletion the sums say what it would free, afterwards what it has freed.
    """

    unreachable_zones: tuple[str, ...] = ()
    saved_usd_per_hour: float = 0.0
    freed_chips: int = 0
    not_planned: tuple[TpuctlError, ...] = field(default=(), metadata={"internal": True})

    @property
    def deletions(self) -> tuple[TpuDeletion, ...]:
        """The planned or finished deletions."""
        raise NotImplementedError

    @property
    def exit_code(self) -> int:
        """0 without failures; that of the failures where they agree; else 1."""
        codes = {error.exit_code for error in self.failures}
        return codes.pop() if len(codes) == 1 else min(len(codes), 1)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Which zones did not answer, and the warnings of each deletion."""
        zones = ", ".join(self.unreachable_zones)
        missed = (f"No answer from {zones}: TPUs there were not checked.",) if zones else ()
        return (*missed, *(text for deletion in self.deletions for text in deletion.warnings))

    @property
    def failures(self) -> tuple[TpuctlError, ...]:
        """The errors of finding, listing and deleting."""
        return (*self.not_planned, *(each.error for each in self.deletions if each.error))

    def summed(self: Summary) -> Summary:
        """Add up what is planned or was deleted."""
        counted = [each for each in self.deletions if each.outcome in ("planned", "deleted")]
        return replace(
            self,
            saved_usd_per_hour=round(sum(each.usd_per_hour or 0 for each in counted), 4),
            freed_chips=sum(each.chips or 0 for each in counted),
        )


@dataclass(frozen=True)
class DeletedEarlier:
    """A TPU that no longer exists, but that the journal remembers."""

    name: str
    zone: str | None


@dataclass(frozen=True)
class DeleteResult(DeletionSummary):
    """The plan or the result of `delete`."""

    tpus: tuple[TpuDeletion, ...]
    already_deleted: tuple[DeletedEarlier, ...] = ()
    dry_run: bool = True
    project: str = ""

    @property
    def deletions(self) -> tuple[TpuDeletion, ...]:
        """The planned or finished deletions."""
        return self.tpus

    @property
    def exit_code(self) -> int:
        """3 also where a zone that did not answer may still hold TPUs."""
        is_unsure = self.unreachable_zones and not self.dry_run
        return super().exit_code or (TryAgainError.exit_code if is_unsure else 0)

    @property
    def status(self) -> Status:
        """`error` when nothing could be done, `partial` when not everything could."""
        if self.failures or self.unreachable_zones:
            done = self.already_deleted or any(not deletion.error for deletion in self.tpus)
            return "partial" if done else "error"
        return "attention" if self.warnings else "ok"


def plan_delete(
    api: TpuApi, names: Sequence[str] | None, *, zone: str | None = None, journal: Journal
) -> DeleteResult:
    """Find the named TPUs and plan their deletion; changes nothing.

    `names` of None means everything in the zone, or in all zones. A name that the journal knows as
    deleted is not an error. An unknown name is a failure, and raised if it is the only one.
    """
    if names is None:
        return replace(_plan_everything(api, zone), project=api.project)
    # Two names may belong to one queued resource, which is deleted as a whole, and so only once.
    planned: dict[tuple[str | None, str], TpuDeletion] = {}
    gone: list[DeletedEarlier] = []
    failures: list[TpuctlError] = []
    for name in dict.fromkeys(names):
        try:
            deletion = plan_group_deletion(read_group(api, find(api, name, zone)), name=name)
            whole = deletion.queued_resource or f"node {deletion.name}"
            planned.setdefault((deletion.zone, whole), deletion)
        except NotFoundError as error:
            remembered = _remembered(journal.entries(api), name, zone)
            gone += remembered
            failures += [] if remembered else [error]
        except TpuctlError as error:
            failures.append(error)
    if len(failures) == 1 and not planned and not gone:
        raise failures[0]
    plan = DeleteResult(tuple(planned.values()), tuple(gone), not_planned=tuple(failures))
    return replace(plan, project=api.project).summed()


def _plan_everything(api: TpuApi, zone: str | None) -> DeleteResult:
    seen = take_snapshot(api, zone or ALL_ZONES)
    planned = (plan_group_deletion(group) for group in group_resources(seen))
    return DeleteResult(
        tuple(sorted(planned, key=lambda deletion: (deletion.zone, deletion.name))),
        unreachable_zones=seen.unreachable_zones,
        not_planned=seen.failures,
    ).summed()


def plan_group_deletion(group: ResourceGroup, *, name: str | None = None) -> TpuDeletion:
    """Plan the deletion of a group; `name` is the name that the user gave."""
    queued = group.queued
    lead = next(each for each in (*group.nodes, queued) if each and name in (None, each.name))
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
        chips=0 if lead.state == "INCOMPLETE" else kind.chips * how_many if kind else None,
        usd_per_hour=round(sum(known), 4) if len(known) == len(prices) else None,
        queued_resource=queued.name if queued else None,
        takes_along=tuple(node.name for node in group.nodes if node is not lead),
        remaining_disks=tuple(disk.name for node in group.nodes for disk in node.data_disks),
        group=group,
        provider=lead.provider if isinstance(lead, Node) else CLOUD_TPU,
    )


def _remembered(
    entries: Sequence[JournalEntry], name: str, zone: str | None
) -> list[DeletedEarlier]:
    """Return the TPUs of that name that we created and that existed."""
    existed = (
        entry
        for entry in entries
        if entry.name == name and zone in (None, entry.zone)
        if entry.phase == "ready" or entry.outcome in (COLLECTED, DELETED)
    )
    return [DeletedEarlier(name, each) for each in dict.fromkeys(entry.zone for entry in existed)]


def delete(
    api: TpuApi,
    plan: DeleteResult,
    *,
    journal: Journal,
    timeout_s: float = TIMEOUT_S,
    on_progress: OnProgress = silent,
) -> DeleteResult:
    """Delete what was planned, provided that it is still the same, and wait until it is gone."""
    run = partial(delete_all, journal=journal, timeout_s=timeout_s, on_progress=on_progress)
    return replace(plan, tpus=run(api, plan.tpus), dry_run=False).summed()


def delete_all(
    api: TpuApi,
    planned: Sequence[TpuDeletion],
    *,
    journal: Journal,
    timeout_s: float = TIMEOUT_S,
    is_unneeded: Callable[[ResourceGroup], bool] = lambda _: True,
    on_progress: OnProgress = silent,
) -> tuple[TpuDeletion, ...]:
    """Carry out deletions in parallel and wait for each; an error is in the deletion's result.

    `is_unneeded` is asked again about each group right before its deletion is requested.
    """
    ended: list[str] = []

    def report(note: str = "") -> None:
        on_progress(Progress("Deleting", len(ended), len(planned), "TPUs", note))

    def work(deletion: TpuDeletion) -> TpuDeletion:
        result = _Deleter(api, journal, deletion, timeout_s, is_unneeded, report).run()
        ended.append(deletion.name)
        report(deletion.name)
        return result

    if planned:
        report()
    results = attempt_all([partial(work, deletion) for deletion in planned], at_once=_AT_ONCE)
    return tuple(
        failed_deletion(deletion, result) if isinstance(result, TpuctlError) else result
        for deletion, result in zip(planned, results, strict=True)
    )


def failed_deletion(deletion: TpuDeletion, error: TpuctlError) -> TpuDeletion:
    """Note the error of a deletion in its result."""
    return replace(deletion, outcome="failed", reason=str(error), error=error)


def _outcome_of(group: ResourceGroup) -> str:
    return COLLECTED if all(each.is_dead for each in group.resources) else DELETED


@dataclass
class _Deleter:
    """One deletion in progress."""

    _api: TpuApi
    _journal: Journal
    _planned: TpuDeletion
    _timeout_s: float
    _is_unneeded: Callable[[ResourceGroup], bool]
    _tell: Callable[[str], None]

    def __post_init__(self) -> None:
        self._polling = Polling(self._api.clock, timeout_s=self._timeout_s)

    def run(self) -> TpuDeletion:
        """Delete the group and wait until it is gone."""
        try:
            outcome, reason = self._delete()
        except TpuctlError as error:
            return replace(failed_deletion(self._planned, error), seconds=self._polling.waited_s)
        if outcome != "left_alone":
            end = _outcome_of(self._planned.group) if outcome == "deleted" else COLLECTED
            for entry in entries_of(self._journal, self._planned.group.resources):
                self._journal.close(entry.create_id, end, at=self._api.clock.now())
        return replace(
            self._planned, outcome=outcome, reason=reason, seconds=self._polling.waited_s
        )

    def _delete(self) -> tuple[DeletionOutcome, str | None]:
        sent = 0
        while sent < _MAX_SENDS:
            # The API deletes by name. So the group is read again before every request, and nothing
            # is sent when another TPU has taken the name in the meantime.
            now = self._settled()
            if is_replaced(self._planned.group, now):
                reason = "another TPU has its name now, and was left alone"
                return ("deleted" if sent else "replaced"), reason
            if not now.resources:
                return ("deleted" if sent else "already_deleted"), None
            if not sent:
                if not self._is_unneeded(now):
                    return "left_alone", f"it is {now.resources[0].state} now, and was left alone"
                for entry in entries_of(self._journal, now.resources):
                    self._journal.expect_end(entry.create_id, _outcome_of(now))
            try:
                operation = self._send(now)
            except RateLimitedError as error:
                self._pause(at_least_s=error.retry_after_s or 0.0)
                continue
            sent += 1
            if operation:
                self._follow(operation)
        raise UnavailableError(
            f"Could not delete {self._planned.name} in {self._planned.zone}: requested "
            f"{_MAX_SENDS} times, and it is still there.",
            hint=f"tpuctl show {self._planned.name} --zone {self._planned.zone}",
        )

    def _settled(self) -> ResourceGroup:
        """Read the group; wait while any deletion of it is in progress."""
        while (now := reread_group(self._api, self._planned.group)).resources:
            if now.resources[0].state != "DELETING" or is_replaced(self._planned.group, now):
                break
            self._pause()
        return now

    def _send(self, group: ResourceGroup) -> Operation | None:
        """Request the deletion; None, after a pause, if the reply was lost or nothing is there."""
        target = group.resources[0]
        try:
            if target is group.queued:
                return self._api.delete_queued_resource(target.name, zone=target.zone, force=True)
            return self._api.delete_node(target.name, zone=target.zone)
        except (NotFoundError, UnavailableError):
            self._pause()
            return None

    def _follow(self, operation: Operation) -> None:
        """Wait until an operation ends; raises its error."""
        while not operation.done:
            self._pause()
            try:
                operation = self._api.get_operation(operation.name)
            except NotFoundError:
                return
        if operation.error and not isinstance(operation.error, NotFoundError):
            raise operation.error

    def _pause(self, *, at_least_s: float = 0.0) -> None:
        name, zone = self._planned.name, self._planned.zone
        self._tell(f"{name}, {format_duration(self._polling.waited_s)}")
        self._polling.pause(
            f"{name} in {zone} is not gone",
            hint="The deletion continues without us; to follow it: "
            f"tpuctl wait {name} --zone {zone} --for gone",
            at_least_s=at_least_s,
        )
