"""Where the output of workers goes: through the fold, to whoever wants it."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tpuctl.remote.fanout import Folder, Line, LineSplitter, Prefixes

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
        self._fold, self._prefixes = Folder(len(workers)), Prefixes(workers)
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
