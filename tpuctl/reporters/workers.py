"""Results from workers: commands, copies, jobs, chips and their holders, load."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from tpuctl.printable import printable
from tpuctl.remote.hosts import name_workers, ranges
from tpuctl.reporters import layout
from tpuctl.units import format_bytes, format_count, format_duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import RenderableType
    from rich.table import Table

    from tpuctl.remote.copy_plan import CopyPreview, CopyResults
    from tpuctl.remote.free import ChipHolder, Holders, WorkerHolders
    from tpuctl.remote.jobs import Job, Jobs, StoppedJob
    from tpuctl.remote.results import Results
    from tpuctl.remote.ssh import Shell
    from tpuctl.remote.top import ChipUse, Usage, WorkerUse

_LONGEST_COMMAND = 40
_SHOWN_FILES = 20


def render_run(result: Results) -> str | None:
    """Name a job that was started, and the commands that follow and stop it.

    Other output has been shown already, and failures are printed as errors.
    """
    from tpuctl.remote.jobs import StartedJob

    if not isinstance(result, StartedJob) or result.failures:
        return None
    job = f"{result.target} --job {result.job}"
    return (
        f"Job {result.job} runs on {format_count(len(result.workers), 'worker')}.\n"
        f"  follow it:  tpuctl logs {job} -f\n"
        f"  stop it:    tpuctl stop {job}"
    )


def render_stopped_job(result: StoppedJob) -> str | None:
    """Say where the job was stopped, and where it had ended before."""
    states: dict[str, list[int]] = {}
    for worker in result.workers:
        if not worker.failure:
            states.setdefault(f"{worker.was}", []).append(worker.index)
    lines = [
        f"Stopped job {result.job} on {name_workers(workers)}."
        if state == "running"
        else f"Job {result.job} was not running on {name_workers(workers)}: already {state}."
        for state, workers in states.items()
    ]
    return "\n".join(lines) or None


def render_preview(result: CopyPreview) -> str:
    """List the largest files that would be copied, and all that would be left out."""
    workers, way = format_count(result.workers, "worker"), result.direction.value
    files = sorted(result.files, key=lambda file: -file.size_bytes)
    lines = [f"Would copy {format_count(len(files), 'file')} ({format_bytes(result.size_bytes)}) "
             f"{way} {workers}; unchanged ones are not sent again."]  # fmt: skip
    lines += [f"  {file.path}  {format_bytes(file.size_bytes)}" for file in files[:_SHOWN_FILES]]
    if len(files) > _SHOWN_FILES:
        lines.append(f"  and {len(files) - _SHOWN_FILES} smaller ones (--json lists them)")
    lines += ["Left out:"] * bool(result.left_out)
    for one in result.left_out:
        lines.append(f"  {one.path}  {'may be secret: ' if one.is_secret else ''}{one.why}")
    return "\n".join(lines)


def render_copied(result: CopyResults | CopyPreview) -> str | None:
    """Say how many files were copied, how many were unchanged, and how long it took."""
    from tpuctl.remote.copy_plan import CopyPreview

    if isinstance(result, CopyPreview):
        return render_preview(result)
    done = [worker for worker in result.workers if not worker.failure]
    if not done:
        return None
    same = len({(one.files, one.sent, one.sent_bytes) for one in done}) == 1 and len(done) > 1
    counted = done[:1] if same else done
    files, sent = sum(one.files for one in counted), sum(one.sent for one in counted)
    size = format_bytes(sum(one.sent_bytes for one in counted))
    workers = f"each of {len(done)} workers" if same else format_count(len(done), "worker")
    took = format_duration(result.seconds)
    if not sent:
        return f"Nothing to copy: {format_count(files, 'file')} unchanged on {workers} ({took})."
    unchanged = f"; {format_count(files - sent, 'file')} unchanged" if sent < files else ""
    where = f"{result.direction.value} {workers} in {took}"
    return f"Copied {format_count(sent, 'file')} ({size}) {where}{unchanged}."


def render_shell(result: Shell) -> str:
    """Write the ssh command to paste."""
    return shlex.join(result.argv)


def render_jobs(result: Jobs) -> RenderableType:
    """List jobs, one line for each."""
    return jobs_table(result.jobs) if result.jobs else "No jobs."


def jobs_table(jobs: Sequence[Job]) -> Table:
    """List jobs in a table, the oldest first."""
    table = layout.table("job", "started", "state", "command")
    for job in jobs:
        command = shlex.join(job.command).replace("\n", " ")
        if len(command) > _LONGEST_COMMAND:
            command = f"{command[: _LONGEST_COMMAND - 1]}…"
        table.add_row(job.job, job.started[:16].replace("T", " "), _job_states(job), command)
    for column in table.columns[:2]:
        column.no_wrap = True
    return table


def _job_states(job: Job) -> str:
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


# The keys are the outcomes of tpuctl.remote.agent.chips.
_OUTCOMES = {
    "ended": "ended",
    "killed": "killed",
    "gone": "already gone",
    "refused": "not yours to end",
    "stays": "did not end",
    "left": "left alone",
}
_FREED = ("ended", "killed", "gone")


def free_question(held: Holders) -> str:
    """Name everything that would be ended, then ask for permission."""
    ending = held.to_end
    lines = [_holder_line(worker, holder) for worker, holder in ending]
    stale = [worker.index for worker in held.workers if worker.stale_lockfile]
    if stale:
        lines.append(f"worker {ranges(stale)}: libtpu's lock file was left by another user")
    actions = []
    if ending or not stale:
        places = len({worker.index for worker, _ in ending})
        what = format_count(len(ending), "process", "processes")
        actions.append(f"End {what} on {format_count(places, 'worker')}")
    if stale:
        verb = "remove" if actions else "Remove"
        actions.append(f"{verb} the lock file on {format_count(len(stale), 'worker')}")
    return "\n".join([*lines, f"{' and '.join(actions)}?"])


def render_held(result: Holders) -> str | None:
    """List each process that holds or held chips, and which workers are free."""
    done = [worker for worker in result.workers if not worker.failure or worker.holders]
    lines = [_holder_line(worker, holder) for worker in done for holder in worker.holders]
    if removed := [worker.index for worker in done if worker.lockfile_removed]:
        lines.append(f"worker {ranges(removed)}: removed libtpu's stale lock file")
    if bare := [worker.index for worker in done if not worker.chips]:
        lines.append(f"worker {ranges(bare)}: no chips")
    free = [
        worker.index
        for worker in done
        if worker.chips and not worker.failure
        if all(one.outcome in _FREED for one in worker.holders)
    ]
    if free:
        lines.append(f"worker {ranges(free)}: all chips are free, as far as can be seen")
    return "\n".join(lines) or None


def _holder_line(worker: WorkerHolders, holder: ChipHolder) -> str:
    who = f"{holder.pid} {holder.user or '?'} {holder.command or '(nameless)'}"
    notebook = ", this notebook" if holder.is_this_notebook else ""
    outcome = f": {_OUTCOMES[holder.outcome]}" if holder.outcome else ""
    how = f"{holder.seen_by}{notebook}"
    return f"worker {worker.index}: {who} holds {holder.device} ({how}){outcome}"


_UNKNOWN = "–"
_MANY_CHIPS = 32


def render_usage(result: Usage) -> RenderableType:
    """Show a line for each chip, or each worker if there are many; then why numbers are missing."""
    right = ("worker", "vCPUs", "memory", "chip", "duty", "HBM")
    table = layout.table(*right, "holder", right=right)
    for column in table.columns[:-1]:
        column.no_wrap = True
    is_long = sum(len(worker.chips) for worker in result.workers) > _MANY_CHIPS
    for worker in result.workers:
        load = _UNKNOWN
        if worker.vcpu_percent is not None:
            load = f"{worker.vcpu_percent:.0f}% of {worker.vcpus or '?'}"
        machine = [str(worker.index), load, _of(worker.memory_used_bytes, worker.memory_bytes)]
        rows = [_all_chips(worker)] if is_long and worker.chips else map(_chip, worker.chips)
        for row in list(rows) or [[_UNKNOWN] * 4]:
            table.add_row(*machine, *row)
            machine = [""] * len(machine)
    return layout.stack(table, *map(layout.text, _reasons(result)))


def render_live_usage(result: Usage) -> RenderableType:
    """Show usage with failures below it: while it is updated they have no other place."""
    failures = (layout.text(printable(str(failure))) for failure in result.failures)
    return layout.stack(render_usage(result), *failures)


def _chip(chip: ChipUse) -> list[str]:
    return [
        str(chip.index),
        _percent([chip.duty_cycle_percent]),
        _of(chip.hbm_used_bytes, chip.hbm_bytes),
        _holder(chip),
    ]


def _all_chips(worker: WorkerUse) -> list[str]:
    """Sum up the chips of a worker; a number is shown only if every chip has one."""
    return [
        f"all {len(worker.chips)}",
        _percent([chip.duty_cycle_percent for chip in worker.chips]),
        _of(
            _sum(chip.hbm_used_bytes for chip in worker.chips),
            _sum(chip.hbm_bytes for chip in worker.chips),
        ),
        "; ".join(dict.fromkeys(map(_holder, worker.chips))),
    ]


def _holder(chip: ChipUse) -> str:
    if chip.holder_pid is None:
        return _UNKNOWN
    return f"{chip.holder_pid} {chip.holder_user or '?'} {chip.holder_command or ''}".rstrip()


def _percent(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if len(known) < len(values) or not known:
        return _UNKNOWN
    low, high = f"{min(known):.0f}", f"{max(known):.0f}"
    return f"{low}%" if low == high else f"{low}–{high}%"


def _of(used: int | None, total: int | None) -> str:
    if used is None:
        return _UNKNOWN
    return format_bytes(used) + (f" of {format_bytes(total)}" if total else "")


def _sum(values: Iterable[int | None]) -> int | None:
    known = list(values)
    return None if None in known else sum(value for value in known if value is not None)


def _reasons(result: Usage) -> list[str]:
    """Say why numbers are missing: each reason once, with its workers and chips."""
    found: dict[str, list[tuple[int, int | None]]] = {}
    for worker in result.workers:
        if worker.why_null and not worker.failure:
            found.setdefault(worker.why_null, []).append((worker.index, None))
        if not worker.chips and not worker.failure:
            found.setdefault("no chips", []).append((worker.index, None))
        for chip in worker.chips:
            if chip.why_null:
                found.setdefault(chip.why_null, []).append((worker.index, chip.index))
    return [f"{_places(places)}: {why}" for why, places in found.items()]


def _places(places: list[tuple[int, int | None]]) -> str:
    workers = ranges({worker for worker, _ in places})
    chips = {chip for _, chip in places if chip is not None}
    return f"worker {workers}" + (f", chip {ranges(chips)}" if chips else "")
