"""Turn the answers of the service and of the workers into observations."""

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from datetime import datetime
from typing import TypeVar

from tpuctl.cloud.lookup import Resource
from tpuctl.cloud.models import LABEL_CREATE_ID, LABEL_WATCH, Node, QueuedResource
from tpuctl.cloud.tpu import describe_node
from tpuctl.errors import TpuctlError, WorkerUnreachableError
from tpuctl.hardware.compute_engine import GCE
from tpuctl.remote.access import Access
from tpuctl.remote.agent.jobs import RUNNING
from tpuctl.remote.barrier import probe_fleet
from tpuctl.remote.connection import Connection
from tpuctl.remote.fleet import open_fleet, run_async
from tpuctl.remote.hosts import Host
from tpuctl.remote.jobs import JobRecord, jobs_of
from tpuctl.remote.results import CommandResult, command_result
from tpuctl.supervise.models import (
    JobObservation,
    KnownTpu,
    TpuKind,
    TpuObservation,
    WatchState,
    WorkersObservation,
    is_watched,
)

_STOPPED = frozenset({"STOPPING", "STOPPED"})


def observe_tpu(
    resource: Resource | None,
    queued: QueuedResource | None,
    state: WatchState,
    *,
    now: datetime,
    was_deleted: bool | None = None,
    why_gone: str = "",
) -> TpuObservation:
    """Interpret a node or a queued resource; `queued` is the queued resource that made the node.

    `was_deleted` is whether a user deleted the previous TPU while it was alive, None if unknown.
    """
    if resource is None:
        known = state.tpu
        expired = bool(known and known.expires and known.expires <= now)
        was_meant = state.seen_leaving if was_deleted is None else was_deleted
        on_purpose = known is not None and was_meant
        return TpuObservation(
            "none", "gone", on_purpose=on_purpose, expired=expired, why_gone=why_gone
        )
    is_ours = resource.labels.get(LABEL_WATCH) == state.watch
    if isinstance(resource, QueuedResource):
        kind: TpuKind = "dead" if resource.is_dead else "coming"
        return TpuObservation(
            "leaving" if resource.state == "DELETING" else kind,
            resource.state,
            resource_id(resource),
            resource.zone,
            is_ours=is_ours,
            in_line=True,
        )
    seen = _observe_node(resource, queued, now, is_ours)
    # The end was read from the VMs, and an expired slice of Compute Engine has none left.
    known = state.tpu if state.tpu and state.tpu.id == seen.id else None
    was_due = bool(known and known.expires and known.expires <= now)
    return replace(seen, expired=seen.expired or (was_due and seen.kind == "dead"))


def resource_id(resource: Resource) -> str:
    """Return what distinguishes a resource from a later one of the same name."""
    if isinstance(resource, Node):
        return resource.id
    return f"queued {resource.created.isoformat()}"


def _observe_node(
    node: Node, queued: QueuedResource | None, now: datetime, is_ours: bool
) -> TpuObservation:
    tpu = describe_node(node, now=now, emulated=False)
    # When the service takes a queued TPU away, the node is DELETING like one that a user deletes;
    # only its queued resource tells the two apart.
    was_taken = queued is not None and queued.is_dead and queued.stopped_by != "user"
    kind: TpuKind = "coming"
    state = node.state if not was_taken or queued is None else f"{node.state}, {queued.state}"
    if node.is_dead or was_taken:
        kind = "dead"
        # Compute Engine knows why; elsewhere this is about a node that is alive.
        if node.provider == GCE and node.health_description:
            state += f": {node.health_description}"
    elif node.state == "DELETING":
        kind = "leaving"
    elif node.state in _STOPPED:
        kind = "stopped"
    elif tpu.is_usable:
        kind = "usable"
    known = KnownTpu(
        node.id,
        node.zone,
        node.created,
        now,
        create_id=node.labels.get(LABEL_CREATE_ID),
        made=is_ours,
        usd_per_hour=tpu.usd_per_hour,
        expires=tpu.expires,
    )
    return TpuObservation(
        kind,
        state,
        node.id,
        node.zone,
        known=known if kind == "usable" or node.is_partly_deleted else None,
        is_ours=is_ours,
        healthy=not tpu.health_warnings,
        on_purpose=node.is_partly_deleted,
        why_gone=node.health_description if node.is_partly_deleted else "",
        expired=bool(tpu.expires and tpu.expires <= now),
    )


T = TypeVar("T")

ANSWER_S = 60.0
"""How long a worker may take to answer after it accepted the connection."""


def observe_workers(
    hosts: tuple[Host, ...],
    access: Access,
    state: WatchState,
    *,
    chips_per_worker: int | None,
    answer_s: float = ANSWER_S,
) -> WorkersObservation:
    """Ask every worker for its jobs, and probe its fitness where none of our jobs runs."""
    return run_async(_ask(hosts, access, state, chips_per_worker, answer_s))


async def _ask(
    hosts: tuple[Host, ...],
    access: Access,
    state: WatchState,
    chips_per_worker: int | None,
    answer_s: float,
) -> WorkersObservation:
    async with open_fleet(hosts, access) as fleet:

        async def jobs(connection: Connection) -> tuple[JobRecord, ...]:
            return await _in_time(jobs_of(connection), connection.host.label, answer_s)

        pairs = list(zip(hosts, await fleet.each(jobs), strict=True))
        errors = {host.index: a for host, a in pairs if isinstance(a, TpuctlError)}
        known = [(host, a) for host, a in pairs if not isinstance(a, TpuctlError)]
        running = {entry.job for _, jobs in known for entry in jobs if entry.state == RUNNING}
        ours = sorted(job for job in running if state.owns(job))
        open_job = state.open.job if state.open else None
        unfit: dict[int, TpuctlError] = {}
        if not errors and not ours and state.open is None:
            probing = probe_fleet(fleet, chips_per_worker)
            unfit = (await _in_time(probing, "One of the workers", 2 * answer_s)).unfit
    return WorkersObservation(
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
        strangers=tuple(sorted(job for job in running if is_watched(job) and not state.owns(job))),
    )


async def _in_time(work: Awaitable[T], who: str, limit_s: float) -> T:
    try:
        return await asyncio.wait_for(work, limit_s)
    except asyncio.TimeoutError:
        raise WorkerUnreachableError(
            f"{who} accepted the connection, but did not answer within {limit_s:g} s.",
            hint="Its disk or memory may be full. To check: tpuctl ssh",
        ) from None


def _job(host: Host, entry: JobRecord) -> JobObservation:
    if not entry.exit:
        return JobObservation(entry.state)
    end = command_result(CommandResult, host, "The job", entry.exit)
    return JobObservation(entry.state, end.exit_code, end.failure)
