"""Why a watch gives up: the error that says so, with the next command."""

from dataclasses import dataclass, field

from tpuctl.errors import AlreadyExistsError, CommandFailedError, TpuctlError, WrongStateError
from tpuctl.outcome import Outcome, Status
from tpuctl.supervise.models import (
    Attempt,
    Close,
    Create,
    Delete,
    Launch,
    Memory,
    Sight,
    Step,
    StopJobs,
    Wait,
)


def over(memory: Memory, what: str) -> TpuctlError:
    """That the TPU is gone for good."""
    kind = memory.recipe.accelerator_type
    return WrongStateError(
        what, hint=f"To go on all the same: the same command again with --type {kind}"
    )


def stopped(memory: Memory) -> TpuctlError:
    """That somebody did not want the job any more."""
    last = memory.last
    why = last.reason if last else ""
    return WrongStateError(
        f"The job on {memory.name} is not started again: {why}.", hint="The same command begins it."
    )


def crashed(memory: Memory) -> TpuctlError:
    """That the job itself fails; with its own exit code."""
    last = memory.last
    assert last
    times = f" {memory.crashes} times, and is not started again; the last time"
    times = ":" if memory.crashes == 1 else times
    where = f"{memory.name} --zone {last.zone} --job {last.job}"
    error = CommandFailedError(
        f"The job on {memory.name} has failed{times} {last.reason}.",
        hint=f"All that it said: tpuctl logs {where}",
    )
    error.exit_code = last.exit_code or error.exit_code
    return error


def busy(memory: Memory, jobs: tuple[str, ...]) -> TpuctlError:
    """That a watch on another machine was first."""
    return AlreadyExistsError(
        f"Another watch runs the job {jobs[0]} on {memory.name}.",
        hint=f"End that watch first, then: tpuctl stop {memory.name} --job {jobs[0]}",
    )


@dataclass(frozen=True)
class Watched(Outcome):
    """How a watch has ended; `attempts` are all runs of the job, the first one first.

    `tail` is the end of what the last one printed, where it failed. `usd_per_hour` is what the TPU
    goes on to cost, None where there is none any more.
    """

    name: str
    zone: str | None
    job: str | None
    attempts: tuple[Attempt, ...]
    crashes: int
    usd_per_hour: float | None
    tail: tuple[str, ...] = ()
    error: TpuctlError | None = field(default=None, metadata={"internal": True})

    @property
    def status(self) -> Status:
        """An error when the job was given up."""
        return "error" if self.error else "ok"

    @property
    def exit_code(self) -> int:
        """0 when the job is done; the job's own when it has failed."""
        return self.error.exit_code if self.error else 0

    @property
    def warnings(self) -> tuple[str, ...]:
        """That the TPU is still there."""
        if self.zone is None:
            return ()
        price = f"${self.usd_per_hour:,.2f} an hour" if self.usd_per_hour else "money"
        return (
            f"{self.name} in {self.zone} is still there and costs {price}: "
            f"tpuctl delete {self.name} --zone {self.zone}",
        )

    @property
    def failures(self) -> tuple[TpuctlError, ...]:
        """Why it was given up."""
        return (self.error,) if self.error else ()


def words(step: Step, memory: Memory, sight: Sight) -> str:
    """What a step is called when it is told, with its reason."""
    where = f"{memory.name} in {sight.tpu.zone}"
    reason = step.reason.rstrip(".") if isinstance(step, Close | Delete) else ""
    match step:
        case Wait():
            return step.why
        case Delete():
            return f"Deleting {where}: {reason}."
        case Create():
            return f"Making {memory.name}."
        case Launch():
            again = "" if step.number == 1 else ", to go on from its checkpoint"
            return f"Attempt {step.number} begins on {where} (job {step.job}){again}."
        case Close(cause="done"):
            return f"Attempt {memory.open.number if memory.open else 0} is done."
        case Close():
            number = memory.open.number if memory.open else 0
            return f"Attempt {number} has ended: {step.cause.replace('_', ' ')}, {reason}."
        case StopJobs():
            return f"Stopping {', '.join(step.jobs)} on {where}."
    return ""
