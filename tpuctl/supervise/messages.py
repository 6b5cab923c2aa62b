"""The result of a watch, its messages, and the errors that end it."""

from dataclasses import dataclass, field

from tpuctl.errors import AlreadyExistsError, CommandFailedError, TpuctlError, WrongStateError
from tpuctl.outcome import Outcome
from tpuctl.supervise.models import (
    CloseAttempt,
    CreateTpu,
    DeleteTpu,
    JobAttempt,
    LaunchJob,
    Observation,
    Step,
    StopJobs,
    Wait,
    WatchState,
)
from tpuctl.units import format_usd


def gone_for_good_error(
    state: WatchState, what: str, *, first: str = "", is_spent: bool = False
) -> TpuctlError:
    """Say that the TPU is gone and is not recreated; `first` is what has to be done before.

    `is_spent` is whether its budget ended it.
    """
    before = f"{first}. " if first else ""
    again = f"repeat the command with --accelerator-type {state.recipe.accelerator_type}"
    again += " and a larger --max-usd" * is_spent
    return WrongStateError(what, hint=f"{before}To create it again: {again}")


def stopped_error(state: WatchState) -> TpuctlError:
    """Say that the job was stopped on purpose and is not restarted."""
    why = state.last.reason if state.last else ""
    return WrongStateError(
        f"The job on {state.name} is not restarted: {why}.",
        hint="To start it again, repeat the command.",
    )


def crashed_error(state: WatchState) -> TpuctlError:
    """Say that the job itself fails; carries its exit code."""
    last = state.last
    assert last
    times = f" {state.crashes} times and is not restarted; the last time"
    times = ":" if state.crashes == 1 else times
    error = CommandFailedError(
        f"The job on {state.name} has failed{times} {last.reason}.",
        hint=f"Its full log: tpuctl logs {state.name}{_in(last.zone, ' --zone')} --job {last.job}",
    )
    error.exit_code = last.exit_code or error.exit_code
    return error


def other_watch_error(state: WatchState, jobs: tuple[str, ...]) -> TpuctlError:
    """Say that a watch on another machine already runs a job on this TPU."""
    return AlreadyExistsError(
        f"Another watch runs the job {jobs[0]} on {state.name}.",
        hint=f"Stop that watch first, then: tpuctl stop {state.name} --job {jobs[0]}",
    )


@dataclass(frozen=True)
class WatchResult(Outcome):
    """How a watch ended; `attempts` are all runs of the job, oldest first.

    `tail` is the end of the last run's output, where it failed. `usd_per_hour` is the price of the
    TPU, None where it no longer exists; `usd_so_far` the cost of all TPUs, each from its request
    until it was last seen usable.
    """

    name: str
    zone: str | None
    job: str | None
    attempts: tuple[JobAttempt, ...]
    crashes: int
    usd_per_hour: float | None
    usd_so_far: float
    tail: tuple[str, ...] = ()
    error: TpuctlError | None = field(default=None, metadata={"internal": True})

    @property
    def warnings(self) -> tuple[str, ...]:
        """A reminder that the TPU still exists."""
        if self.zone is None:
            return ()
        if self.usd_per_hour == 0:
            return (f"{self.name}{_in(self.zone)} is still listed: tpuctl gc --yes",)
        price = f"{format_usd(self.usd_per_hour)} an hour" if self.usd_per_hour else "money"
        price = price if self.zone else "units"
        return (
            f"{self.name}{_in(self.zone)} is still there and costs {price}: "
            f"tpuctl delete {self.name}{_in(self.zone, ' --zone')}",
        )

    @property
    def failures(self) -> tuple[TpuctlError, ...]:
        """Why the job was given up."""
        return (self.error,) if self.error else ()


def _in(zone: str, word: str = " in") -> str:
    """Add a zone, where there are zones."""
    return f"{word} {zone}" if zone else ""


def describe_step(step: Step, state: WatchState, seen: Observation) -> str:
    """Describe a step and its reason in one line; empty for steps that are not worth a line."""
    where = f"{state.name}{_in(seen.tpu.zone)}"
    reason = step.reason.rstrip(".") if isinstance(step, CloseAttempt | DeleteTpu) else ""
    number = state.open.number if state.open else 0
    match step:
        case Wait():
            return step.why
        case DeleteTpu():
            return f"Deleting {where}: {reason}."
        case CreateTpu():
            return f"Creating {state.name}."
        case LaunchJob():
            again = "" if step.number == 1 else ", resuming from its checkpoint"
            return f"Attempt {step.number} starts on {where} (job {step.job}){again}."
        case CloseAttempt(cause="done"):
            return f"Attempt {number} is done."
        case CloseAttempt():
            return f"Attempt {number} ended: {step.cause.replace('_', ' ')}, {reason}."
        case StopJobs():
            return f"Stopping {', '.join(step.jobs)} on {where}."
    return ""
