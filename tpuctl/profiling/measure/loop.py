"""Measure a pipeline: read batches, simulate a device by waiting, and record the times."""

import contextlib
import math
import statistics
import sys
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tpuctl.errors import TargetError
from tpuctl.profiling.frameworks.source import Source
from tpuctl.profiling.measure import signals
from tpuctl.profiling.measure.probe import GilProbe, Sampler
from tpuctl.profiling.node_stats import NodeStats
from tpuctl.profiling.windows import Phase, Slice, Spread, StageCost
from tpuctl.usercode.error_summary import describe

# Long enough for prefetch buffers to fill or drain, short compared with a window.
SETTLE_S = 0.5
# The first third of a window over the last: above this, caches or buffers are still filling.
WARMING_RATIO = 1.5
# So that reading the counters does not wait 5 ms, the default, for each busy Python thread.
PROMPT_SWITCH_S = 1e-5
# The two batches that pipelines usually prefetch, and the one that the loop fetches ahead.
BUFFERED = 3
FEWEST_STEPS = 2
# A late batch is often followed by an early one: sums of BLOCK neighbours show the real spread.
BLOCK, LEAST_BLOCKS = 4, 4


@dataclass(frozen=True)
class Limit:
    """When a window is long enough: after `steps`, otherwise after `seconds` and a few steps."""

    seconds: float
    steps: int | None = None
    least_steps: int = 4

    def reached(self, steps: int, elapsed_s: float) -> bool:
        """Whether to stop now."""
        if self.steps is not None:
            return steps >= self.steps
        enough = steps >= self.least_steps or elapsed_s >= 4 * self.seconds
        return enough and elapsed_s >= self.seconds


class BatchReader:
    """Reads batches like a training loop, epoch after epoch, without training."""

    def __init__(self, source: Source, *, batch_size: int) -> None:
        self.source = source
        self._batch_size = batch_size
        self._iterator: Iterator[Any] | None = None
        # The sampler thread polls the iterator, which this thread replaces between epochs.
        self._lock = threading.Lock()
        self.node_stats = NodeStats()
        # Examples of the last whole epoch, and of this one so far.
        self.epoch_examples: int | None = None
        self._seen = 0
        self.waiting_since: float | None = None

    def step(self) -> int:
        """Read the elements for one step and return the number of examples.

        Raises TargetError if the pipeline fails or is empty.
        """
        self.waiting_since = time.perf_counter()
        # The first element shows whether elements are batches.
        examples = self._take()
        examples += sum(self._take() for _ in range(self.elements_per_step - 1))
        self.waiting_since = None
        return examples

    def _take(self) -> int:
        examples = self.source.count(self._next())
        self._seen += examples
        return examples

    @property
    def elements_per_step(self) -> int:
        """How many elements make a step: one batch, or `batch_size` single examples."""
        return 1 if self.source.batched else self._batch_size

    def poll(self) -> None:
        """Add what the runtime counted since the last call."""
        with self._lock:
            iterator = self._iterator
            snapshot = None if iterator is None else self.source.snapshot(iterator)
            if snapshot:
                self.node_stats.add(snapshot)

    def _next(self) -> Any:
        for _ in range(2):
            iterator = self._open() if self._iterator is None else self._iterator
            try:
                return next(iterator)
            except StopIteration:
                self.poll()
                # Deleted before the next one is created, as in a user's loop: beside the threads of
                # the last one, a short epoch of tf.data took 1.5 times as long.
                self._iterator = None
                del iterator
                self.epoch_examples, self._seen = self._seen, 0
            except (Exception, SystemExit) as error:
                raise TargetError(
                    f"The pipeline failed while producing a batch: {describe(error)}"
                ) from error
        raise TargetError("The pipeline produced no elements: its data set is empty.")

    def _open(self) -> Iterator[Any]:
        with self._lock:
            self.node_stats.start_iterator()
        # Not under the lock: opening may fork, which waits for the sampler thread to stop.
        iterator = self.source.open()
        with self._lock:
            self._iterator = iterator
        return iterator


@dataclass
class _Times:
    """The times that the loop itself records during a window."""

    start_s: float
    end_s: float
    waits: "array[float]" = field(default_factory=lambda: array("d"))
    steps: "array[float]" = field(default_factory=lambda: array("d"))
    examples: int = 0
    feeding_cpu_s: float = 0.0
    loop_cpu_s: float = 0.0


class Recorder:
    """Runs windows, and records for each the loop, the runtime's model and the machine."""

    def __init__(self, reader: BatchReader, sampler: Sampler) -> None:
        self._reader = reader
        self._slices: list[Slice] | None = None
        self._last: tuple[float, float, tuple[int, ...]] = (0.0, 0.0, ())
        self._lock = threading.Lock()
        self._probe = GilProbe()
        self._sampler = sampler
        self._tool_threads = (self._probe.thread_id, sampler.thread_id)
        self._threads = signals.Threads()
        sampler.callbacks.append(self._sample)
        self._created_s = time.perf_counter()

    @property
    def tool_cpu_s(self) -> float:
        """CPU seconds of the threads that only measure."""
        return self._probe.cpu_s + self._sampler.cpu_s

    def settle(self, device_s: float | None, *, least_steps: int = FEWEST_STEPS) -> None:
        """Run until buffers are in a steady state, for at most 2 s."""
        self._loop(Limit(SETTLE_S, least_steps=least_steps), device_s)

    def record(self, limit: Limit, device_s: float | None) -> Phase:
        """Measure one window; with `device_s`, the loop simulates a step that long per batch."""
        with prompt_switches():
            self._begin()
            costs = self._reader.source.costs()
            before, tool_s = self._read(), self.tool_cpu_s
        times = self._loop(limit, device_s)
        with prompt_switches():
            costs = grown(costs, self._reader.source.costs())
            after = self._read()
            slices = self._end()
        what = signals.between(
            before,
            after,
            tool_cpu_s=self.tool_cpu_s - tool_s,
            consumer_cpu_s=times.loop_cpu_s,
            gil_overshoots_s=self._probe.take(),
        )
        return Phase(
            name="free" if device_s is None else "device",
            start_s=times.start_s - self._created_s,
            end_s=times.end_s - self._created_s,
            steps=len(times.steps),
            elements=len(times.steps) * self._reader.elements_per_step,
            examples=times.examples,
            waits=spread(times.waits),
            step_times=spread(times.steps),
            device_busy_s=len(times.steps) * (device_s or 0.0),
            signals=what,
            nodes=self._reader.node_stats.costs(),
            slices=slices,
            nodes_vanished=self._reader.node_stats.nodes_vanished,
            warming_up=is_warming_up(times.waits if device_s else times.steps),
            costs=costs,
            unevenness=unevenness(times.steps) if device_s is None else None,
        )

    def _read(self) -> signals.Reading:
        return signals.read(tool_threads=self._tool_threads, threads=self._threads)

    def _loop(self, limit: Limit, device_s: float | None) -> _Times:
        """Feed a simulated device that takes `device_s` per batch, or none.

        The next batch is fetched while the device works on the current one, as with frameworks that
        dispatch steps asynchronously; the device waits if it is free before the batch arrives.
        """
        thread_s = time.thread_time()
        start = time.perf_counter()
        times = _Times(start, start)
        while not limit.reached(len(times.steps), times.end_s - start):
            before_s = time.thread_time()
            times.examples += self._reader.step()
            times.feeding_cpu_s += time.thread_time() - before_s
            ready = time.perf_counter()
            begins = max(ready, times.end_s)
            time.sleep(max(0.0, begins - ready))
            times.waits.append(begins - times.end_s)
            ends = begins + (device_s or 0.0)
            times.steps.append(ends - times.end_s)
            times.end_s = ends
        times.loop_cpu_s = time.thread_time() - thread_s - times.feeding_cpu_s
        return times

    def _begin(self) -> None:
        with self._lock:
            self._reader.poll()
            self._reader.node_stats.reset()
            self._probe.take()
            self._slices = []
            self._last = (time.perf_counter(), signals.process_cpu_s(), ())

    def _end(self) -> tuple[Slice, ...]:
        self._sample()
        with self._lock:
            slices, self._slices = self._slices or [], None
        return tuple(slices)

    def _sample(self) -> None:
        with self._lock:
            if self._slices is None:
                return
            self._reader.poll()
            signals.attempt(lambda: self._threads.read(but=self._tool_threads))
            now, cpu_s = time.perf_counter(), signals.process_cpu_s()
            elements = self._reader.node_stats.elements()
            last_s, last_cpu_s, last = self._last
            earlier = last + (0,) * (len(elements) - len(last))
            more = tuple(a - b for a, b in zip(elements, earlier, strict=True))
            self._slices.append(Slice(now - last_s, cpu_s - last_cpu_s, more))
            self._last = (now, cpu_s, elements)


_wanted_s: list[float] = []
_switches = threading.Lock()


@contextlib.contextmanager
def prompt_switches(seconds: float = PROMPT_SWITCH_S) -> Iterator[None]:
    """Give this thread the interpreter lock quickly, even if other threads compete for it."""

    def set_shortest(change: Callable[[float], None]) -> None:
        with _switches:
            # The first is the usual one, which no thread may take for its own.
            _wanted_s[:] = _wanted_s or [sys.getswitchinterval()]
            change(seconds)
            sys.setswitchinterval(min(_wanted_s[1:], default=_wanted_s[0]))
            if len(_wanted_s) == 1:
                _wanted_s.clear()

    set_shortest(_wanted_s.append)
    try:
        yield
    finally:
        set_shortest(_wanted_s.remove)


def grown(before: Sequence[StageCost], after: Sequence[StageCost]) -> tuple[StageCost, ...]:
    """The work of each function between two readings."""
    earlier = {(cost.name, cost.location, cost.caller): cost for cost in before}
    found = []
    for cost in after:
        if old := earlier.get((cost.name, cost.location, cost.caller)):
            cost = replace(
                cost,
                calls=cost.calls - old.calls,
                wall_s=max(0.0, cost.wall_s - old.wall_s),
                cpu_s=max(0.0, cost.cpu_s - old.cpu_s),
            )
        if cost.calls > 0:
            found.append(cost)
    return tuple(found)


def spread(times: "array[float]") -> Spread:
    """Summarise a series of durations."""
    if not times:
        return Spread(0, 0.0, 0.0, 0.0, 0.0, 0.0)
    ordered = sorted(times)

    def quantile(share: float) -> float:
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    mean = sum(ordered) / len(ordered)
    return Spread(len(ordered), mean, quantile(0.5), quantile(0.95), quantile(0.99), ordered[-1])


def steps_to_fill(batch_s: float, device_s: float) -> int:
    """The number of steps with a device until emptied buffers are full again."""
    gained = device_s / batch_s - 1 if batch_s else 0.0
    return FEWEST_STEPS + math.ceil(BUFFERED / gained) if gained > 0 else FEWEST_STEPS


def unevenness(times: "array[float]") -> float | None:
    """The variance of the time per batch over its squared mean; None if there are too few."""
    ends = range(BLOCK, len(times) + 1, BLOCK)
    blocks = [sum(times[end - BLOCK : end]) for end in ends]
    if len(blocks) < LEAST_BLOCKS or not any(blocks):
        return None
    return BLOCK * statistics.variance(blocks) / statistics.fmean(blocks) ** 2


def is_warming_up(times: "array[float]") -> bool:
    """Whether the last third of a window was much faster than the first."""
    third = len(times) // 3
    if third < 4:
        return False
    first, last = sum(times[:third]), sum(times[-third:])
    return first > WARMING_RATIO * last and sum(times) > SETTLE_S
