"""Results of the same work on several workers, and the errors that they add up to."""

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tpuctl.errors import (
    CommandFailedError,
    CommandKilledError,
    NotStartedError,
    TpuctlError,
    WorkerDiskFullError,
    WorkerUnfitError,
)
from tpuctl.outcome import Outcome, Status
from tpuctl.remote.hosts import Host, name_workers, ranges
from tpuctl.start_python import signal_name

_LARGEST_CODE, _LARGEST_SIGNAL = 255, 127
_FULL_DISK_BYTES = 1 << 20
_STOP_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
_WORKER = re.compile(r"worker \d+ \(.*?\)")


@dataclass(frozen=True, kw_only=True)
class WorkerResult:
    """The result of one worker; `error` is the message of `failure`."""

    index: int
    address: str
    error: str | None = field(default=None, init=False)
    failure: TpuctlError | None = field(default=None, metadata={"internal": True})

    def __post_init__(self) -> None:
        object.__setattr__(self, "error", str(self.failure) if self.failure else None)

    @property
    def code(self) -> int:
        """The exit code for a shell."""
        return self.failure.exit_code if self.failure else 0


@dataclass(frozen=True, kw_only=True)
class CommandResult(WorkerResult):
    """How a command ended on one worker; `exit_code` is None where it did not end or start."""

    exit_code: int | None = None
    signal: str | None = None
    left_behind: int = 0

    @property
    def code(self) -> int:
        """The command's exit code, 128 + N after signal N, or our own error's."""
        return super().code if self.exit_code is None else self.exit_code


@dataclass(frozen=True)
class Results(Outcome):
    """The results of several workers, in the order of their numbers."""

    workers: tuple[WorkerResult, ...]

    @property
    def failed(self) -> tuple[WorkerResult, ...]:
        """Workers that failed, without those where nothing was started because of them."""
        return tuple(
            worker
            for worker in self.workers
            if worker.failure and not isinstance(worker.failure, NotStartedError)
        )

    @property
    def status(self) -> Status:
        """Partial when some workers succeeded."""
        if not self.failed:
            return "ok"
        return "error" if all(worker.failure for worker in self.workers) else "partial"

    @property
    def exit_code(self) -> int:
        """The exit code of the first failed worker by number."""
        return self.failed[0].code if self.failed else 0

    @property
    def failures(self) -> tuple[TpuctlError, ...]:
        """One error for each kind of failure, whatever the number of workers."""
        errors = summarize([(worker.index, worker.failure) for worker in self.failed])
        idle = {
            worker.index for worker in self.workers if isinstance(worker.failure, NotStartedError)
        }
        if not idle:
            return errors
        message = f"Nothing was started on {name_workers(idle)}."
        hint = f"Run it on these workers only: --worker {ranges(idle)}"
        return (*errors, NotStartedError(message, hint=hint))


Result = TypeVar("Result", bound=WorkerResult)


def with_failures(
    kind: type[Result], hosts: Sequence[Host], answers: Sequence[Result | TpuctlError]
) -> tuple[Result, ...]:
    """Replace each error among the workers' results by a result that carries it."""
    return tuple(
        kind(index=host.index, address=host.address, failure=answer)
        if isinstance(answer, TpuctlError)
        else answer
        for host, answer in zip(hosts, answers, strict=True)
    )


def summarize(failed: Sequence[tuple[int, TpuctlError | None]]) -> tuple[TpuctlError, ...]:
    """Merge errors of the same kind into the first one's message, with the other workers' numbers.

    Errors about unfit workers are merged only if their messages are equal: each needs its own fix.
    """
    kinds: dict[str, list[tuple[int, TpuctlError]]] = {}
    for index, error in failed:
        if error:
            detail = _without_worker(error) if isinstance(error, WorkerUnfitError) else ""
            kinds.setdefault(f"{error.code} {detail}", []).append((index, error))
    return tuple(_merge(same) for same in kinds.values())


def _without_worker(error: TpuctlError) -> str:
    return _WORKER.sub("", str(error))


def _merge(same: list[tuple[int, TpuctlError]]) -> TpuctlError:
    first, others = same[0][1], [index for index, _ in same[1:]]
    if not others:
        return first
    also = name_workers(others)
    equal = len({_without_worker(error) for _, error in same}) == 1
    rest = f"The same on {also}." if equal else f"It also failed on {also}, in a different way."
    return type(first)(f"{first} {rest}", hint=first.hint)


@dataclass(frozen=True)
class ExitReport:
    """How a command ended, as the agent reports it."""

    code: int | None
    signal: int | None
    out_of_memory: bool
    left_behind: int = 0
    disk_free_bytes: int | None = None

    def __post_init__(self) -> None:
        # A shell keeps only the last byte of an exit code: 256 would mean success.
        code, number = self.code or 0, self.signal or 0
        is_one = (self.code is None) is not (self.signal is None)
        if not is_one or not (0 <= code <= _LARGEST_CODE and 0 <= number <= _LARGEST_SIGNAL):
            raise ValueError(f"exit code {self.code} and signal {self.signal}")


Ended = TypeVar("Ended", bound=CommandResult)


def command_result(
    kind: type[Ended], host: Host, what: str, report: ExitReport, **more: Any
) -> Ended:
    """Make a result from an agent's report; `what` names the command in error messages."""
    number = report.signal
    return kind(
        index=host.index,
        address=host.address,
        exit_code=report.code if number is None else 128 + number,
        signal=None if number is None else signal_name(number),
        left_behind=report.left_behind,
        failure=_failure(host, what, report),
        **more,
    )


def _failure(host: Host, what: str, report: ExitReport) -> TpuctlError | None:
    if report.code == 0:
        return None
    run = f"tpuctl run {host.target} --worker {host.index}"
    free = report.disk_free_bytes
    if free is not None and free < _FULL_DISK_BYTES:
        return WorkerDiskFullError(
            f"{what} failed on {host.label}, whose disk is full.",
            hint=f"Find out what fills it: {run} -- df -h",
        )
    number = report.signal
    if number is None:
        return CommandFailedError(f"{what} ended with exit code {report.code} on {host.label}.")
    if report.out_of_memory:
        return CommandKilledError(
            f"{what} was killed on {host.label}: the kernel ran out of memory.",
            hint="Use smaller batches or fewer loader processes.",
        )
    # The agent cannot see every out-of-memory kill, inside a container for example.
    often = " (often: out of memory, see dmesg there)" if number == signal.SIGKILL else ""
    return CommandKilledError(
        f"{what} was killed by {signal_name(number)}{often} on {host.label}.",
        hint=None if number in _STOP_SIGNALS else f"Check the kernel log: {run} -- sudo dmesg",
    )
