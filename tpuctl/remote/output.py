"""The output of many workers as one text: whole lines with worker numbers, equal lines merged.

Each worker's lines stay in order. A line waits at most `WINDOW_S` for the same line from other
workers, and the number and size of waiting lines are bounded.
"""

import asyncio
import time
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter, itemgetter

from tpuctl.remote.hosts import ranges

Sink = Callable[[int, bytes], None]
"""Takes bytes for stream 1 or 2; may block."""

WINDOW_S = 0.25
"""How long a line waits for the same line from other workers."""

LONGEST_LINE_BYTES = 1 << 16
"""Longer lines are split into pieces of this size, so that no worker can fill our memory."""

_WAITING_LINES = 4096
_WAITING_BYTES = 4 << 20
_QUEUED_BATCHES = 64
_NAMED_ABSENT = 3


class LineSplitter:
    """Splits a stream into lines at `\\n`, `\\r\\n` and the `\\r` of progress bars."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Add data and return the lines that are complete now, without line endings."""
        text = self._rest + data
        # A \r at the very end may be the first half of \r\n, so it waits for more data.
        held = b"\r" if text.endswith(b"\r") else b""
        text = text[: len(text) - len(held)]
        if b"\r" in text:
            text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, rest = text.split(b"\n")
        while len(rest) > LONGEST_LINE_BYTES:
            lines.append(rest[:LONGEST_LINE_BYTES])
            rest = rest[LONGEST_LINE_BYTES:]
        self._rest = rest + held
        return lines

    def finish(self) -> list[bytes]:
        """Return the unfinished last line, if any."""
        rest, self._rest = self._rest.rstrip(b"\r"), b""
        return [rest] if rest else []


@dataclass(frozen=True)
class Line:
    """A line that some workers printed; `stream` is 1 or 2."""

    stream: int
    text: bytes
    workers: frozenset[int]


@dataclass
class _Group:
    number: int
    stream: int
    text: bytes
    since_s: float
    workers: set[int] = field(default_factory=set)


class LineMerger:
    """Merges equal lines that several workers print within `WINDOW_S`."""

    def __init__(self, workers: int) -> None:
        self._all = workers
        self._waiting: deque[_Group] = deque()
        self._by_text: dict[tuple[int, bytes], list[_Group]] = defaultdict(list)
        self._last_number: dict[int, int] = {}
        self._next_number = 0
        self._waiting_bytes = 0

    def add(self, worker: int, stream: int, text: bytes, now_s: float) -> list[Line]:
        """Add a line and return the lines that are ready to print."""
        group = self._group_for(worker, stream, text)
        if group is None:
            group = _Group(self._next_number, stream, text, now_s)
            self._next_number += 1
            self._waiting.append(group)
            self._by_text[stream, text].append(group)
            self._waiting_bytes += len(text)
        group.workers.add(worker)
        self._last_number[worker] = group.number
        return self.due(now_s)

    def _group_for(self, worker: int, stream: int, text: bytes) -> _Group | None:
        """Find the first waiting line to join without overtaking an earlier line of the worker."""
        # Groups are shown by number, so a later line may only join a group after its last one.
        last = self._last_number.get(worker, -1)
        waiting = self._by_text.get((stream, text), [])
        place = bisect_right(waiting, last, key=attrgetter("number"))
        return waiting[place] if place < len(waiting) else None

    def due(self, now_s: float) -> list[Line]:
        """Return lines that all workers printed, that waited long enough, or that are too many."""
        lines = []
        while self._waiting and self._is_due(self._waiting[0], now_s):
            lines.append(self._take())
        return lines

    def finish(self) -> list[Line]:
        """Return all waiting lines."""
        return [self._take() for _ in range(len(self._waiting))]

    @property
    def next_due_s(self) -> float | None:
        """When the next line is due; None when none is waiting."""
        return self._waiting[0].since_s + WINDOW_S if self._waiting else None

    def leave(self, worker: int) -> None:
        """Stop waiting for lines of a worker that has ended."""
        self._all -= 1

    def _is_due(self, group: _Group, now_s: float) -> bool:
        return (
            len(group.workers) >= self._all
            or now_s >= group.since_s + WINDOW_S
            or len(self._waiting) > _WAITING_LINES
            or self._waiting_bytes > _WAITING_BYTES
        )

    def _take(self) -> Line:
        group = self._waiting.popleft()
        same = self._by_text[group.stream, group.text]
        same.pop(0)
        if not same:
            del self._by_text[group.stream, group.text]
        self._waiting_bytes -= len(group.text)
        return Line(group.stream, group.text, frozenset(group.workers))


class LinePrefixes:
    """Formats lines with the workers that printed them."""

    def __init__(self, workers: tuple[int, ...]) -> None:
        self._workers = workers
        self._width = len(str(max(workers, default=0)))
        self._known: dict[frozenset[int], bytes] = {}

    def of(self, line: Line) -> bytes:
        """Return the line with its prefix and line ending."""
        prefix = self._known.get(line.workers)
        if prefix is None:
            if len(self._known) > _WAITING_LINES:
                self._known.clear()
            prefix = self._known[line.workers] = self._name(line.workers).encode()
        return prefix + line.text + b"\n"

    def _name(self, workers: frozenset[int]) -> str:
        if len(workers) == 1:
            return f"[{min(workers):>{self._width}}] "
        absent = set(self._workers) - workers
        if not absent:
            return f"all {len(workers)} workers: "
        if len(absent) <= _NAMED_ABSENT and len(absent) < len(workers):
            return f"{len(workers)} of {len(self._workers)} workers (not {ranges(absent)}): "
        return f"{len(workers)} of {len(self._workers)} workers ({ranges(workers)}): "


class Output:
    """Collects what workers print and passes it to the sink, in order and at the sink's pace.

    The bytes of a single worker pass unchanged; those of several become lines with worker numbers.
    The sink runs in a thread: a stopped terminal must not keep us from sending keepalives.
    """

    def __init__(self, workers: tuple[int, ...], sink: Sink) -> None:
        self._sink = sink
        self._is_single = len(workers) == 1
        self._merger, self._prefixes = LineMerger(len(workers)), LinePrefixes(workers)
        self._splitters = {(w, stream): LineSplitter() for w in workers for stream in (1, 2)}
        self._queue: asyncio.Queue[list[tuple[int, bytes]]] = asyncio.Queue(_QUEUED_BATCHES)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="output")
        self._tasks: list[asyncio.Task[None]] = []
        self._error: OSError | None = None

    async def __aenter__(self) -> "Output":
        self._tasks = [
            asyncio.create_task(self._write_queue()),
            asyncio.create_task(self._show_due_lines()),
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        writing, showing = self._tasks
        showing.cancel()
        await self._show(self._merger.finish())
        await self._queue.put([])
        await writing
        self._thread.shutdown(wait=False)

    async def take(self, worker: int, stream: int, data: bytes) -> None:
        """Add output of a worker; waits until there is room for more."""
        if self._error:
            raise self._error
        if self._is_single:
            await self._queue.put([(stream, data)])
            return
        await self._add(worker, stream, self._splitters[worker, stream].feed(data))

    async def end(self, worker: int) -> None:
        """Print a worker's unfinished lines; no line waits for it any more."""
        for stream in (1, 2):
            await self._add(worker, stream, self._splitters[worker, stream].finish())
        self._merger.leave(worker)
        await self._show(self._merger.due(time.monotonic()))

    async def _add(self, worker: int, stream: int, texts: list[bytes]) -> None:
        now_s, lines = time.monotonic(), []
        for text in texts:
            lines += self._merger.add(worker, stream, text, now_s)
        await self._show(lines)

    async def _show(self, lines: list[Line]) -> None:
        if lines:
            await self._queue.put([(line.stream, self._prefixes.of(line)) for line in lines])

    async def _show_due_lines(self) -> None:
        """Print lines whose window is over although no other output arrives."""
        while True:
            due_s = self._merger.next_due_s
            wait_s = 0.05 if due_s is None else max(0.005, due_s - time.monotonic())
            await asyncio.sleep(wait_s)
            await self._show(self._merger.due(time.monotonic()))

    async def _write_queue(self) -> None:
        """Pass queued batches to the sink until an empty batch."""
        loop, is_last = asyncio.get_running_loop(), False
        while not is_last:
            batches = [await self._queue.get()]
            while not self._queue.empty() and len(batches) < _QUEUED_BATCHES:
                batches.append(self._queue.get_nowait())
            is_last = not batches[-1]
            pieces = [piece for batch in batches for piece in batch]
            try:
                if self._error is None:
                    await loop.run_in_executor(self._thread, self._write, pieces)
            except OSError as error:
                # Keep emptying the queue: a producer that waits for room would block forever.
                self._error = error

    def _write(self, pieces: list[tuple[int, bytes]]) -> None:
        """Pass consecutive pieces of the same stream to the sink as one."""
        for stream, same in groupby(pieces, key=itemgetter(0)):
            self._sink(stream, b"".join(data for _, data in same))
