"""`gc`: find and delete TPUs that cost money or hold chips, names and quota, but serve nobody."""

from collections import Counter
from collections.abc import Collection, Sequence
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
    """A TPU or queued resource that nobody needs, why, and what is or was done about it."""

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
    """All orphans, before or after their deletion."""

    found: tuple[Orphan, ...]
    acted: bool = False

    @property
    def deletions(self) -> tuple[TpuDeletion, ...]:
        """The planned or finished deletions."""
        return tuple(orphan.deletion for orphan in self.found)

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
    judge = _Judge(api, journal, groups)
    orphans = [
        _orphan(plan_group_deletion(group), reason)
        for group in groups
        if (reason := judge.why_orphaned(group))
    ]
    return GcResult(
        tuple(sorted(orphans, key=lambda orphan: (orphan.zone, orphan.name))),
        unreachable_zones=seen.unreachable_zones,
        not_planned=seen.failures,
    ).summed()


def delete_orphans(
    api: TpuApi,
    found: GcResult,
    *,
    journal: Journal,
    on_progress: OnProgress = silent,
) -> GcResult:
    """Delete the orphans, each only if it still is one right before; failures are in the result."""
    judge = _Judge(api, journal, ())
    ended = delete_all(
        api,
        found.deletions,
        journal=journal,
        is_unneeded=lambda group: bool(judge.why_orphaned(group)),
        on_progress=on_progress,
    )
    orphans = (
        _orphan(deletion, orphan.reason)
        for orphan, deletion in zip(found.found, ended, strict=True)
    )
    return replace(found, found=tuple(orphans), acted=True).summed()


class _Judge:
    """Decides which groups nobody needs.

    Labels can be copied to another TPU. So the labels of a TPU that the journal knows under another
    name, zone or id, and of TPUs that share a create id, say nothing.
    """

    def __init__(self, api: TpuApi, journal: Journal, groups: Sequence[ResourceGroup]) -> None:
        self._clock, self._journal = api.clock, journal
        self._entries = {entry.create_id: entry for entry in journal.entries(api)}
        places = {
            (each.labels.get(LABEL_CREATE_ID, ""), each.name, each.zone)
            for group in groups
            for each in group.resources
        }
        counts = Counter(create_id for create_id, _, _ in places)
        self._copied = frozenset(create_id for create_id in counts if counts[create_id] > 1)

    def why_orphaned(self, group: ResourceGroup) -> str | None:
        """Return why nobody needs a group now, or None."""
        abandoned, copied = set(), set()
        for each in group.resources:
            create_id = each.labels.get(LABEL_CREATE_ID, "")
            entry = self._entries.get(create_id)
            if entry is None:
                copied |= {create_id} & self._copied
            elif not is_of(each, entry):
                copied.add(create_id)
            elif entry.phase in ("abandoned", "closed") and not _is_deleted(entry):
                abandoned.add(create_id)
        now = self._clock.now()
        if len(group.nodes) == 1 and (reason := self._why_interrupted(group.nodes[0], now)):
            return reason
        return why_orphaned(group, now=now, abandoned=frozenset(abandoned - copied), copied=copied)

    def _why_interrupted(self, node: Node, now: datetime) -> str | None:
        """Return why nobody waits for a TPU that is not ready and is not a single request."""
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
                "its create was interrupted, and nobody waits for it (to resume: create it again)"
            )
        return None


def _is_deleted(entry: JournalEntry) -> bool:
    """Whether its TPU was seen to be gone, so that what has its labels now is a copy."""
    return entry.phase == "closed" and entry.outcome in (COLLECTED, DELETED)


def why_orphaned(
    group: ResourceGroup,
    *,
    now: datetime,
    abandoned: frozenset[str],
    copied: Collection[str] = (),
) -> str | None:
    """Return why nobody needs a group, or None.

    `abandoned` are create ids, `copied` those of which a TPU in the group has only a copy. A queued
    resource is deleted with all of its nodes, so it is kept while one of them is needed.
    """
    if any(each.state == "DELETING" for each in group.resources):
        return None
    of_nodes = [_why_node(node, now, abandoned, copied) for node in group.nodes]
    of_queued = _why_queued(group.queued, abandoned) if group.queued else None
    if group.nodes and not all(of_nodes):
        return None
    reasons = dict.fromkeys(reason for reason in (*of_nodes, of_queued) if reason)
    return "; ".join(reasons) or None


def _why_node(
    node: Node, now: datetime, abandoned: frozenset[str], copied: Collection[str]
) -> str | None:
    if node.is_dead:
        return f"{node.state}: it will not recover, and holds its name and quota"
    create_id = node.labels.get(LABEL_CREATE_ID)
    if create_id in abandoned:
        return "created after its request was cancelled"
    # The guard on the TPU trusts no other time to live either.
    expires = None if create_id is None or create_id in copied else expires_at(node)
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


def _orphan(deletion: TpuDeletion, reason: str) -> Orphan:
    action: Action = "delete" if deletion.outcome == "planned" else deletion.outcome
    known = {**shared(Orphan, deletion), "reason": reason}
    return Orphan(**known, action=action, deletion=deletion)
