"""The decisions of a watch: a pure function of what it remembers and what it sees.

none, dead -> deleted -> created -> workers asked (barrier) -> copied, launched -> followed

What ends an attempt: the TPU is taken away (preempted, as often as it likes), its machines were
restarted (maintenance), the job fails on a TPU that stays (crash, a few times), a worker that is
READY for the service and cannot be reached or used (bad host: the TPU is replaced).
"""

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
    UsageError,
    WorkerError,
    WriteError,
    WrongStateError,
)
from tpuctl.remote.agent.jobs import FINISHED, LOST, STOPPED
from tpuctl.remote.hosts import name_workers
from tpuctl.units import format_duration
from tpuctl.watch.models import JobSight, Memory, Order, Sight, WorkersSight, job_prefix
from tpuctl.watch.steps import (
    Ask,
    Close,
    Create,
    Delete,
    End,
    Follow,
    Forget,
    Launch,
    Step,
    StopJobs,
    Wait,
)

POLL_S = 30.0
"""Seconds between two looks at a TPU that works: a preemption is news within a minute."""

SETTLE_S = 45.0
"""How long a failed job is no crash yet: a machine that is taken away ends its processes first."""

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
    UsageError,
    WriteError,
)
_LONGEST_WAIT_S = 600.0
_RESTARTS = 2


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
        return End(_over(memory, f"{memory.name} is gone, for {why}: it is not made again."))
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
        return Close("maintenance", reason) if memory.open else Delete(reason, is_bad_host=True)
    return Wait(POLL_S, f"{memory.name} in {tpu.zone} is {tpu.state}.")


def _on_dead(memory: Memory, order: Order, sight: Sight) -> Step:
    reason = f"it was {sight.tpu.state}"
    if memory.open:
        return Close("preempted", reason)
    if sight.tpu.expired:
        return End(_over(memory, f"{memory.name} is {sight.tpu.state}, and its time is over."))
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
        return End(_busy(memory, workers.strangers))
    if workers.errors:
        return _on_unreachable(memory, order, sight, workers)
    if memory.open:
        return _attend(memory, order, sight, workers)
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
    if error is None or (is_passing(error) and sight.trouble_s < order.bad_host_after_s):
        return None
    if memory.open:
        is_bad = is_passing(error)
        return Close("bad_host" if is_bad else "stopped", f"it could not be run: {error}")
    return _replace(memory, str(error), error) if is_passing(error) else End(error)


def _on_unreachable(memory: Memory, order: Order, sight: Sight, workers: WorkersSight) -> Step:
    index, error = min(workers.errors.items())
    if not is_passing(error):
        return End(error)
    if sight.trouble_s < order.bad_host_after_s:
        return Wait(_soon(order), f"{error}")
    who, long = name_workers(workers.errors), format_duration(sight.trouble_s)
    reason = f"{who} could not be used for {long}: {error}"
    if memory.open:
        return Close("bad_host", reason, worker=index)
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
    if workers.remains:
        return StopJobs(workers.remains)
    last = memory.last
    if last and last.cause in ("done", "stopped"):
        return End(None if last.cause == "done" else _stopped(memory))
    if memory.crashes >= order.max_crashes and last and last.cause == "crash":
        return End(_crashed(memory))
    problem = next(iter(workers.unfit.values()), None) or sight.refused
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
    return End(problem) if is_users else _replace(memory, str(problem).rstrip("."), problem)


def _attend(memory: Memory, order: Order, sight: Sight, workers: WorkersSight) -> Step:
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
    if stopped := _first(jobs, lambda job: job.state == STOPPED):
        return Close("stopped", f"somebody has stopped the job on worker {stopped[0]}")
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
    return Close("crash", str(job.failure), exit_code=job.exit_code, worker=index)


def _on_lost(memory: Memory, index: int) -> Step:
    """A machine that was restarted took its job along; one that always does is broken."""
    earlier = [a for a in memory.attempts[-_RESTARTS:] if a.cause == "maintenance"]
    tpu_id = memory.open.tpu_id if memory.open else ""
    if len([a for a in earlier if a.tpu_id == tpu_id]) == _RESTARTS:
        return Close("bad_host", f"worker {index} lost its job again and again", worker=index)
    return Close("maintenance", f"worker {index} was restarted, or lost its job", worker=index)


def _first(
    jobs: Mapping[int, JobSight], wanted: Callable[[JobSight], bool]
) -> tuple[int, JobSight] | None:
    return next(((i, job) for i, job in sorted(jobs.items()) if wanted(job)), None)


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


def _over(memory: Memory, what: str) -> TpuctlError:
    kind = memory.recipe.accelerator_type
    return WrongStateError(
        what, hint=f"To go on all the same: the same command again with --type {kind}"
    )


def _stopped(memory: Memory) -> TpuctlError:
    last = memory.last
    why = last.reason if last else ""
    return WrongStateError(
        f"The job on {memory.name} is not started again: {why}.", hint="The same command begins it."
    )


def _crashed(memory: Memory) -> TpuctlError:
    """That the job itself fails; with its own exit code."""
    last = memory.last
    assert last
    times = "" if memory.crashes == 1 else f" {memory.crashes} times, and is not started again"
    where = f"{memory.name} --zone {last.zone} --job {last.job}"
    error = CommandFailedError(
        f"The job on {memory.name} has failed{times}. {last.reason}",
        hint=f"All that it said: tpuctl logs {where}",
    )
    error.exit_code = last.exit_code or error.exit_code
    return error


def _busy(memory: Memory, jobs: tuple[str, ...]) -> TpuctlError:
    return AlreadyExistsError(
        f"Another watch runs the job {jobs[0]} on {memory.name}.",
        hint=f"End that watch first, then: tpuctl stop {memory.name} --job {jobs[0]}",
    )
