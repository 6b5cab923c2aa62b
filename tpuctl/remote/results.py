"""Where the output of workers goes: through the fold, to whoever wants it."""

import asyncio
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
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
from tpuctl.remote.output import Line, LineMerger, LinePrefixes, LineSplitter

Sink = Callable[[int, bytes], None]
"""Takes bytes for stream 1 or 2; may block."""

_QUEUED = 64


class Output:
    """Collects what workers print and hands it on in order, at the pace of the sink.

    A single worker's bytes pass unchanged; those of several become lines with their workers' names.
    The sink runs in a thread of its own: a terminal that stands still must not make us look dead.
    """

    def __init__(self, workers: tuple[int, ...], sink: Sink) -> None:
        self._sink = sink
        self._alone = len(workers) == 1
        self._fold, self._prefixes = LineMerger(len(workers)), LinePrefixes(workers)
        self._splitters = {(w, stream): LineSplitter() for w in workers for stream in (1, 2)}
        self._queue: asyncio.Queue[list[tuple[int, bytes]]] = asyncio.Queue(_QUEUED)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="output")
        self._tasks: list[asyncio.Task[None]] = []
        self._error: OSError | None = None

    async def __aenter__(self) -> "Output":
        self._tasks = [asyncio.create_task(self._write()), asyncio.create_task(self._tick())]
        return self

    async def __aexit__(self, *_: object) -> None:
        writing, ticking = self._tasks
        ticking.cancel()
        await self._show(self._fold.finish())
        await self._queue.put([])
        await writing
        self._thread.shutdown(wait=False)

    async def take(self, worker: int, stream: int, data: bytes) -> None:
        """Take some output of a worker; comes back when there is room for more."""
        if self._error:
            raise self._error
        if self._alone:
            await self._queue.put([(stream, data)])
            return
        await self._add(worker, stream, self._splitters[worker, stream].feed(data))

    async def end(self, worker: int) -> None:
        """Show what a worker began to say, and wait for it no longer."""
        for stream in (1, 2):
            await self._add(worker, stream, self._splitters[worker, stream].finish())
        self._fold.leave(worker)
        await self._show(self._fold.due(time.monotonic()))

    async def _add(self, worker: int, stream: int, texts: list[bytes]) -> None:
        now_s, lines = time.monotonic(), []
        for text in texts:
            lines += self._fold.add(worker, stream, text, now_s)
        await self._show(lines)

    async def _show(self, lines: list[Line]) -> None:
        if lines:
            await self._queue.put([(line.stream, self._prefixes.of(line)) for line in lines])

    async def _tick(self) -> None:
        """Show lines whose time has come although nothing else arrives."""
        while True:
            due_s = self._fold.next_due_s
            wait_s = 0.05 if due_s is None else max(0.005, due_s - time.monotonic())
            await asyncio.sleep(wait_s)
            await self._show(self._fold.due(time.monotonic()))

    async def _write(self) -> None:
        """Hand on what is queued until the empty batch that ends it."""
        loop, is_last = asyncio.get_running_loop(), False
        while not is_last:
            batches = [await self._queue.get()]
            while not self._queue.empty() and len(batches) < _QUEUED:
                batches.append(self._queue.get_nowait())
            is_last = not batches[-1]
            batch = [piece for pieces in batches for piece in pieces]
            try:
                if self._error is None:
                    await loop.run_in_executor(self._thread, self._hand_on, batch)
            except OSError as error:
                # Read on, or those who wait for room in the queue would wait for ever.
                self._error = error

    def _hand_on(self, batch: list[tuple[int, bytes]]) -> None:
        """Give neighbours of the same stream to the sink in one piece."""
        start = 0
        for index in range(1, len(batch) + 1):
            if index == len(batch) or batch[index][0] != batch[start][0]:
                self._sink(batch[start][0], b"".join(data for _, data in batch[start:index]))
                start = index


_FULL_BYTES = 1 << 20
_STOP_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
"""By these somebody ends a program; of the others the kernel may know more."""

_WORKER = re.compile(r"worker \d+ \(.*?\)")


@dataclass(frozen=True)
class CommandResult:
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
class WorkerResult:
    """What one worker said, or why it did not."""

    index: int
    address: str
    error: str | None
    failure: TpuctlError | None = field(default=None, metadata={"internal": True})


@dataclass(frozen=True)
class Results(Outcome):
    """What several workers said, in the order of their numbers."""

    workers: tuple[WorkerResult, ...]

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
class CommandResults(Outcome):
    """The same thing done on several workers, in the order of their numbers."""

    workers: tuple[CommandResult, ...]

    @property
    def failed(self) -> tuple[CommandResult, ...]:
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


def command_result(host: Host, what: str, ended: Mapping[str, Any]) -> CommandResult:
    """How a command ended, from what the agent reports; `what` names the command."""
    code, number = ended["code"], ended["signal"]
    failure = _failure(host, what, ended)
    return CommandResult(
        host.index,
        host.address,
        code if number is None else 128 + number,
        None if number is None else _signal_name(number),
        str(failure) if failure else None,
        ended.get("left_behind", 0),
        failure,
    )


def error_result(host: Host, error: TpuctlError) -> CommandResult:
    """How it went where no command came to an end."""
    return CommandResult(host.index, host.address, None, None, str(error), failure=error)


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
        hint=None if number in _STOP_SIGNALS else f"Ask its kernel: {where} -- sudo dmesg",
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
