"""What a step changes in the memory of a watch: pure, and written down before the step is done."""

from dataclasses import replace
from datetime import datetime

from tpuctl.watch.models import Attempt, Known, Memory, Removing, Running, Sight
from tpuctl.watch.steps import Close, Create, Delete, Forget, Launch, Step, StopJobs


def remember(memory: Memory, step: Step, sight: Sight, now: datetime) -> Memory:
    """What is to be known once the step has been decided."""
    memory = _what_is_seen(memory, sight)
    match step:
        case Delete():
            removing = Removing(sight.tpu.id, step.reason, step.is_bad_host)
            return replace(memory, removing=removing)
        case Forget():
            return _forget(memory)
        case Create():
            return replace(_let_go(memory), creating=True)
        case Launch():
            return _launch(memory, step, sight, now)
        case StopJobs():
            is_open = memory.open and memory.open.job in step.jobs
            return replace(memory, open=None) if is_open else memory
        case Close():
            return _close(memory, step, now)
    return memory


def _what_is_seen(memory: Memory, sight: Sight) -> Memory:
    tpu, workers = sight.tpu, sight.workers
    if tpu.kind == "leaving":
        return replace(memory, seen_leaving=True)
    if tpu.kind != "usable" or tpu.known is None:
        return memory
    all_there = workers is not None and not workers.errors
    known = replace(tpu.known, proven=tpu.known.proven or all_there)
    memory = replace(memory, tpu=_as_before(memory.tpu, known), creating=False, seen_leaving=False)
    if memory.open and workers and all_there and len(workers.job) == workers.count:
        memory = replace(memory, open=replace(memory.open, launched=True), replaced=0)
    return memory


def _as_before(before: Known | None, now: Known) -> Known:
    """The same TPU, with what was learnt of it earlier."""
    if before is None or before.id != now.id:
        return now
    return replace(now, proven=before.proven or now.proven)


def _forget(memory: Memory) -> Memory:
    removed = memory.removing
    replaced = memory.replaced + bool(removed and removed.is_bad_host)
    memory = replace(memory, removing=None, replaced=replaced, seen_leaving=False)
    is_it = removed and memory.tpu and memory.tpu.id == removed.id
    return _let_go(memory) if is_it else memory


def _let_go(memory: Memory) -> Memory:
    """The TPU of before is gone; what it cost counts against the budget."""
    cost = memory.tpu.usd_so_far if memory.tpu else 0.0
    return replace(memory, tpu=None, spent_usd=memory.spent_usd + cost)


def _launch(memory: Memory, step: Launch, sight: Sight, now: datetime) -> Memory:
    if memory.open and memory.open.job == step.job:
        return memory
    running = Running(step.number, step.job, sight.tpu.id, sight.tpu.zone, now)
    return replace(memory, open=running, serial=memory.serial + 1)


def _close(memory: Memory, step: Close, now: datetime) -> Memory:
    attempt = memory.open
    if attempt is None:
        return memory
    ended = Attempt(
        attempt.number,
        step.cause,
        step.reason,
        attempt.job,
        attempt.tpu_id,
        attempt.zone,
        attempt.began,
        now,
        step.exit_code,
        step.worker,
    )
    return replace(memory, open=None, attempts=(*memory.attempts, ended))
