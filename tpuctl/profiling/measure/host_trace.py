"""Trace the host while a pipeline runs, within a budget that is measured at the same time."""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tpuctl.errors import TargetError
from tpuctl.profiling.models import NodeCost, Phase
from tpuctl.profiling.reference import load_facts
from tpuctl.profiling.trace.models import Deep
from tpuctl.units import format_bytes

# Fewer pairs of windows do not show their spread.
LEAST_PAIRS = 3
# 97.5 % quantiles of Student's t for 2, 3, ... degrees of freedom (NIST/SEMATECH e-Handbook of
# Statistical Methods, 1.3.6.7.2); the last is used for more.
STUDENT = (4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
# The ratio of one pair of adjacent windows is off by 4 to 5 %, whether they take half a second or a
# whole one (2026-11, 44 pairs with a profiler that records nothing): many short ones tell more.
# But short windows cut off more of the long operations, so if there are few elements, whose ratios
# say nothing anyway, windows are long.
FIRST_S, WINDOW_S, LONG_S = 0.2, 0.5, 1.0
MOST_S, MOST_BYTES, MOST_OVERHEAD = 3.0, 8_000_000, 0.05
# With fewer elements in a window, the unfinished ones at its ends dominate.
LEAST_ELEMENTS = 20
FALLBACK = "shares are from the runtime's model instead"


@dataclass(frozen=True)
class Slowdown:
    """CPU time per element with tracing over that without, minus 1, and its 95 % interval."""

    mean: float
    low: float
    high: float
    pairs: int

    def __str__(self) -> str:
        """Return the estimate with its interval."""
        return f"{self.mean:.1%} ({self.low:.1%} to {self.high:.1%})"


def pooled(ratios: Sequence[float]) -> Slowdown | None:
    """Pool the ratios of pairs of windows; None if there are too few."""
    if len(ratios) < LEAST_PAIRS:
        return None
    logs = [math.log(ratio) for ratio in ratios]
    mean = statistics.fmean(logs)
    quantile = STUDENT[min(len(logs), len(STUDENT) + 2) - LEAST_PAIRS]
    error = quantile * statistics.stdev(logs) / math.sqrt(len(logs))
    low, middle, high = (math.expm1(mean + side * error) for side in (-1, 0, 1))
    return Slowdown(middle, low, high, len(logs))


class Profiler(Protocol):
    """Writes an XSpace of its own process."""

    def start(self, folder: Path) -> None:
        """Start tracing; raises ProfilerError if it cannot."""

    def stop(self) -> Path:
        """Stop tracing and return the file; raises ProfilerError if there is none."""


class ProfilerError(Exception):
    """The profiler cannot be used. Never leaves this package: it becomes a note."""


@dataclass(frozen=True)
class Running:
    """A pipeline that runs for a number of seconds, or until its buffers are in a steady state.

    Right after a trace was collected they are full, and elements come out without any work.
    `profiled_s` is how long the pipeline has been measured so far, traced or not.
    """

    measure: Callable[[float], Phase]
    settle: Callable[[], None]
    profiled_s: Callable[[], float]


@dataclass
class _Budget:
    """What tracing has used so far, and what it may use."""

    captures: int = 0
    window_s: float = LONG_S
    traced_s: float = 0.0
    traced_bytes: int = 0
    traced_cpu_s: float = 0.0
    collecting_s: float = 0.0
    vcpu_s: float = 0.0
    others_cpu_s: list[float | None] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)

    def add(self, window: Phase, size_bytes: int, collecting_s: float) -> None:
        """Account for one capture."""
        self.captures += 1
        self.traced_s += window.wall_s
        self.traced_bytes += size_bytes
        self.traced_cpu_s += window.signals.cpu_s
        self.collecting_s += collecting_s
        self.vcpu_s += window.wall_s * window.signals.vcpus_usable
        self.others_cpu_s.append(window.signals.other_cpu_s)

    @property
    def slowdown(self) -> Slowdown | None:
        """How much more elements cost with tracing, from all pairs of windows."""
        return pooled(self.ratios)

    @property
    def overhead(self) -> float:
        """The share of the vCPUs that tracing used while it was on.

        Recording is spread over the pipeline's threads; it is estimated as its usual share of
        collecting, which has a thread of its own.
        """
        recording = load_facts("relative_costs.json")["trace_recording"]
        return self.collecting_s * (1 + recording) / self.vcpu_s if self.vcpu_s else 0.0

    def over_the_run(self, profiled_s: float, slowdown: float) -> float:
        """The share of the vCPUs that tracing used, over all the time that was profiled."""
        recording_s = self.traced_cpu_s * (1 - 1 / (1 + max(0.0, slowdown)))
        vcpus = self.vcpu_s / self.traced_s
        return (self.collecting_s + recording_s) / (profiled_s * vcpus)

    @property
    def others(self) -> float | None:
        """The share of the vCPUs that other programs used meanwhile."""
        known_s = [cpu_s for cpu_s in self.others_cpu_s if cpu_s is not None]
        all_known = len(known_s) == self.captures
        return sum(known_s) / self.vcpu_s if self.vcpu_s and all_known else None

    @property
    def next_s(self) -> float:
        """How long the next window may be; 0 if the budget is spent."""
        bytes_per_s = self.traced_bytes / self.traced_s if self.traced_s else 0.0
        room_s = (MOST_BYTES - self.traced_bytes) / bytes_per_s if bytes_per_s else LONG_S
        return min(self.window_s, MOST_S - self.traced_s, room_s)

    def too_much(self) -> str | None:
        """Why tracing has to stop because of its effect on the pipeline, else None."""
        if self.overhead > MOST_OVERHEAD:
            rate = format_bytes(round(self.traced_bytes / self.traced_s))
            return (
                f"it uses {self.overhead:.0%} of the vCPUs ({rate} of events per second), more "
                f"than the allowed {MOST_OVERHEAD:.0%}; {FALLBACK}."
            )
        slowdown = self.slowdown
        if slowdown and slowdown.low > MOST_OVERHEAD:
            return f"elements took {slowdown} more CPU time than without it; {FALLBACK}."
        return None


def capture(running: Running, profiler: Profiler, folder: Path) -> tuple[Deep, tuple[str, ...]]:
    """Trace a pipeline as it runs; return the cost and limits of that, and the trace files."""
    budget, files = _Budget(), list[str]()
    ended = None
    try:
        first, _ = _traced(running, profiler, folder, FIRST_S, budget)
        busiest = _busiest(first)
        if busiest and busiest.elements * WINDOW_S >= LEAST_ELEMENTS * first.wall_s:
            budget.window_s = WINDOW_S
        while not (ended := budget.too_much()) and budget.next_s >= FIRST_S:
            seconds = budget.next_s
            running.settle()
            before = running.measure(seconds)
            traced, file = _traced(running, profiler, folder, seconds, budget)
            files.append(str(file))
            if (ratio := _ratio(before, traced)) is not None:
                budget.ratios.append(ratio)
    except (ProfilerError, TargetError) as error:
        # The profiler or the pipeline failed; what was measured before remains valid.
        if not budget.captures:
            return Deep(missing=f"{error}"), ()
        ended = f"{error}"
    if budget.too_much():
        files = []
    return _summary(budget, running.profiled_s(), ended), tuple(files)


def _summary(budget: _Budget, profiled_s: float, ended: str | None) -> Deep:
    slowdown = budget.slowdown
    return Deep(
        captures=budget.captures,
        traced_s=budget.traced_s,
        traced_bytes=budget.traced_bytes,
        profiled_s=profiled_s,
        overhead_fraction=budget.overhead,
        run_overhead_fraction=budget.over_the_run(profiled_s, slowdown.mean) if slowdown else None,
        run_overhead_most=budget.over_the_run(profiled_s, slowdown.high) if slowdown else None,
        others_fraction=budget.others,
        slowdown=slowdown.mean if slowdown else None,
        slowdown_low=slowdown.low if slowdown else None,
        slowdown_high=slowdown.high if slowdown else None,
        ended=ended,
    )


def _traced(
    running: Running, profiler: Profiler, folder: Path, seconds: float, budget: _Budget
) -> tuple[Phase, Path]:
    """Trace one window into a folder of its own, since profilers name files by the second."""
    place = folder / f"{budget.captures}"
    place.mkdir()
    profiler.start(place)
    try:
        window = running.measure(seconds)
    finally:
        before_s = time.thread_time()
        file = profiler.stop()
        collecting_s = time.thread_time() - before_s
    budget.add(window, file.stat().st_size, collecting_s)
    return window, file


def _busiest(window: Phase) -> NodeCost | None:
    return max(window.nodes, key=lambda node: node.active_s, default=None)


def _ratio(before: Phase, traced: Phase) -> float | None:
    """CPU time per element with tracing over that without.

    Elements of the busiest node, not batches, because buffers fill between windows.
    """
    busiest = _busiest(before)
    if busiest is None:
        return None
    costs_s = []
    for window in (before, traced):
        elements = next((node.elements for node in window.nodes if node.path == busiest.path), 0)
        if elements < LEAST_ELEMENTS:
            return None
        costs_s.append(window.signals.cpu_s / elements)
    return costs_s[1] / costs_s[0] if all(costs_s) else None
