"""From what the service answers to what it means for a watch: pure."""

from datetime import datetime

from tpuctl.cloud import labels
from tpuctl.cloud.looking import Thing
from tpuctl.cloud.models import Node, QueuedResource
from tpuctl.cloud.tpu import describe_node
from tpuctl.watch.models import Known, Memory, TpuKind, TpuSight

_STOPPED = frozenset({"STOPPING", "STOPPED"})


def see(
    thing: Thing | None,
    queued: QueuedResource | None,
    memory: Memory,
    *,
    now: datetime,
    was_deleted: bool | None = None,
) -> TpuSight:
    """Say what a node, or what waits in line for one, means; `queued` is what made the node.

    `was_deleted` is whether somebody has deleted the TPU of before while it lived, None where that
    is not known.
    """
    if thing is None:
        known = memory.tpu
        expired = bool(known and known.expires and known.expires <= now)
        was_meant = memory.seen_leaving if was_deleted is None else was_deleted
        on_purpose = known is not None and was_meant
        return TpuSight("none", "gone", on_purpose=on_purpose, expired=expired)
    is_ours = thing.labels.get(labels.WATCH) == memory.watch
    if isinstance(thing, QueuedResource):
        kind: TpuKind = "dead" if thing.is_dead else "coming"
        return TpuSight(
            "leaving" if thing.state == "DELETING" else kind,
            thing.state,
            f"queued {thing.created.isoformat()}",
            thing.zone,
            is_ours=is_ours,
            in_line=True,
        )
    return _see_node(thing, queued, memory, now, is_ours)


def _see_node(
    node: Node, queued: QueuedResource | None, memory: Memory, now: datetime, is_ours: bool
) -> TpuSight:
    tpu = describe_node(node, now=now, emulated=False)
    was_taken = queued is not None and queued.is_dead and queued.stopped_by != "user"
    kind: TpuKind = "coming"
    if node.is_dead or was_taken:
        kind = "dead"
    elif node.state == "DELETING":
        kind = "leaving"
    elif node.state in _STOPPED:
        kind = "stopped"
    elif tpu.is_usable:
        kind = "usable"
    before = memory.tpu if memory.tpu and memory.tpu.id == node.id else None
    known = Known(
        node.id,
        node.zone,
        node.created,
        now,
        create_id=node.labels.get(labels.CREATE_ID),
        made=is_ours,
        proven=bool(before and before.proven),
        usd_per_hour=tpu.usd_per_hour,
        expires=tpu.expires,
    )
    return TpuSight(
        kind,
        node.state if not was_taken or queued is None else f"{node.state}, {queued.state}",
        node.id,
        node.zone,
        known=known if kind == "usable" else None,
        is_ours=is_ours,
        healthy=not tpu.ailments,
        expired=bool(tpu.expires and tpu.expires <= now),
    )
