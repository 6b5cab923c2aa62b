"""What happened on workers, as text."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from tpuctl.remote.hosts import name_workers, ranges
from tpuctl.units import format_bytes, format_duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType
    from rich.table import Table

    from tpuctl.remote.copy_plan import CopyResults
    from tpuctl.remote.jobs import Job, Jobs, StartedJob, StoppedJob
    from tpuctl.remote.results import Results
    from tpuctl.remote.ssh import Shell

_LONGEST = 40


def ends(result: Results) -> None:
    """Nothing: the commands have said it themselves, and failures are said as such."""


def started(result: StartedJob) -> str | None:
    """The job's name, and the commands that follow and end it."""
    if result.failures:
        return None
    where = _count(len(result.workers), "worker")
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
        f"Job {result.job} was stopped on {name_workers(workers)}."
        if state == "running"
        else f"Job {result.job} was not running on {name_workers(workers)}: {state} already."
        for state, workers in was.items()
    ]
    return "\n".join(lines) or None


def copied(result: CopyResults) -> str | None:
    """How many files went which way, how many were there already, and how long it took."""
    done = [worker for worker in result.workers if not worker.failure]
    if not done:
        return None
    each = len({(one.files, one.sent, one.sent_bytes) for one in done}) == 1 and len(done) > 1
    counted = done[:1] if each else done
    files, sent = sum(one.files for one in counted), sum(one.sent for one in counted)
    size = format_bytes(sum(one.sent_bytes for one in counted))
    workers = f"each of {len(done)} workers" if each else _count(len(done), "worker")
    took = format_duration(result.seconds)
    if not sent:
        return f"Nothing had changed in {_count(files, 'file')} on {workers} ({took})."
    there = f"; {_count(files - sent, 'file')} unchanged" if sent < files else ""
    where = f"{result.direction.value} {workers} in {took}"
    return f"Copied {_count(sent, 'file')} ({size}) {where}{there}."


def shell(result: Shell) -> str:
    """The command to paste."""
    return shlex.join(result.argv)


def jobs(result: Jobs) -> RenderableType:
    """A table of jobs, a line for each."""
    return table_of_jobs(result.jobs) if result.jobs else "There are no jobs."


def table_of_jobs(jobs: Sequence[Job]) -> Table:
    """A line for each job, the oldest first."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("job", no_wrap=True)
    table.add_column("started", no_wrap=True)
    table.add_column("state")
    table.add_column("command")
    for job in jobs:
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
    text = shlex.join(job.command).replace("\n", " ")
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
