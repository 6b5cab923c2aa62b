"""How commands ended on workers, and what the whole of it means."""

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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

_FULL_BYTES = 1 << 20
_ASKED = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
"""By these somebody ends a program; of the others the kernel may know more."""

_WORKER = re.compile(r"worker \d+ \(.*?\)")


@dataclass(frozen=True)
class WorkerEnd:
    """How it went on one worker. `exit_code` is None where no command came to an end."""

    index: int
    address: str
    exit_code: int | None
    signal: str | None
    error: str | None
    left_behind: int = 0
    failure: TpuctlError | None = field(default=None, metadata={"internal": True})

    @property
    def code(self) -> int:
        """What a shell would say: the command's own, 128 + N for signal N, or our error's."""
        if self.exit_code is not None:
            return self.exit_code
        return self.failure.exit_code if self.failure else 0


@dataclass(frozen=True)
class WorkerAnswer:
    """What one worker said, or why it did not."""

    index: int
    address: str
    error: str | None
    failure: TpuctlError | None = field(default=None, metadata={"internal": True})


@dataclass(frozen=True)
class Answers(Outcome):
    """What several workers said, in the order of their numbers."""

    workers: tuple[WorkerAnswer, ...]

    @property
    def status(self) -> Status:
        """Partial when only some workers answered as they should."""
        failed = [worker for worker in self.workers if worker.failure]
        if not failed:
            return "ok"
        return "error" if len(failed) == len(self.workers) else "partial"

    @property
    def exit_code(self) -> int:
        """That of the first worker that failed, by number."""
        return next((one.failure.exit_code for one in self.workers if one.failure), 0)

    @property
    def failures(self) -> tuple[TpuctlError, ...]:
        """One sentence for each kind of failure, however many workers it met."""
        return summarize([(worker.index, worker.failure) for worker in self.workers])


@dataclass(frozen=True)
class Ends(Outcome):
    """The same thing done on several workers, in the order of their numbers."""

    workers: tuple[WorkerEnd, ...]

    @property
    def failed(self) -> tuple[WorkerEnd, ...]:
        """The workers that are to blame: not those that only waited for them."""
        return tuple(
            worker
            for worker in self.workers
            if worker.failure and not isinstance(worker.failure, NotStartedError)
        )

    @property
    def status(self) -> Status:
        """Partial when some workers did it and others not."""
        if not self.failed:
            return "ok"
        return "error" if all(worker.failure for worker in self.workers) else "partial"

    @property
    def exit_code(self) -> int:
        """That of the first worker that failed, by number."""
        return self.failed[0].code if self.failed else 0

    @property
    def warnings(self) -> tuple[str, ...]:
        """What commands left running in their session, and we ended."""
        messy = [worker.index for worker in self.workers if worker.left_behind]
        if not messy:
            return ()
        return (
            f"On {name_workers(messy)} the command left processes behind; they were ended "
            "with it. What shall outlive a command is started with --detach.",
        )

    @property
    def failures(self) -> tuple[TpuctlError, ...]:
        """One sentence for each kind of failure, however many workers it met."""
        said = summarize([(worker.index, worker.failure) for worker in self.failed])
        idle = {
            worker.index for worker in self.workers if isinstance(worker.failure, NotStartedError)
        }
        if not idle:
            return said
        hint = f"Leave out the others: --worker {ranges(idle)}"
        return (*said, NotStartedError(f"Nothing was started on {name_workers(idle)}.", hint=hint))


def summarize(
    failed: Sequence[tuple[int, TpuctlError | None]],
) -> tuple[TpuctlError, ...]:
    """Say each kind of failure once, by its first worker, and name the others.

    Each way in which workers are unfit is a kind of its own: each is mended in its own way.
    """
    kinds: dict[str, list[tuple[int, TpuctlError]]] = {}
    for index, error in failed:
        if error:
            way = _way(error) if isinstance(error, WorkerUnfitError) else ""
            kinds.setdefault(f"{error.code} {way}", []).append((index, error))
    return tuple(_say_once(same) for same in kinds.values())


def _way(error: TpuctlError) -> str:
    """The sentence without the worker that it is about."""
    return _WORKER.sub("", str(error))


def _say_once(same: list[tuple[int, TpuctlError]]) -> TpuctlError:
    first, others = same[0][1], [index for index, _ in same[1:]]
    if not others:
        return first
    alike = len({_way(error) for _, error in same}) == 1
    also = name_workers(others)
    rest = f"The same on {also}." if alike else f"It failed on {also} too, in another way."
    return type(first)(f"{first} {rest}", hint=first.hint)


def end_of(host: Host, what: str, ended: Mapping[str, Any]) -> WorkerEnd:
    """How a command ended, from what the agent reports; `what` names the command."""
    code, number = ended["code"], ended["signal"]
    failure = _failure(host, what, ended)
    return WorkerEnd(
        host.index,
        host.address,
        code if number is None else 128 + number,
        None if number is None else _signal_name(number),
        str(failure) if failure else None,
        ended.get("left_behind", 0),
        failure,
    )


def end_by_error(host: Host, error: TpuctlError) -> WorkerEnd:
    """How it went where no command came to an end."""
    return WorkerEnd(host.index, host.address, None, None, str(error), failure=error)


def _failure(host: Host, what: str, ended: Mapping[str, Any]) -> TpuctlError | None:
    code, number, free = ended["code"], ended["signal"], ended.get("disk_free_bytes")
    if code == 0:
        return None
    where = f"tpuctl run {host.target} --worker {host.index}"
    if free is not None and free < _FULL_BYTES:
        return WorkerDiskFullError(
            f"{what} failed on {host.label}, whose disk is full.",
            hint=f"See what fills it: {where} -- df -h",
        )
    if number is None:
        return CommandFailedError(f"{what} ended with exit code {code} on {host.label}.")
    if ended["out_of_memory"]:
        return CommandKilledError(
            f"{what} was killed on {host.label}: the kernel ran out of memory.",
            hint="Use smaller batches or fewer loader processes.",
        )
    often = " (often: out of memory, see dmesg there)" if number == signal.SIGKILL else ""
    return CommandKilledError(
        f"{what} was killed by {_signal_name(number)}{often} on {host.label}.",
        hint=None if number in _ASKED else f"Ask its kernel: {where} -- sudo dmesg",
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
