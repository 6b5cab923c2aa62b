"""From what the service answers to what it means for a watch: pure."""

import asyncio
from collections.abc import Awaitable
from datetime import datetime
from typing import TypeVar

from tpuctl.cloud import models
from tpuctl.cloud.lookup import Thing
from tpuctl.cloud.models import Node, QueuedResource
from tpuctl.cloud.tpu import describe_node
from tpuctl.errors import TpuctlError, WorkerUnreachableError
from tpuctl.remote.access import Access
from tpuctl.remote.agent.jobs import RUNNING
from tpuctl.remote.barrier import probe_fleet
from tpuctl.remote.connection import Connection
from tpuctl.remote.fleet import open_fleet, run_async
from tpuctl.remote.hosts import Host
from tpuctl.remote.jobs import JobRecord, jobs_of
from tpuctl.remote.results import CommandResult, command_result
from tpuctl.supervise.models import (
    JobSight,
    Known,
    Memory,
    TpuKind,
    TpuSight,
    WorkersSight,
    is_watched,
)

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
    is_ours = thing.labels.get(models.WATCH) == memory.watch
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
        create_id=node.labels.get(models.CREATE_ID),
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


T = TypeVar("T")

ANSWER_S = 60.0
"""How long a worker that lets us in may take to answer: one that hangs is as good as gone."""


def ask_workers(
    hosts: tuple[Host, ...],
    access: Access,
    memory: Memory,
    *,
    chips_per_worker: int | None,
    answer_s: float = ANSWER_S,
) -> WorkersSight:
    """Look at every worker; whether it is fit for a job only where no job of ours runs."""
    return run_async(_ask(hosts, access, memory, chips_per_worker, answer_s))


async def _ask(
    hosts: tuple[Host, ...],
    access: Access,
    memory: Memory,
    chips_per_worker: int | None,
    answer_s: float,
) -> WorkersSight:
    async with open_fleet(hosts, access) as fleet:

        async def jobs(connection: Connection) -> tuple[JobRecord, ...]:
            return await _in_time(jobs_of(connection), connection.host.label, answer_s)

        pairs = list(zip(hosts, await fleet.each(jobs), strict=True))
        errors = {host.index: a for host, a in pairs if isinstance(a, TpuctlError)}
        known = [(host, a) for host, a in pairs if not isinstance(a, TpuctlError)]
        running = {entry.job for _, jobs in known for entry in jobs if entry.state == RUNNING}
        ours = sorted(job for job in running if memory.owns(job))
        open_job = memory.open.job if memory.open else None
        unfit: dict[int, TpuctlError] = {}
        if not errors and not ours and memory.open is None:
            probing = probe_fleet(fleet, chips_per_worker)
            unfit = (await _in_time(probing, "One of the workers", 2 * answer_s)).unfit
    return WorkersSight(
        count=len(hosts),
        errors=errors,
        unfit=unfit,
        job={
            host.index: _job(host, entry)
            for host, jobs in known
            for entry in jobs
            if entry.job == open_job
        },
        remains=tuple(job for job in ours if job != open_job),
        strangers=tuple(sorted(job for job in running if is_watched(job) and not memory.owns(job))),
    )


async def _in_time(work: Awaitable[T], who: str, limit_s: float) -> T:
    try:
        return await asyncio.wait_for(work, limit_s)
    except asyncio.TimeoutError:
        raise WorkerUnreachableError(
            f"{who} lets us in, but did not answer within {limit_s:g} s.",
            hint="Is its disk full, or its memory? Look yourself: tpuctl ssh",
        ) from None


def _job(host: Host, entry: JobRecord) -> JobSight:
    if not entry.exit:
        return JobSight(entry.state)
    end = command_result(CommandResult, host, "The job", entry.exit)
    return JobSight(entry.state, end.exit_code, end.failure)
