"""Trace the host while a pipeline runs, within a budget for the overhead."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tpuctl.errors import TargetError
from tpuctl.profiling.reference import load_facts
from tpuctl.profiling.trace.models import Deep
from tpuctl.profiling.windows import Phase
from tpuctl.units import format_bytes

# The first capture is short: if tracing is too expensive, it ends there.
FIRST_S, WINDOW_S = 0.2, 1.0
MOST_S, MOST_BYTES, MOST_OVERHEAD = 3.0, 8_000_000, 0.05
FALLBACK = "shares are from the runtime's model instead"


class Profiler(Protocol):
    """Writes an XSpace of its own process."""

    def start(self, folder: Path) -> None:
        """Start tracing; raises ProfilerError if it cannot."""

    def stop(self) -> Path:
        """Stop tracing and return the file; raises ProfilerError if there is none."""


class ProfilerError(Exception):
    """The profiler cannot be used; caught in this package and shown as a note."""


@dataclass
class _Budget:
    """What tracing has used so far, and what it may use."""

    captures: int = 0
    traced_s: float = 0.0
    traced_bytes: int = 0
    collecting_s: float = 0.0
    vcpu_s: float = 0.0
    others_cpu_s: list[float | None] = field(default_factory=list)

    def add(self, window: Phase, size_bytes: int, collecting_s: float) -> None:
        """Account for one capture."""
        self.captures += 1
        self.traced_s += window.wall_s
        self.traced_bytes += size_bytes
        self.collecting_s += collecting_s
        self.vcpu_s += window.wall_s * window.signals.vcpus_usable
        self.others_cpu_s.append(window.signals.other_cpu_s)

    @property
    def overhead(self) -> float:
        """The share of the vCPUs that tracing used while it was on.

        Recording is spread over the pipeline's threads; its cost is estimated from that of
        collecting, which has its own thread.
        """
        recording = load_facts("relative_costs.json")["trace_recording"]
        return self.collecting_s * (1 + recording) / self.vcpu_s if self.vcpu_s else 0.0

    @property
    def others(self) -> float | None:
        """The share of the vCPUs that other programs used during tracing."""
        known_s = [cpu_s for cpu_s in self.others_cpu_s if cpu_s is not None]
        all_known = len(known_s) == self.captures
        return sum(known_s) / self.vcpu_s if self.vcpu_s and all_known else None

    @property
    def next_s(self) -> float:
        """How long the next window may be; 0 if the budget is spent."""
        bytes_per_s = self.traced_bytes / self.traced_s if self.traced_s else 0.0
        room_s = (MOST_BYTES - self.traced_bytes) / bytes_per_s if bytes_per_s else WINDOW_S
        return min(WINDOW_S, MOST_S - self.traced_s, room_s)

    def too_much(self) -> str | None:
        """Why tracing has to stop because of its effect on the pipeline, else None."""
        # Each capture has a fixed cost, which may be all that the short first one shows.
        magnified = WINDOW_S / FIRST_S if self.captures == 1 else 1
        if self.overhead <= MOST_OVERHEAD * magnified:
            return None
        rate = format_bytes(round(self.traced_bytes / self.traced_s))
        return (
            f"it uses {self.overhead:.0%} of the vCPUs ({rate} of events per second), more "
            f"than the allowed {MOST_OVERHEAD:.0%}; {FALLBACK}."
        )


def capture(
    measure: Callable[[float], Phase],
    settle: Callable[[], None],
    profiler: Profiler,
    folder: Path,
) -> tuple[Deep, tuple[str, ...]]:
    """Trace a running pipeline; return the cost and limits of tracing, and the trace files.

    `measure` runs it for a number of seconds, `settle` until its buffers are in a steady state:
    right after a trace is collected they are full, and elements come out without any work.
    """
    budget, files = _Budget(), list[str]()
    ended = None
    try:
        _trace(measure, profiler, folder, FIRST_S, budget)
        while not (ended := budget.too_much()) and budget.next_s >= FIRST_S:
            settle()
            files.append(str(_trace(measure, profiler, folder, budget.next_s, budget)))
    except (ProfilerError, TargetError) as error:
        # The profiler or the pipeline failed; what was measured before remains valid.
        if not budget.captures:
            return Deep(missing=f"{error}"), ()
        ended = f"{error}"
    deep = Deep(
        captures=budget.captures,
        traced_s=budget.traced_s,
        traced_bytes=budget.traced_bytes,
        overhead_fraction=budget.overhead,
        others_fraction=budget.others,
        ended=ended,
    )
    return deep, () if budget.too_much() else tuple(files)


def _trace(
    measure: Callable[[float], Phase],
    profiler: Profiler,
    folder: Path,
    seconds: float,
    budget: _Budget,
) -> Path:
    """Trace one window into its own folder, because profilers name files by the second."""
    place = folder / f"{budget.captures}"
    place.mkdir()
    profiler.start(place)
    try:
        window = measure(seconds)
    finally:
        before_s = time.thread_time()
        file = profiler.stop()
        collecting_s = time.thread_time() - before_s
    budget.add(window, file.stat().st_size, collecting_s)
    return file
