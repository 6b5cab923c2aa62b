"""Why a watch gives up: the error that says so, with the next command."""

from tpuctl.errors import AlreadyExistsError, CommandFailedError, TpuctlError, WrongStateError
from tpuctl.watch.models import Memory


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
