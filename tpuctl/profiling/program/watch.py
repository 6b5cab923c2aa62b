"""Record the training steps that a program's iterators feed.

A step lasts from the arrival of one batch to that of the next; the time inside `next` is the wait.
"""

import threading
import time
import weakref
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tpuctl.profiling.frameworks.source import Source, count_examples
from tpuctl.profiling.frameworks.stacks import StackSampler
from tpuctl.profiling.node_stats import NodeStats

# So that a training of days does not fill the memory: the older half is dropped at this number.
MOST_STEPS = 50_000
# Steps before the window: compilation and filling buffers.
WARM_STEPS = 3


@dataclass
class Series:
    """The latest steps fed by one data set or loader."""

    source: Source
    created_s: float
    waits: "array[float]" = field(default_factory=lambda: array("d"))
    steps: "array[float]" = field(default_factory=lambda: array("d"))
    examples: "array[float]" = field(default_factory=lambda: array("d"))
    count: int = 0
    first_batch_s: float = 0.0
    last_arrival_s: float | None = None
    node_stats: NodeStats = field(default_factory=NodeStats)
    iterator: "weakref.ref[Any] | None" = None
    in_main_thread: bool = True

    def arrived(self, started_s: float, ended_s: float, examples: int) -> None:
        """Record a batch that was requested and arrived."""
        if self.last_arrival_s is None:
            self.first_batch_s = ended_s - started_s
        else:
            self._step(ended_s - started_s, ended_s - self.last_arrival_s, examples)
        self.last_arrival_s = ended_s

    def arrived_unseen(self, batches: int, waited_s: float, now_s: float, examples: int) -> None:
        """Record batches that a graph took, for which only sums are known."""
        if self.last_arrival_s is None:
            self.last_arrival_s, self.first_batch_s = now_s, waited_s
            self.count = batches - 1
            return
        length_s = (now_s - self.last_arrival_s) / batches
        for _ in range(batches):
            self._step(min(length_s, waited_s / batches), length_s, examples)
        self.last_arrival_s = now_s

    def _step(self, wait_s: float, length_s: float, examples: int) -> None:
        self.count += 1
        self.waits.append(wait_s)
        self.steps.append(max(length_s, wait_s))
        self.examples.append(examples)
        if len(self.steps) > MOST_STEPS:
            for series in (self.waits, self.steps, self.examples):
                del series[: MOST_STEPS // 2]

    def poll(self) -> None:
        """Add what the runtime counted since the last call."""
        iterator = self.iterator() if self.iterator else None
        snapshot = self.source.snapshot(iterator) if iterator is not None else None
        if snapshot:
            self.node_stats.add(snapshot)


@dataclass(frozen=True)
class Steps:
    """Training steps whose input was not seen: calls of one compiled function."""

    function: str
    count: int
    step_ms: float
    examples: int | None


class Watch:
    """The iterators of this process and their steps."""

    def __init__(self) -> None:
        self.series: dict[int, Series] = {}
        self.ended: list[Series] = []
        self._sources: dict[int, tuple[Source, object]] = {}
        self._deleted: list[int] = []
        self.is_on = True
        self.lock = threading.RLock()
        self.begun: list[Callable[[Series], None]] = []
        self.first: list[Callable[[], None]] = []
        # Samples the main thread while that takes an element.
        self.sampler: StackSampler | None = None
        # Whether there are graphs with loops, whose start cannot be observed.
        self.in_graphs = False
        # Steps of a loop without an iterator that is known here.
        self.other_steps: Callable[[], Steps | None] = lambda: None
        # Why steps were not recorded, if that is known.
        self.unseen = ""
        self._inside = threading.local()

    def of(self, thing: object, make: Callable[[], Source]) -> Series:
        """The series of a data set or loader, created when it is first seen.

        The series must keep neither the thing nor the result of `make` alive; both may be large.
        """
        with self.lock:
            self._retire_deleted()
            while self.first:
                self.first.pop()()
            if id(thing) not in self._sources:
                self._sources[id(thing)] = make(), self._watch_deletion(thing)
            if id(thing) not in self.series:
                source = self._sources[id(thing)][0]
                source.start()
                self.series[id(thing)] = Series(source, time.perf_counter())
            return self.series[id(thing)]

    def _watch_deletion(self, thing: object) -> object:
        """Notice when the thing is deleted, because another one may then get its id."""
        key = id(thing)
        try:
            return weakref.ref(thing, lambda _: self._deleted.append(key))
        except TypeError:
            return thing

    def _retire_deleted(self) -> None:
        while self._deleted:
            key = self._deleted.pop()
            self._sources.pop(key, None)
            if series := self.series.pop(key, None):
                self.ended.append(series)

    def reset(self) -> None:
        """Start over, but keep the descriptions of the data sets."""
        with self.lock:
            self.series.clear()
            self.ended.clear()
            self.begun.clear()
            self.first.clear()

    def leave(self) -> None:
        """Stop recording in a forked process, because its parent may have held the lock."""
        self.is_on, self.sampler = False, None
        self.lock, self._inside = threading.RLock(), threading.local()

    def opened(self, series: Series, iterator: Any) -> None:
        """Note that an epoch starts."""
        with self.lock:
            series.poll()
            series.node_stats.start_iterator()
            try:
                series.iterator = weakref.ref(iterator)
            except TypeError:
                series.iterator = None

    def take(self, series: Series, take: Callable[[], Any]) -> Any:
        """Take the next element, and record how long it took.

        Calls to iterators inside another one's `next` count as part of that call.
        """
        # Thread-local, because loaders in their own threads take elements at the same time.
        if getattr(self._inside, "taking", False) or not self.is_on:
            return take()
        self._inside.taking = True
        is_main = threading.current_thread() is threading.main_thread()
        sampler = self.sampler if is_main else None
        if sampler:
            sampler.resume()
        started_s = time.perf_counter()
        try:
            element = take()
        finally:
            if sampler:
                sampler.pause()
            self._inside.taking = False
        ended_s = time.perf_counter()
        series.in_main_thread = is_main
        series.arrived(started_s, ended_s, count_examples(element))
        if series.count == WARM_STEPS:
            for callback in self.begun:
                callback(series)
        return element

    def main(self) -> Series | None:
        """The series with the longest time in steps: training, not evaluation.

        A series that feeds another one, like a loader in Keras, runs in another thread.
        """
        with self.lock:
            known = [each for each in (*self.series.values(), *self.ended) if each.count]
            outer = [each for each in known if each.in_main_thread] or known
            return max(outer, key=lambda each: sum(each.steps), default=None)

    def wrapped(self, series: Series, iterator: Iterator[Any]) -> Iterator[Any]:
        """Wrap an iterator so that its waits are recorded."""
        return _Watched(self, series, iterator)


class _Watched(Iterator[Any]):
    def __init__(self, watch: Watch, series: Series, iterator: Iterator[Any]) -> None:
        self._watch, self._series, self._iterator = watch, series, iterator
        watch.opened(series, self)

    def __next__(self) -> Any:
        return self._watch.take(self._series, self._iterator.__next__)
