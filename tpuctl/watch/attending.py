"""What has become of the job of an attempt: pure."""

from collections.abc import Callable, Mapping

from tpuctl.remote.agent.jobs import FINISHED, LOST, STOPPED
from tpuctl.remote.hosts import name_workers
from tpuctl.units import format_duration
from tpuctl.watch.models import JobSight, Memory, Order, Sight, WorkersSight
from tpuctl.watch.steps import Close, Follow, Launch, Step, StopJobs, Wait

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
