"""Decide the next step of a watch from its state and what was observed: pure."""

from collections.abc import Callable, Mapping

from tpuctl.clock import RetryPolicy
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
from tpuctl.supervise.messages import (
    crashed_error,
    gone_for_good_error,
    other_watch_error,
    stopped_error,
)
from tpuctl.supervise.models import (
    AskWorkers,
    CloseAttempt,
    CreateTpu,
    DeleteTpu,
    EndWatch,
    FollowJob,
    ForgetTpu,
    JobObservation,
    JobSpec,
    LaunchJob,
    Observation,
    Step,
    StopJobs,
    Wait,
    WatchState,
    WorkersObservation,
    job_prefix,
)
from tpuctl.units import format_duration

POLL_S = 30.0
"""Seconds between two checks of a working TPU, so that a preemption is noticed within a minute."""

SETTLE_S = 45.0
"""How long a failed job is not yet a crash."""

REPAIR_S = 3600.0
"""How long maintenance may take before the TPU is replaced."""

MAX_REPLACED = 5
"""After this many bad hosts in a row, the hosts are not the problem."""

_MAX_RESTARTS = 2
_MAX_REFUSALS = 5
_REFUSED = RetryPolicy(POLL_S, 600.0)
# When no worker can be reached and the service sees no problem, our own network is the more likely
# cause: then we wait this many times longer before the TPU is replaced.
_DOUBT = 6

_PERMANENT = (
    CommandFailedError,
    InvalidInputError,
    MissingExtraError,
    NotFoundError,
    UnknownLoginError,
    UsageError,
    WriteError,
)


def decide(state: WatchState, spec: JobSpec, seen: Observation) -> Step:
    """Return the next step."""
    tpu = seen.tpu
    if tpu.kind == "unknown":
        return Wait(POLL_S, f"The service does not answer: {tpu.error}")
    if state.end:
        return EndWatch(state.end.error)
    if state.removing:
        # The deletion was saved before it was requested, so after a crash it may or may not have
        # been sent. Only a TPU with the same id is deleted again; another id is a new TPU.
        if tpu.kind == "none" or tpu.id != state.removing.id:
            return ForgetTpu()
        return _after_refusal(seen) or DeleteTpu(state.removing.reason, state.removing.is_bad_host)
    return _BY_KIND[tpu.kind](state, spec, seen)


def is_temporary(error: TpuctlError) -> bool:
    """Whether an error in reaching the workers may be temporary."""
    return not isinstance(error, _PERMANENT)


def _on_none(state: WatchState, spec: JobSpec, seen: Observation) -> Step:
    tpu = seen.tpu
    # Flex-start requires a time to live, so reaching it does not mean that the job should stop.
    is_over, was_flex = tpu.expired and not state.recipe.flex, tpu.expired and state.recipe.flex
    is_meant = is_over or tpu.on_purpose
    ended = None if state.open else _finished(state, spec)
    if ended and not (ended.error and is_meant):
        return ended
    if is_meant:
        why = _limit_passed(state) if is_over else tpu.why_gone or "a user deleted it"
        is_spent = is_over and _has_only_budget(state)
        if state.open:
            return CloseAttempt("stopped", why)
        what = f"{state.name} is gone because {why}; it is not recreated."
        return EndWatch(gone_for_good_error(state, what, is_spent=is_spent))
    if state.open:
        return CloseAttempt("expired" if was_flex else "preempted", tpu.why_gone or "it vanished")
    budget = state.recipe.max_usd
    if budget is not None and state.spent_usd >= budget:
        return EndWatch(
            LimitPassedError(
                f"{state.name} is not recreated: its budget of {budget:g} dollars is spent.",
                hint="To continue, repeat the command with a larger --max-usd.",
            )
        )
    return _after_refusal(seen) or CreateTpu()


def _limit_passed(state: WatchState) -> str:
    """Name the limit at which a TPU deletes itself; a budget sets one, too."""
    if _has_only_budget(state):
        return f"its budget of {state.recipe.max_usd:g} dollars is spent"
    return "its time to live is over"


def _has_only_budget(state: WatchState) -> bool:
    return state.recipe.ttl_s is None and state.recipe.max_usd is not None


def _on_coming(state: WatchState, spec: JobSpec, seen: Observation) -> Step:
    tpu = seen.tpu
    was_refused = isinstance(seen.refused, AlreadyExistsError)
    # Our own create was interrupted: creating again resumes it. But where the service says that
    # this TPU belongs to another watch, it is only waited for.
    if state.creating and tpu.is_ours and not was_refused:
        return _after_refusal(seen) or CreateTpu()
    if not tpu.in_line and tpu.past_s >= REPAIR_S:
        reason = f"it was {tpu.state} for {format_duration(tpu.past_s)}"
        return CloseAttempt("maintenance", reason) if state.open else _replace(state, reason, None)
    return Wait(POLL_S, f"{state.name} in {tpu.zone} is {tpu.state}.")


def _on_dead(state: WatchState, spec: JobSpec, seen: Observation) -> Step:
    reason = f"it was {seen.tpu.state}"
    was_flex, is_meant = seen.tpu.expired and state.recipe.flex, seen.tpu.on_purpose
    if state.open and is_meant:
        return CloseAttempt("stopped", seen.tpu.why_gone)
    if state.open:
        return CloseAttempt("expired" if was_flex else "preempted", reason)
    ended = _finished(state, spec)
    if ended and not (ended.error and is_meant):
        return ended
    if is_meant:
        what = f"{state.name} is not replaced: {seen.tpu.why_gone}. Its other VMs cost money."
        first = f"tpuctl delete {state.name} --zone {seen.tpu.zone}"
        return EndWatch(gone_for_good_error(state, what, first=first))
    if seen.tpu.expired and not was_flex:
        what = f"{state.name} is {seen.tpu.state}, and {_limit_passed(state)}."
        first = f"tpuctl delete {state.name} --zone {seen.tpu.zone}"
        is_spent = _has_only_budget(state)
        return EndWatch(gone_for_good_error(state, what, first=first, is_spent=is_spent))
    return _after_refusal(seen) or DeleteTpu(reason)


def _on_leaving(state: WatchState, spec: JobSpec, seen: Observation) -> Step:
    return Wait(POLL_S, f"{state.name} in {seen.tpu.zone} is being deleted, not by this watch.")


def _on_stopped(state: WatchState, spec: JobSpec, seen: Observation) -> Step:
    what = f"a user stopped {state.name}, which is {seen.tpu.state}"
    if state.open:
        return CloseAttempt("stopped", what)
    if state.last and state.last.cause == "done":
        return EndWatch()
    error = WrongStateError(
        f"The job cannot run: {what}.",
        hint="Start the TPU in the console, or delete it; then repeat the command.",
    )
    return EndWatch(error)


def _on_usable(state: WatchState, spec: JobSpec, seen: Observation) -> Step:
    tpu, workers = seen.tpu, seen.workers
    if state.open and state.open.tpu_id != tpu.id:
        return CloseAttempt("preempted", "another TPU has its name now")
    if state.last and state.last.cause == "bad_host" and state.last.tpu_id == tpu.id:
        return _after_refusal(seen) or _replace(state, state.last.reason, None)
    if workers is None:
        return _on_refused(state, spec, seen) or AskWorkers()
    if workers.strangers:
        return EndWatch(other_watch_error(state, workers.strangers))
    if workers.errors:
        return _on_unreachable(state, spec, seen, workers)
    if state.open:
        return _on_open_attempt(state, spec, seen, workers)
    return _prepare(state, spec, seen, workers)


_BY_KIND: dict[str, Callable[[WatchState, JobSpec, Observation], Step]] = {
    "none": _on_none,
    "coming": _on_coming,
    "dead": _on_dead,
    "leaving": _on_leaving,
    "stopped": _on_stopped,
    "usable": _on_usable,
}


def _on_open_attempt(
    state: WatchState, spec: JobSpec, seen: Observation, workers: WorkersObservation
) -> Step:
    """All workers answer: decide by the state of the job on each of them."""
    attempt, jobs = state.open, workers.job
    assert attempt
    if len(jobs) < workers.count:
        if attempt.launched:
            missing = name_workers(sorted(set(range(workers.count)) - jobs.keys()))
            return CloseAttempt("maintenance", f"the job disappeared from {missing}")
        # A launch that was cut short may have reached some workers. The job must start on all of
        # them together, so it is stopped where it runs, and launched again.
        if jobs:
            return StopJobs((attempt.job,))
        return LaunchJob(attempt.number, attempt.job)
    if failed := _first(jobs, lambda job: job.state == FINISHED and job.failure is not None):
        return _on_failure(*failed, seen)
    if ended := _first(jobs, lambda job: job.state == STOPPED):
        return CloseAttempt("stopped", f"the job was stopped on worker {ended[0]}")
    if lost := _first(jobs, lambda job: job.state == LOST):
        return _on_lost(state, lost[0])
    if all(job.state == FINISHED for job in jobs.values()):
        return CloseAttempt("done", "", exit_code=0)
    if seen.hung and spec.hang_after_s is not None:
        who, after = name_workers(seen.hung.workers), format_duration(seen.hung.seconds)
        reason = f"{who} hung: no output for {after}"
        return CloseAttempt("crash", reason, worker=seen.hung.workers[0])
    return FollowJob()


def _on_failure(index: int, job: JobObservation, seen: Observation) -> Step:
    # A machine that is preempted ends its processes before the service reports the preemption. A
    # failure counts as a crash only when the TPU is still there after a while.
    if seen.failing_s < SETTLE_S:
        return Wait(SETTLE_S, f"{job.failure} Checking whether the TPU is being preempted.")
    reason = str(job.failure).replace("The job", "the job", 1).rstrip(".")
    return CloseAttempt("crash", reason, exit_code=job.exit_code, worker=index)


def _on_lost(state: WatchState, index: int) -> Step:
    """A restarted machine loses its job; one that keeps restarting is a bad host."""
    earlier = [a for a in state.attempts[-_MAX_RESTARTS:] if a.cause == "maintenance"]
    tpu_id = state.open.tpu_id if state.open else ""
    if len([a for a in earlier if a.tpu_id == tpu_id]) == _MAX_RESTARTS:
        return CloseAttempt("bad_host", f"worker {index} keeps losing its job", worker=index)
    return CloseAttempt("maintenance", f"worker {index} restarted, or lost its job", worker=index)


def _first(
    jobs: Mapping[int, JobObservation], wanted: Callable[[JobObservation], bool]
) -> tuple[int, JobObservation] | None:
    return next(((i, job) for i, job in sorted(jobs.items()) if wanted(job)), None)


def _on_refused(state: WatchState, spec: JobSpec, seen: Observation) -> Step | None:
    """React to an error of the last step on the workers; None means: ask them again now."""
    error = seen.refused
    if error is None:
        return None
    if is_temporary(error) and seen.trouble_s < spec.bad_host_after_s:
        # Without the wait, a step that fails immediately would be repeated in a busy loop.
        return Wait(_retry_wait_s(spec), str(error)) if seen.refusals > 1 else None
    if not _is_workers_fault(error):
        # The service or this machine is at fault, so a running job is left alone.
        if state.open and is_temporary(error):
            return Wait(POLL_S, str(error))
        if state.open:
            return CloseAttempt("stopped", f"it could not be run: {error}")
        return EndWatch(error)
    if state.open:
        return CloseAttempt("bad_host", f"it could not be reached: {error}")
    return _replace(state, str(error), error)


def _is_workers_fault(error: TpuctlError) -> bool:
    """Whether another TPU may do better."""
    return is_temporary(error) and isinstance(error, (WorkerError, WorkerUnreachableError))


def _on_unreachable(
    state: WatchState, spec: JobSpec, seen: Observation, workers: WorkersObservation
) -> Step:
    """Some workers cannot be reached; when it is all of them, our own network may be the cause."""
    index, error = min(workers.errors.items())
    if not is_temporary(error):
        return EndWatch(error)
    is_doubtful = len(workers.errors) == workers.count and seen.tpu.healthy
    if seen.trouble_s < spec.bad_host_after_s * (_DOUBT if is_doubtful else 1):
        return Wait(_retry_wait_s(spec), str(error))
    who, long = name_workers(workers.errors), format_duration(seen.trouble_s)
    reason = f"{who} could not be used for {long}: {error}"
    if state.open:
        return CloseAttempt("bad_host", reason, worker=index)
    if is_doubtful and state.replaced:
        return EndWatch(error)
    return _replace(state, reason, error)


def _replace(state: WatchState, reason: str, error: TpuctlError | None) -> Step:
    """Replace a TPU with a bad host; one that a user created and that never worked is kept."""
    tpu = state.tpu
    if tpu and (tpu.made or tpu.proven) and state.replaced < MAX_REPLACED:
        return DeleteTpu(reason, is_bad_host=True)
    if error is None or state.replaced:
        times = f" {state.replaced} TPUs in a row were replaced for that." * bool(state.replaced)
        error = WorkerError(
            f"{state.name} cannot run the job: {reason}.{times}",
            hint=f"To check it yourself: tpuctl run {state.name} -- true",
        )
    return EndWatch(error)


def _prepare(
    state: WatchState, spec: JobSpec, seen: Observation, workers: WorkersObservation
) -> Step:
    """No attempt is open: stop what is left of the last one, then launch the next."""
    if workers.remains and seen.refusals < _MAX_REFUSALS:
        return StopJobs(workers.remains)
    if ended := _finished(state, spec):
        return ended
    problem = next(iter(workers.unfit.values()), None) or seen.refused
    if problem and workers.remains:
        return _replace(state, f"its previous job cannot be stopped: {problem}", problem)
    if problem:
        return _on_unfit(state, spec, seen, problem)
    return LaunchJob(len(state.attempts) + 1, f"{job_prefix(state.watch)}{state.serial + 1}")


def _finished(state: WatchState, spec: JobSpec) -> EndWatch | None:
    """Return the end of a watch whose job is not to run again."""
    last = state.last
    if last and last.cause in ("done", "stopped"):
        return EndWatch(None if last.cause == "done" else stopped_error(state))
    if state.crashes >= spec.max_crashes and last and last.cause == "crash":
        return EndWatch(crashed_error(state))
    return None


def _on_unfit(state: WatchState, spec: JobSpec, seen: Observation, problem: TpuctlError) -> Step:
    if not is_temporary(problem):
        return EndWatch(problem)
    is_users = not (state.tpu and state.tpu.made)
    if is_users and not state.attempts and not isinstance(problem, TryAgainError):
        return EndWatch(problem)
    if seen.trouble_s < spec.bad_host_after_s and seen.refusals < _MAX_REFUSALS:
        return Wait(_retry_wait_s(spec), str(problem))
    if is_users or not _is_workers_fault(problem):
        return EndWatch(problem)
    return _replace(state, str(problem).rstrip("."), problem)


def _after_refusal(seen: Observation) -> Step | None:
    """React to an error of the last step at the service; None means: try it now."""
    error = seen.refused
    if error is None:
        return None
    # Quota is retried a few times, because a TPU that was just deleted may still hold it.
    is_quota = isinstance(error, QuotaExceededError)
    is_final = not isinstance(error, TryAgainError) and not is_quota
    if is_final or (is_quota and seen.refusals >= _MAX_REFUSALS):
        return EndWatch(error)
    wait_s = _REFUSED.longest_pause_s(seen.refusals)
    return Wait(wait_s, f"{error} Trying again.")


def _retry_wait_s(spec: JobSpec) -> float:
    return min(POLL_S, max(1.0, spec.bad_host_after_s / 4))
