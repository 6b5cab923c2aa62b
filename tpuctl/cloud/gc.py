"""`gc`: what still costs money or holds chips, names and quota, and is of no use to anybody."""

from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Literal

from tpuctl.cloud.api import TpuApi
from tpuctl.cloud.delete import (
    TIMEOUT_S,
    TpuDeletion,
    delete_all,
    exit_code_of,
    plan_group_deletion,
    warnings_of,
)
from tpuctl.cloud.journal import Journal
from tpuctl.cloud.lookup import ResourceGroup, group_resources, take_snapshot
from tpuctl.cloud.models import ALL_ZONES, LABEL_CREATE_ID, Node, QueuedResource
from tpuctl.cloud.tpu import expires_at
from tpuctl.errors import TpuctlError
from tpuctl.outcome import Outcome, Status
from tpuctl.progress import OnProgress, silent
from tpuctl.units import format_duration

Action = Literal["delete", "deleted", "already_deleted", "replaced", "left_alone", "failed"]


@dataclass(frozen=True)
class Orphan:
    """One resource that nobody needs any more, why, and what is or was done about it."""

    kind: Literal["node", "queued_resource"]
    name: str
    zone: str
    reason: str
    usd_per_hour: float | None
    chips: int | None
    action: Action
    removal: TpuDeletion = field(metadata={"internal": True})


@dataclass(frozen=True)
class GcResult(Outcome):
    """Everything that nobody needs any more; the sums leave out what is not known.

    Before the deletion they say what it would free, afterwards what it has freed.
    """

    found: tuple[Orphan, ...]
    freed_chips: int
    saved_usd_per_hour: float
    acted: bool
    unreachable_zones: tuple[str, ...]
    not_seen: tuple[TpuctlError, ...] = field(default=(), metadata={"internal": True})

    @property
    def status(self) -> Status:
        """`attention` while there is something to delete, `partial` when not all was possible."""
        if self.failures or self.unreachable_zones:
            return "partial"
        return "attention" if self.found and not self.acted else "ok"

    @property
    def exit_code(self) -> int:
        """1 when something could not be deleted; 3 when the same command may do better later."""
        return exit_code_of(self.failures)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Where nobody answered, what was left alone, what stays behind."""
        zones = ", ".join(self.unreachable_zones)
        missed = (f"No answer from {zones}: what is there was not looked at.",) if zones else ()
        return (*missed, *warnings_of([find.removal for find in self.found]))

    @property
    def failures(self) -> tuple[TpuctlError, ...]:
        """What could not be listed, and what could not be deleted."""
        return (*self.not_seen, *(f.removal.error for f in self.found if f.removal.error))


def find_orphans(api: TpuApi, *, journal: Journal, zone: str | None = None) -> GcResult:
    """Find everything that is dead, out of time, or was given up on; changes nothing."""
    seen = take_snapshot(api, zone or ALL_ZONES)
    now, given_up = api.clock.now(), _given_up(api, journal)
    finds = [
        _find(plan_group_deletion(group), reason)
        for group in group_resources(seen)
        if (reason := why_orphaned(group, now=now, given_up=given_up))
    ]
    return _summed(
        GcResult(
            tuple(sorted(finds, key=lambda find: (find.zone, find.name))),
            freed_chips=0,
            saved_usd_per_hour=0.0,
            acted=False,
            unreachable_zones=seen.unreachable_zones,
            not_seen=seen.failures,
        )
    )


def delete_orphans(
    api: TpuApi,
    leftovers: GcResult,
    *,
    journal: Journal,
    timeout_s: float = TIMEOUT_S,
    on_progress: OnProgress = silent,
) -> GcResult:
    """Delete what was found, each judged once more right before; one that fails stops no other."""
    given_up = _given_up(api, journal)
    ended = delete_all(
        api,
        [find.removal for find in leftovers.found],
        journal=journal,
        timeout_s=timeout_s,
        still_wanted=lambda group: bool(
            why_orphaned(group, now=api.clock.now(), given_up=given_up)
        ),
        on_progress=on_progress,
    )
    finds = (
        _find(removal, find.reason) for find, removal in zip(leftovers.found, ended, strict=True)
    )
    return _summed(replace(leftovers, found=tuple(finds), acted=True))


def why_orphaned(group: ResourceGroup, *, now: datetime, given_up: frozenset[str]) -> str | None:
    """Judge why nobody needs a group any more, or None; `given_up` are create ids.

    A queued resource goes with all of its nodes, so it stays while one of them is needed.
    """
    if any(resource.state == "DELETING" for resource in group.resources):
        return None
    of_nodes = [_why_node(node, now, given_up) for node in group.nodes]
    of_queued = _why_queued(group.queued, given_up) if group.queued else None
    if group.nodes and not all(of_nodes):
        return None
    reasons = dict.fromkeys(reason for reason in (*of_nodes, of_queued) if reason)
    return "; ".join(reasons) or None


def _why_node(node: Node, now: datetime, given_up: frozenset[str]) -> str | None:
    if node.is_dead:
        return f"{node.state}: never comes back, holds its name and quota"
    if node.labels.get(LABEL_CREATE_ID) in given_up:
        return "it came after its create had been given up"
    expires = expires_at(node)
    if expires and expires <= now:
        return f"its time was over {format_duration((now - expires).total_seconds())} ago"
    return None


def _why_queued(queued: QueuedResource, given_up: frozenset[str]) -> str | None:
    if queued.is_dead:
        why = f" ({queued.error})" if queued.error else ""
        return f"queued resource {queued.state}: gives no TPU any more, holds quota{why}"
    if queued.labels.get(LABEL_CREATE_ID) in given_up:
        return "its create was given up"
    return None


def _given_up(api: TpuApi, journal: Journal) -> frozenset[str]:
    """The ids of the creates whose TPU nobody waits for any more."""
    entries = journal.entries(api)
    return frozenset(e.create_id for e in entries if e.phase in ("abandoned", "closed"))


def _find(removal: TpuDeletion, reason: str) -> Orphan:
    return Orphan(
        kind=removal.kind,
        name=removal.name,
        zone=removal.zone,
        reason=reason,
        usd_per_hour=removal.usd_per_hour,
        chips=removal.chips,
        action="delete" if removal.outcome == "planned" else removal.outcome,
        removal=removal,
    )


def _summed(leftovers: GcResult) -> GcResult:
    """Add up what would go, or what has really gone."""
    counted = [find for find in leftovers.found if find.action in ("delete", "deleted")]
    return replace(
        leftovers,
        freed_chips=sum(find.chips or 0 for find in counted),
        saved_usd_per_hour=round(sum(find.usd_per_hour or 0 for find in counted), 4),
    )
