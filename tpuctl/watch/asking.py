"""Ask the workers: can they be reached, which jobs have they, are they fit for another?"""

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

from tpuctl.errors import TpuctlError, WorkerUnreachableError
from tpuctl.remote.access import Access
from tpuctl.remote.agent.jobs import RUNNING
from tpuctl.remote.barrier import probe_fleet
from tpuctl.remote.connection import Connection
from tpuctl.remote.ends import end_of
from tpuctl.remote.fleet import drive, open_fleet
from tpuctl.remote.hosts import Host
from tpuctl.remote.jobs import jobs_of
from tpuctl.watch.models import JobSight, Memory, WorkersSight, is_watched

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
    return drive(_ask(hosts, access, memory, chips_per_worker, answer_s))


async def _ask(
    hosts: tuple[Host, ...],
    access: Access,
    memory: Memory,
    chips_per_worker: int | None,
    answer_s: float,
) -> WorkersSight:
    async with open_fleet(hosts, access) as fleet:

        async def jobs(connection: Connection) -> list[dict[str, Any]]:
            return await _in_time(jobs_of(connection), connection.host.label, answer_s)

        pairs = list(zip(hosts, await fleet.each(jobs), strict=True))
        errors = {host.index: a for host, a in pairs if isinstance(a, TpuctlError)}
        known = [(host, a) for host, a in pairs if not isinstance(a, TpuctlError)]
        running = {entry["job"] for _, jobs in known for entry in jobs if entry["state"] == RUNNING}
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
            if entry["job"] == open_job
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


def _job(host: Host, entry: dict[str, Any]) -> JobSight:
    if not entry["exit"]:
        return JobSight(entry["state"])
    end = end_of(host, "The job", entry["exit"])
    return JobSight(entry["state"], end.exit_code, end.failure)
