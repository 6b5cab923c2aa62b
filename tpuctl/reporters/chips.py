"""Who has the chips, as text."""

from tpuctl.remote.agent.chips import ENDED, GONE, KILLED, LEFT_ALONE, REFUSED, STILL_RUNNING
from tpuctl.remote.free import ChipHolder, Holders, WorkerHolders
from tpuctl.remote.hosts import ranges

_OUTCOMES = {
    ENDED: "ended",
    KILLED: "killed",
    GONE: "gone already",
    REFUSED: "not ours to end",
    STILL_RUNNING: "does not end",
    LEFT_ALONE: "left alone",
}


def question(held: Holders) -> str:
    """Everything that is about to be ended, then the question."""
    ending = held.to_end
    lines = [_line(worker, holder) for worker, holder in ending]
    stale = [worker.index for worker in held.workers if worker.stale_lockfile]
    if stale:
        lines.append(f"worker {ranges(stale)}: libtpu's lock file is another user's; nobody has it")
    places = len({worker.index for worker, _ in ending})
    what = [f"End {_count(len(ending), 'process', 'processes')} on {_workers(places)}"]
    if stale:
        what = [*(what if ending else []), f"remove the lock file on {_workers(len(stale))}"]
    asked = " and ".join(what)
    return "\n".join([*lines, f"{asked[0].upper()}{asked[1:]}?"])


def held(result: Holders) -> str | None:
    """A line for each process that has or had chips, and which workers are free."""
    done = [worker for worker in result.workers if not worker.failure or worker.holders]
    lines = [_line(worker, holder) for worker in done for holder in worker.holders]
    removed = [worker.index for worker in done if worker.lockfile_removed]
    if removed:
        lines.append(f"worker {ranges(removed)}: the lock file that was left is removed")
    bare = [worker.index for worker in done if not worker.chips]
    if bare:
        lines.append(f"worker {ranges(bare)}: there are no chips")
    free = [worker.index for worker in done if worker.chips and _is_free(worker)]
    if free:
        lines.append(f"worker {ranges(free)}: all chips are free, as far as can be seen")
    return "\n".join(lines) or None


def _is_free(worker: WorkerHolders) -> bool:
    busy = [one for one in worker.holders if one.outcome not in (ENDED, KILLED, GONE)]
    return not busy and not worker.failure


def _line(worker: WorkerHolders, holder: ChipHolder) -> str:
    who = f"{holder.pid} {holder.user or '?'} {holder.command or '(nameless)'}"
    notebook = ", this notebook" if holder.is_this_notebook else ""
    outcome = f": {_OUTCOMES[holder.outcome]}" if holder.outcome else ""
    return f"worker {worker.index}: {who} has {holder.device} ({holder.seen_by}{notebook}){outcome}"


def _workers(number: int) -> str:
    return _count(number, "worker", "workers")


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"
