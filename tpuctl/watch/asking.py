"""Ask the workers: can they be reached, which jobs have they, are they fit for another?"""

from typing import Any

from tpuctl.errors import TpuctlError
from tpuctl.remote.access import Access
from tpuctl.remote.agent.jobs import RUNNING
from tpuctl.remote.barrier import probe_fleet
from tpuctl.remote.ends import end_of
from tpuctl.remote.fleet import drive, open_fleet
from tpuctl.remote.hosts import Host
from tpuctl.remote.jobs import jobs_of
from tpuctl.watch.models import JOBS, JobSight, Memory, WorkersSight


def ask_workers(
    hosts: tuple[Host, ...], access: Access, memory: Memory, *, chips_per_worker: int | None
) -> WorkersSight:
    """Look at every worker; whether it is fit for a job only where no job of ours runs."""
    return drive(_ask(hosts, access, memory, chips_per_worker))


async def _ask(
    hosts: tuple[Host, ...], access: Access, memory: Memory, chips_per_worker: int | None
) -> WorkersSight:
    async with open_fleet(hosts, access) as fleet:
        pairs = list(zip(hosts, await fleet.each(jobs_of), strict=True))
        errors = {host.index: a for host, a in pairs if isinstance(a, TpuctlError)}
        known = [(host, a) for host, a in pairs if not isinstance(a, TpuctlError)]
        running = {entry["job"] for _, jobs in known for entry in jobs if entry["state"] == RUNNING}
        ours = sorted(job for job in running if memory.owns(job))
        open_job = memory.open.job if memory.open else None
        unfit: dict[int, TpuctlError] = {}
        if not errors and not ours and memory.open is None:
            unfit = (await probe_fleet(fleet, chips_per_worker)).unfit
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
        strangers=tuple(
            sorted(job for job in running if job.startswith(JOBS) and not memory.owns(job))
        ),
    )


def _job(host: Host, entry: dict[str, Any]) -> JobSight:
    if not entry["exit"]:
        return JobSight(entry["state"])
    end = end_of(host, "The job", entry["exit"])
    return JobSight(entry["state"], end.exit_code, end.failure)
