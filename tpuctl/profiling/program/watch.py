"""What is written down about a program's iterators while it trains.

A step lasts from one batch's arrival to the next one's; the part of it inside `next` is the wait.
"""

import threading
import time
import weakref
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tpuctl.profiling.frameworks.iterables import count_examples, size_bytes, wide_float_bytes
from tpuctl.profiling.models import ChainNode, Kind, StageCost
from tpuctl.profiling.node_stats import NodeStats, Snapshot

MOST_STEPS = 50_000
# Steps before the window: compilation, and buffers that fill.
WARM_STEPS = 3


@dataclass
class Origin:
    """A data set or loader that iterators are made of, again in every epoch.

    `begin` starts what its costs are measured with, in every recording anew.
    """

    kind: Kind
    chain: ChainNode
    threadpool_size: int = 0
    lanes: int | None = None
    runs_ahead: bool | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    begin: Callable[[], None] = lambda: None
    costs: Callable[[], tuple[StageCost, ...]] = tuple
    snapshot: Callable[[Any], Snapshot | None] = lambda _: None
    examples: int | None = None


@dataclass
class Series:
    """The steps that one origin fed, the newest of them."""

    origin: Origin
    born_s: float
    waits: "array[float]" = field(default_factory=lambda: array("d"))
    steps: "array[float]" = field(default_factory=lambda: array("d"))
    examples: "array[float]" = field(default_factory=lambda: array("d"))
    count: int = 0
    epochs: int = 0
    first_batch_s: float = 0.0
    last_arrival_s: float | None = None
    batch_bytes: int = 0
    wide_bytes: int = 0
    feeding_cpu_s: float = 0.0
    ledger: NodeStats = field(default_factory=NodeStats)
    iterator: "weakref.ref[Any] | None" = None
    waiting_since_s: float | None = None
    in_main_thread: bool = True

    def arrived(self, started_s: float, ended_s: float, examples: int) -> None:
        """Write down a batch that was asked for and came."""
        if self.last_arrival_s is None:
            self.first_batch_s = ended_s - started_s
        else:
            self._step(ended_s - started_s, ended_s - self.last_arrival_s, examples)
        self.last_arrival_s = ended_s

    def arrived_unseen(self, batches: int, waited_s: float, now_s: float, examples: int) -> None:
        """Write down batches that a graph took, of which only the sums are known."""
        if self.last_arrival_s is None:
            self.last_arrival_s, self.first_batch_s = now_s, waited_s
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
        """Bring the ledger up to date."""
        iterator = self.iterator() if self.iterator else None
        snapshot = self.origin.snapshot(iterator) if iterator is not None else None
        if snapshot:
            self.ledger.add(snapshot)


class Watch:
    """Everything that is known about the iterators of this process."""

    def __init__(self) -> None:
        self.series: dict[int, Series] = {}
        self.ended: list[Series] = []
        self._origins: dict[int, tuple[Origin, object]] = {}
        self._gone: list[int] = []
        self.is_on = True
        self.lock = threading.RLock()
        self.begun: list[Callable[[Series], None]] = []
        self.first: list[Callable[[], None]] = []
        self.is_taking = False
        # Whether there are graphs with loops in them, which nobody sees begin.
        self.in_graphs = False
        self._inside = threading.local()

    def of(self, thing: object, make: Callable[[], Origin]) -> Series:
        """The series of a data set or loader, begun when it is first seen.

        The thing itself is not kept: it may hold a whole epoch.
        """
        with self.lock:
            self._part_from_the_gone()
            while self.first:
                self.first.pop()()
            if id(thing) not in self._origins:
                self._origins[id(thing)] = make(), self._remember(thing)
            if id(thing) not in self.series:
                origin = self._origins[id(thing)][0]
                origin.begin()
                self.series[id(thing)] = Series(origin, time.perf_counter())
            return self.series[id(thing)]

    def _remember(self, thing: object) -> object:
        """Notice when the thing goes, since another one may then get its identity."""
        key = id(thing)
        try:
            return weakref.ref(thing, lambda _: self._gone.append(key))
        except TypeError:
            return thing

    def _part_from_the_gone(self) -> None:
        while self._gone:
            key = self._gone.pop()
            self._origins.pop(key, None)
            if series := self.series.pop(key, None):
                self.ended.append(series)

    def forget(self) -> None:
        """Begin anew; what is known about the data sets themselves is kept."""
        with self.lock:
            self.series.clear()
            self.ended.clear()
            self.begun.clear()
            self.first.clear()

    def opened(self, series: Series, iterator: Any) -> None:
        """Note that an epoch begins."""
        with self.lock:
            series.poll()
            series.ledger.start_iterator()
            series.epochs += 1
            try:
                series.iterator = weakref.ref(iterator)
            except TypeError:
                series.iterator = None

    def take(self, series: Series, take: Callable[[], Any]) -> Any:
        """Take the next element, and write down how long that took.

        An iterator inside another one's `next` is part of that, not one of its own.
        """
        if getattr(self._inside, "taking", False) or not self.is_on:
            return take()
        self._inside.taking = True
        is_main = threading.current_thread() is threading.main_thread()
        self.is_taking = self.is_taking or is_main
        started_s, cpu_s = time.perf_counter(), time.thread_time()
        series.waiting_since_s = started_s
        try:
            element = take()
        finally:
            self._inside.taking = False
            self.is_taking = self.is_taking and not is_main
            series.waiting_since_s = None
        ended_s = time.perf_counter()
        series.feeding_cpu_s += time.thread_time() - cpu_s
        series.in_main_thread = is_main
        if not series.count:
            series.batch_bytes, series.wide_bytes = size_bytes(element), wide_float_bytes(element)
        series.arrived(started_s, ended_s, count_examples(element))
        if series.count == WARM_STEPS:
            for callback in self.begun:
                callback(series)
        return element

    def main(self) -> Series | None:
        """The series that most steps came from: training, not evaluation.

        One that feeds another one, as Keras does with loaders of others, runs in its thread.
        """
        with self.lock:
            known = [each for each in (*self.series.values(), *self.ended) if each.count]
            outer = [each for each in known if each.in_main_thread] or known
            return max(outer, key=lambda each: sum(each.steps), default=None)

    def wrapped(self, series: Series, iterator: Iterator[Any]) -> Iterator[Any]:
        """An iterator that writes down its waits."""
        return _Watched(self, series, iterator)


class _Watched(Iterator[Any]):
    def __init__(self, watch: Watch, series: Series, iterator: Iterator[Any]) -> None:
        self._watch, self._series, self._iterator = watch, series, iterator
        watch.opened(series, self)

    def __next__(self) -> Any:
        return self._watch.take(self._series, self._iterator.__next__)
