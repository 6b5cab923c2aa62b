"""`gc`: find and delete TPUs that cost money or hold chips, names and quota, but are unused."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Literal

from tpuctl.cloud.api import TpuApi
from tpuctl.cloud.delete import (
    DeletionSummary,
    TpuDeletion,
    delete_all,
    plan_group_deletion,
)
from tpuctl.cloud.journal import COLLECTED, DELETED, Journal, JournalEntry
from tpuctl.cloud.lookup import ResourceGroup, group_resources, take_snapshot
from tpuctl.cloud.models import (
    ALL_ZONES,
    INCOMPLETE,
    LABEL_CREATE_ID,
    Node,
    QueuedResource,
    ResourceKind,
    shared,
)
from tpuctl.cloud.requests import SURELY_MISSING, is_of
from tpuctl.cloud.tpu import expires_at
from tpuctl.hardware.compute_engine import GCE
from tpuctl.outcome import Status
from tpuctl.progress import OnProgress, silent
from tpuctl.units import format_duration

_UNFINISHED = frozenset({INCOMPLETE, "CREATING", "PENDING"})

Action = Literal["delete", "deleted", "already_deleted", "replaced", "left_alone", "failed"]


@dataclass(frozen=True)
class Orphan:
    """A TPU or queued resource that is unused, why, and what is or was done about it."""

    kind: ResourceKind
    name: str
    zone: str | None
    reason: str
    usd_per_hour: float | None
    chips: int | None
    action: Action
    deletion: TpuDeletion = field(metadata={"internal": True})


@dataclass(frozen=True)
class GcResult(DeletionSummary):
    """All orphans, before or after their deletion; `unproven` is known by a label only."""

    found: tuple[Orphan, ...]
    acted: bool = False
    unproven: tuple[str, ...] = field(default=(), metadata={"internal": True})

    @property
    def deletions(self) -> tuple[TpuDeletion, ...]:
        """The planned or finished deletions."""
        return tuple(orphan.deletion for orphan in self.found)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Those of every deletion, and what was left alone."""
        return (*super().warnings, *self.unproven)

    @property
    def status(self) -> Status:
        """`attention` while there is something to delete, `partial` when not all was possible."""
        if self.failures or self.unreachable_zones:
            return "partial"
        return "attention" if self.found and not self.acted else "ok"


def find_orphans(api: TpuApi, *, journal: Journal, zone: str | None = None) -> GcResult:
    """Find everything that is dead, expired or abandoned; changes nothing."""
    seen = take_snapshot(api, zone or ALL_ZONES, leftovers=True)
    groups = group_resources(seen)
    finder = _OrphanFinder(api, journal)
    orphans = [
        orphan_of(plan_group_deletion(group), reason)
        for group in groups
        if (reason := finder.why_orphaned(group))
    ]
    return GcResult(
        tuple(sorted(orphans, key=lambda orphan: (orphan.zone, orphan.name))),
        unreachable_zones=seen.unreachable_zones,
        not_planned=seen.failures,
        unproven=tuple(text for group in groups for text in finder.unproven(group)),
    ).summed()


def delete_orphans(
    api: TpuApi,
    found: GcResult,
    *,
    journal: Journal,
    on_progress: OnProgress = silent,
) -> GcResult:
    """Delete the orphans, each only if it still is one right before; failures are in the result."""
    finder = _OrphanFinder(api, journal)
    ended = delete_all(
        api,
        found.deletions,
        journal=journal,
        is_unneeded=lambda group: bool(finder.why_orphaned(group)),
        on_progress=on_progress,
    )
    orphans = (
        orphan_of(deletion, orphan.reason)
        for orphan, deletion in zip(found.found, ended, strict=True)
    )
    return replace(found, found=tuple(orphans), acted=True).summed()


class _OrphanFinder:
    """Decides which groups are unused.

    Anyone with write access can copy or invent labels. So a TPU's labels count only if the journal
    knows the TPU, under the same name, zone and id.
    """

    def __init__(self, api: TpuApi, journal: Journal) -> None:
        self._clock, self._journal = api.clock, journal
        self._entries = {entry.create_id: entry for entry in journal.entries(api)}

    def why_orphaned(self, group: ResourceGroup) -> str | None:
        """Return why a group is unused now, or None."""
        ours = self._ours(group)
        abandoned = frozenset(
            create_id
            for create_id, entry in ours.items()
            if entry.phase == "abandoned"
            # Once it was seen to be gone, what has its labels now is a copy.
            or (entry.phase == "closed" and entry.outcome not in (COLLECTED, DELETED))
        )
        now = self._clock.now()
        if len(group.nodes) == 1 and (reason := self._why_interrupted(group.nodes[0], now)):
            return reason
        return why_orphaned(group, now=now, abandoned=abandoned, ours=ours)

    def unproven(self, group: ResourceGroup) -> list[str]:
        """Name the living TPUs whose time is over by a label that proves nothing."""
        ours, now = self._ours(group), self._clock.now()
        return [
            f"{node.name} in {node.zone} has expired by its label, which was not set from this "
            f"machine, so it is left alone. To delete it: "
            f"tpuctl delete {node.name} --zone {node.zone}"
            for node in group.nodes
            if not node.is_dead and node.state != "DELETING"
            if LABEL_CREATE_ID in node.labels and node.labels[LABEL_CREATE_ID] not in ours
            if (expires := expires_at(node)) and expires <= now
        ]

    def _ours(self, group: ResourceGroup) -> dict[str, JournalEntry]:
        """Return the requests that made this group, by create id; none that it has a copy of."""
        ours, copied = {}, set()
        for each in group.resources:
            create_id = each.labels.get(LABEL_CREATE_ID, "")
            if entry := self._entries.get(create_id):
                ours[create_id] = entry
                copied |= set() if is_of(each, entry) else {create_id}
        return {create_id: ours[create_id] for create_id in ours.keys() - copied}

    def _why_interrupted(self, node: Node, now: datetime) -> str | None:
        """Return why no process waits for a TPU that is not ready and is not a single request."""
        if node.state not in _UNFINISHED or node.provider != GCE:
            return None
        entry = self._entries.get(node.labels.get(LABEL_CREATE_ID, ""))
        if entry and self._journal.is_alive(entry.session):
            return None
        if node.state == INCOMPLETE:
            # Another machine may be making it right now.
            is_old = now - node.created >= SURELY_MISSING
            return "only parts of the slice exist" if entry or is_old else None
        if entry and entry.is_open and entry.outcome is None and is_of(node, entry):
            return (
                "its create was interrupted and is not being resumed (to resume: create it again)"
            )
        return None


def why_orphaned(
    group: ResourceGroup,
    *,
    now: datetime,
    abandoned: frozenset[str],
    ours: Collection[str] = (),
) -> str | None:
    """Return why a group is unused, or None.

    `abandoned` and `ours` are ids of creates that are known to have made the group. A queued
    resource is deleted with all of its nodes, so it is kept while one of them is needed.
    """
    if any(each.state == "DELETING" for each in group.resources):
        return None
    of_nodes = [_why_node(node, now, abandoned, ours) for node in group.nodes]
    of_queued = _why_queued(group.queued, abandoned) if group.queued else None
    if group.nodes and not all(of_nodes):
        return None
    reasons = dict.fromkeys(reason for reason in (*of_nodes, of_queued) if reason)
    return "; ".join(reasons) or None


def _why_node(
    node: Node, now: datetime, abandoned: frozenset[str], ours: Collection[str]
) -> str | None:
    if node.is_dead:
        return f"{node.state}: it will not recover, and holds its name and quota"
    create_id = node.labels.get(LABEL_CREATE_ID)
    if create_id in abandoned:
        return "created after its request was cancelled"
    expires = expires_at(node) if create_id in ours else None
    if expires and expires <= now:
        return f"expired {format_duration((now - expires).total_seconds())} ago"
    return None


def _why_queued(queued: QueuedResource, abandoned: frozenset[str]) -> str | None:
    if queued.is_dead:
        why = f" ({queued.error})" if queued.error else ""
        return f"queued resource {queued.state}: it will not yield a TPU, and holds quota{why}"
    if queued.labels.get(LABEL_CREATE_ID) in abandoned:
        return "its request was cancelled"
    return None


def orphan_of(deletion: TpuDeletion, reason: str) -> Orphan:
    """Describe an orphan by its planned or finished deletion."""
    action: Action = "delete" if deletion.outcome == "planned" else deletion.outcome
    known = {**shared(Orphan, deletion), "reason": reason}
    return Orphan(**known, action=action, deletion=deletion)
