"""What has become of the job of an attempt: pure."""

from collections.abc import Callable, Mapping

from tpuctl.errors import (
    AlreadyExistsError,
    CommandFailedError,
    InvalidInputError,
    LimitPassedError,
    MissingExtraError,
    NotFoundError,
    QuotaExceededError,
    TpuctlError,
    TryAgainError,
    UnknownLoginError,
    UsageError,
    WorkerError,
    WorkerUnreachableError,
    WriteError,
    WrongStateError,
)
from tpuctl.remote.agent.jobs import FINISHED, LOST, STOPPED
from tpuctl.remote.hosts import name_workers
from tpuctl.supervise.messages import busy, crashed, over, stopped
from tpuctl.supervise.models import (
    Ask,
    Close,
    Create,
    Delete,
    End,
    Follow,
    Forget,
    JobSight,
    Launch,
    Memory,
    Order,
    Sight,
    Step,
    StopJobs,
    Wait,
    WorkersSight,
    job_prefix,
)
from tpuctl.units import format_duration

SETTLE_S = 45.0
"""How long a failed job is no crash yet: a machine that is taken away ends its processes first."""

_RESTARTS = 2


def attend(memory: Memory, order: Order, sight: Sight, workers: WorkersSight) -> Step:
    """An attempt is under way: what has become of its job?"""
    attempt, jobs = memory.open, workers.job
    assert attempt
    if len(jobs) < workers.count:
        if attempt.launched:
            missing = name_workers(sorted(set(range(workers.count)) - jobs.keys()))
            return Close("maintenance", f"the job is gone without a trace from {missing}")
        # We ended before we knew whether it had begun everywhere: then it begins anew.
        if jobs:
            return StopJobs((attempt.job,))
        return Launch(attempt.number, attempt.job)
    if failed := _first(jobs, lambda job: job.state == FINISHED and job.failure is not None):
        return _on_failure(*failed, sight)
    if ended := _first(jobs, lambda job: job.state == STOPPED):
        return Close("stopped", f"somebody has stopped the job on worker {ended[0]}")
    if lost := _first(jobs, lambda job: job.state == LOST):
        return _on_lost(memory, lost[0])
    if all(job.state == FINISHED for job in jobs.values()):
        return Close("done", "", exit_code=0)
    if sight.hung and order.hang_after_s is not None:
        who, after = name_workers(sight.hung.workers), format_duration(sight.hung.seconds)
        reason = f"{who} hung: nothing was said for {after}"
        return Close("crash", reason, worker=sight.hung.workers[0])
    return Follow()


def _on_failure(index: int, job: JobSight, sight: Sight) -> Step:
    if sight.failing_s < SETTLE_S:
        return Wait(SETTLE_S, f"{job.failure} Is the TPU about to be taken away?")
    return Close("crash", _within(str(job.failure)), exit_code=job.exit_code, worker=index)


def _on_lost(memory: Memory, index: int) -> Step:
    """A machine that was restarted took its job along; one that always does is broken."""
    earlier = [a for a in memory.attempts[-_RESTARTS:] if a.cause == "maintenance"]
    tpu_id = memory.open.tpu_id if memory.open else ""
    if len([a for a in earlier if a.tpu_id == tpu_id]) == _RESTARTS:
        return Close("bad_host", f"worker {index} lost its job again and again", worker=index)
    return Close("maintenance", f"worker {index} was restarted, or lost its job", worker=index)


def _within(sentence: str) -> str:
    """A sentence as a part of another one."""
    return sentence.replace("The job", "the job", 1).rstrip(".")


def _first(
    jobs: Mapping[int, JobSight], wanted: Callable[[JobSight], bool]
) -> tuple[int, JobSight] | None:
    return next(((i, job) for i, job in sorted(jobs.items()) if wanted(job)), None)


POLL_S = 30.0
"""Seconds between two looks at a TPU that works: a preemption is news within a minute."""

REPAIR_S = 3600.0
"""How long maintenance may take before the TPU is replaced."""

MOST_REPLACED = 5
"""After so many bad hosts in a row it is not the hosts."""

_MOST_REFUSALS = 5
_FOR_GOOD = (
    CommandFailedError,
    InvalidInputError,
    MissingExtraError,
    NotFoundError,
    UnknownLoginError,
    UsageError,
    WriteError,
)
_LONGEST_WAIT_S = 600.0
# None of the workers, and the service finds nothing wrong: more likely our own way is barred.
_DOUBT = 6


def decide(memory: Memory, order: Order, sight: Sight) -> Step:
    """Say what to do next."""
    tpu = sight.tpu
    if tpu.kind == "unknown":
        return Wait(POLL_S, f"The service cannot be asked: {tpu.error}")
    if memory.removing:
        if tpu.kind == "none" or tpu.id != memory.removing.id:
            return Forget()
        return _after_refusal(sight) or Delete(memory.removing.reason, memory.removing.is_bad_host)
    return _BY_KIND[tpu.kind](memory, order, sight)


def is_passing(error: TpuctlError) -> bool:
    """Whether an error on the way to the workers may be over when one looks again."""
    return not isinstance(error, _FOR_GOOD)


def _on_none(memory: Memory, order: Order, sight: Sight) -> Step:
    tpu = sight.tpu
    if tpu.expired or tpu.on_purpose:
        why = "its time to live was over" if tpu.expired else "somebody has deleted it"
        if memory.open:
            return Close("stopped", why)
        return End(over(memory, f"{memory.name} is gone, for {why}: it is not made again."))
    if memory.open:
        return Close("preempted", "it vanished")
    return _limits(memory, sight) or _after_refusal(sight) or Create()


def _on_coming(memory: Memory, order: Order, sight: Sight) -> Step:
    tpu = sight.tpu
    was_refused = isinstance(sight.refused, AlreadyExistsError)
    if memory.creating and tpu.is_ours and not was_refused:
        return _after_refusal(sight) or Create()
    if not tpu.in_line and tpu.past_s >= REPAIR_S:
        reason = f"it was {tpu.state} for {format_duration(tpu.past_s)}"
        return Close("maintenance", reason) if memory.open else _replace(memory, reason, None)
    return Wait(POLL_S, f"{memory.name} in {tpu.zone} is {tpu.state}.")


def _on_dead(memory: Memory, order: Order, sight: Sight) -> Step:
    reason = f"it was {sight.tpu.state}"
    if memory.open:
        return Close("preempted", reason)
    if sight.tpu.expired:
        return End(over(memory, f"{memory.name} is {sight.tpu.state}, and its time is over."))
    return _after_refusal(sight) or Delete(reason)


def _on_leaving(memory: Memory, order: Order, sight: Sight) -> Step:
    return Wait(POLL_S, f"Somebody deletes {memory.name} in {sight.tpu.zone}.")


def _on_stopped(memory: Memory, order: Order, sight: Sight) -> Step:
    what = f"somebody has stopped {memory.name}, which is {sight.tpu.state}"
    if memory.open:
        return Close("stopped", what)
    error = WrongStateError(
        f"Nothing can run: {what}.", hint="Start it in the console, or delete it; then again."
    )
    return End(error)


def _on_usable(memory: Memory, order: Order, sight: Sight) -> Step:
    tpu, workers = sight.tpu, sight.workers
    if memory.open and memory.open.tpu_id != tpu.id:
        return Close("preempted", "another TPU bears its name by now")
    if memory.last and memory.last.cause == "bad_host" and memory.last.tpu_id == tpu.id:
        return _after_refusal(sight) or _replace(memory, memory.last.reason, None)
    if workers is None:
        return _on_refused(memory, order, sight) or Ask()
    if workers.strangers:
        return End(busy(memory, workers.strangers))
    if workers.errors:
        return _on_unreachable(memory, order, sight, workers)
    if memory.open:
        return attend(memory, order, sight, workers)
    return _prepare(memory, order, sight, workers)


_BY_KIND: dict[str, Callable[[Memory, Order, Sight], Step]] = {
    "none": _on_none,
    "coming": _on_coming,
    "dead": _on_dead,
    "leaving": _on_leaving,
    "stopped": _on_stopped,
    "usable": _on_usable,
}


def _on_refused(memory: Memory, order: Order, sight: Sight) -> Step | None:
    """What to do when the last act on the workers has failed: mostly to ask them anew."""
    error = sight.refused
    if error is None:
        return None
    if is_passing(error) and sight.trouble_s < order.bad_host_after_s:
        # What fails at once would be asked for as often as the processor can.
        return Wait(_soon(order), f"{error}") if sight.refusals > 1 else None
    if not _is_of_workers(error):
        # The service is to blame, or we are: a job that runs is left alone.
        return (
            Wait(POLL_S, f"{error}") if memory.open and is_passing(error) else _stop(memory, error)
        )
    if memory.open:
        return Close("bad_host", f"it could not be asked: {error}")
    return _replace(memory, str(error), error)


def _stop(memory: Memory, error: TpuctlError) -> Step:
    return Close("stopped", f"it could not be run: {error}") if memory.open else End(error)


def _is_of_workers(error: TpuctlError) -> bool:
    """Whether another TPU may do better."""
    return is_passing(error) and isinstance(error, (WorkerError, WorkerUnreachableError))


def _on_unreachable(memory: Memory, order: Order, sight: Sight, workers: WorkersSight) -> Step:
    """A worker cannot be reached while the others can; or none can, which may be our own fault."""
    index, error = min(workers.errors.items())
    if not is_passing(error):
        return End(error)
    is_doubtful = len(workers.errors) == workers.count and sight.tpu.healthy
    if sight.trouble_s < order.bad_host_after_s * (_DOUBT if is_doubtful else 1):
        return Wait(_soon(order), f"{error}")
    who, long = name_workers(workers.errors), format_duration(sight.trouble_s)
    reason = f"{who} could not be used for {long}: {error}"
    if memory.open:
        return Close("bad_host", reason, worker=index)
    if is_doubtful and memory.replaced:
        return End(error)
    return _replace(memory, reason, error)


def _replace(memory: Memory, reason: str, error: TpuctlError | None) -> Step:
    """Make another TPU in place of one with a bad host; one that never worked is the user's own."""
    tpu = memory.tpu
    if tpu and (tpu.made or tpu.proven) and memory.replaced < MOST_REPLACED:
        return Delete(reason, is_bad_host=True)
    if error is None or memory.replaced:
        times = f" {memory.replaced} TPUs in a row were replaced for that." * bool(memory.replaced)
        error = WorkerError(
            f"{memory.name} is not fit for the job: {reason}.{times}",
            hint=f"See for yourself: tpuctl run {memory.name} -- true",
        )
    return End(error)


def _prepare(memory: Memory, order: Order, sight: Sight, workers: WorkersSight) -> Step:
    """No attempt is under way: clear what is left of the last one, then begin another."""
    if workers.remains and sight.refusals < _MOST_REFUSALS:
        return StopJobs(workers.remains)
    last = memory.last
    if last and last.cause in ("done", "stopped"):
        return End(None if last.cause == "done" else stopped(memory))
    if memory.crashes >= order.max_crashes and last and last.cause == "crash":
        return End(crashed(memory))
    problem = next(iter(workers.unfit.values()), None) or sight.refused
    if problem and workers.remains:
        return _replace(memory, f"the job of before cannot be ended: {problem}", problem)
    if problem:
        return _on_unfit(memory, order, sight, problem)
    serial = memory.serial + 1
    return Launch(len(memory.attempts) + 1, f"{job_prefix(memory.watch)}{serial}")


def _on_unfit(memory: Memory, order: Order, sight: Sight, problem: TpuctlError) -> Step:
    if not is_passing(problem):
        return End(problem)
    is_users = not (memory.tpu and memory.tpu.made)
    if is_users and not memory.attempts and not isinstance(problem, TryAgainError):
        return End(problem)
    if sight.trouble_s < order.bad_host_after_s and sight.refusals < _MOST_REFUSALS:
        return Wait(_soon(order), f"{problem}")
    if is_users or not _is_of_workers(problem):
        return End(problem)
    return _replace(memory, str(problem).rstrip("."), problem)


def _limits(memory: Memory, sight: Sight) -> Step | None:
    budget = memory.recipe.max_usd
    if budget is None or memory.spent_usd < budget:
        return None
    return End(
        LimitPassedError(
            f"{memory.name} is not made again: its {budget:g} dollars are spent.",
            hint="The same command with a larger --max-usd goes on.",
        )
    )


def _after_refusal(sight: Sight) -> Step | None:
    """What to do about the error of the last act; None when it can be tried at once."""
    error = sight.refused
    if error is None:
        return None
    is_final = not isinstance(error, (TryAgainError, QuotaExceededError))
    is_quota = isinstance(error, QuotaExceededError)
    if is_final or (is_quota and sight.refusals >= _MOST_REFUSALS):
        return End(error)
    wait_s = min(_LONGEST_WAIT_S, POLL_S * 2.0 ** min(sight.refusals - 1, 10))
    return Wait(wait_s, f"{error} Trying again.")


def _soon(order: Order) -> float:
    return min(POLL_S, max(1.0, order.bad_host_after_s / 4))
