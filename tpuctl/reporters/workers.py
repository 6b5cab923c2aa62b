"""What happened on workers, as text."""

import shlex

from rich.console import RenderableType
from rich.table import Table

from tpuctl.remote.ends import Ends
from tpuctl.remote.hosts import ranges
from tpuctl.remote.jobs import Job, Jobs, StartedJob, StoppedJob


def ends(result: Ends) -> None:
    """Nothing: the commands have said it themselves, and failures are said as such."""


def started(result: StartedJob) -> str | None:
    """The job's name, and the commands that follow and end it."""
    if result.failures:
        return None
    where = _count(len(result.workers))
    again = f"{result.target} --job {result.job}"
    return (
        f"Job {result.job} runs on {where}.\n"
        f"  follow it:  tpuctl logs {again} -f\n"
        f"  end it:     tpuctl stop {again}"
    )


def stopped(result: StoppedJob) -> str | None:
    """What became of the job, by the state it was in."""
    was: dict[str, list[int]] = {}
    for worker in result.workers:
        if not worker.failure:
            was.setdefault(f"{worker.was}", []).append(worker.index)
    lines = [
        f"Job {result.job} was stopped on worker {ranges(workers)}."
        if state == "running"
        else f"Job {result.job} was not running on worker {ranges(workers)}: {state} already."
        for state, workers in was.items()
    ]
    return "\n".join(lines) or None


def jobs(result: Jobs) -> RenderableType:
    """A table of jobs, a line for each."""
    if not result.jobs:
        return "There are no jobs."
    table = Table(box=None, pad_edge=False)
    table.add_column("job", no_wrap=True)
    table.add_column("started", no_wrap=True)
    table.add_column("state")
    table.add_column("command", no_wrap=True, overflow="ellipsis")
    for job in result.jobs:
        table.add_row(job.job, job.started[:16].replace("T", " "), _states(job), _command(job))
    return table


def _states(job: Job) -> str:
    groups: dict[str, list[int]] = {}
    for worker in job.workers:
        state = worker.state
        if worker.signal:
            state += f", signal {worker.signal}"
        elif worker.exit_code is not None:
            state += f", exit code {worker.exit_code}"
        groups.setdefault(state, []).append(worker.index)
    if len(groups) == 1:
        return next(iter(groups))
    return "; ".join(f"{state} ({ranges(workers)})" for state, workers in groups.items())


def _command(job: Job) -> str:
    return shlex.join(job.command).replace("\n", " ")


def _count(workers: int) -> str:
    return "1 worker" if workers == 1 else f"{workers} workers"
