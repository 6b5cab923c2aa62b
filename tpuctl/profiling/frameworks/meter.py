"""Count and time the calls of a pipeline's functions in all threads and processes.

Each thread writes to its own small mapped file, so that no lock is needed and a killed worker
loses nothing. For functions that take microseconds, one call in sixteen is timed. This module has
no other imports of ours, because Grain's workers unpickle its classes.
"""

import mmap
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MOST_STAGES = 64
CALLS, TIMED, WALL_NS, CPU_NS = range(4)
FIELDS = 4
ROW_BYTES = MOST_STAGES * FIELDS * 8
# Timing a call takes some microseconds. After FEW calls that took less than QUICK_NS on average,
# only one call in ONE_IN is timed.
QUICK_NS, FEW, ONE_IN = 20_000, 256, 16


@dataclass(frozen=True)
class Reading:
    """The work of one function so far; the times of untimed calls are extrapolated."""

    calls: int
    wall_s: float
    cpu_s: float


class Meter:
    """The counters of one pipeline; can be pickled and forked."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._mine = threading.local()

    def __reduce__(self) -> tuple[Any, ...]:
        return Meter, (self.folder,)

    def row(self) -> "memoryview[int]":
        """The counters of the calling thread; new ones after a fork."""
        if getattr(self._mine, "pid", None) != os.getpid():
            self._mine.row = memoryview(self._mapped()).cast("q")
            self._mine.pid = os.getpid()
        found: memoryview[int] = self._mine.row
        return found

    def _mapped(self) -> mmap.mmap:
        """The calling thread's file, or anonymous memory if no file can be written.

        So a pipeline that outlives its profile and the folder keeps running.
        """
        path = Path(self.folder, f"{os.getpid()}-{threading.get_native_id()}.meter")
        try:
            with path.open("w+b") as file:
                # Fail now if the disk is full: writing to a mapped page would kill the process.
                os.posix_fallocate(file.fileno(), 0, ROW_BYTES)
                return mmap.mmap(file.fileno(), ROW_BYTES)
        except OSError:
            return mmap.mmap(-1, ROW_BYTES)

    def read(self, stages: int) -> list[Reading]:
        """Add up the counters of all threads."""
        sums = [[0] * FIELDS for _ in range(stages)]
        for path in Path(self.folder).glob("*.meter"):
            content = path.read_bytes()
            if len(content) != ROW_BYTES:
                continue
            row = memoryview(content).cast("q")
            for stage, found in enumerate(sums):
                for each in range(FIELDS):
                    found[each] += row[stage * FIELDS + each]
        readings = []
        for calls, timed, wall_ns, cpu_ns in sums:
            scale = calls / timed / 1e9 if timed else 0.0
            readings.append(Reading(calls, wall_ns * scale, cpu_ns * scale))
        return readings


class Metered:
    """A function that measures its own calls."""

    def __init__(self, function: Callable[..., Any], meter: Meter, stage: int) -> None:
        self.function, self.meter, self.stage = function, meter, stage

    def __getattr__(self, name: str) -> Any:
        if name in ("function", "meter", "stage"):
            raise AttributeError(name)
        return getattr(self.function, name)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the function."""
        row, base = self.meter.row(), self.stage * FIELDS
        row[base + CALLS] += 1
        timed = row[base + TIMED]
        if timed >= FEW and row[base + WALL_NS] < QUICK_NS * timed and row[base + CALLS] % ONE_IN:
            return self.function(*arguments, **named)
        start, cpu = time.perf_counter_ns(), time.thread_time_ns()
        try:
            return self.function(*arguments, **named)
        finally:
            row[base + TIMED] += 1
            row[base + CPU_NS] += time.thread_time_ns() - cpu
            row[base + WALL_NS] += time.perf_counter_ns() - start
