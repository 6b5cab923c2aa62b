"""Watch tf.data's iterators, those of Keras's `fit` and of other graphs too.

`OwnedIterator` and its members are private to TensorFlow: what one of its versions does not have
is left alone. Inside a graph `next` is not called for every step; there two time stamps are put
around the operation that takes the element, and added up in a variable.
"""

import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Protocol

from tpuctl.pipeline.program.watching import Origin, Series, Watch

SPARE = 8


def hook(watch: Watch, module: ModuleType) -> list[Callable[[], None]]:
    """Watch every iterator from now on; returns what has to be called now and then."""
    owned: Any = module.OwnedIterator
    graphs = _Graphs()
    _hook_birth(watch, owned, graphs)
    _hook_next(watch, owned, graphs)
    return [lambda: _collect(watch, graphs.used)]


def _hook_birth(watch: Watch, owned: Any, graphs: "_Graphs") -> None:
    import tensorflow as tf

    born = owned.__init__

    def __init__(self: Any, dataset: Any = None, *arguments: Any, **named: Any) -> None:
        born(self, dataset, *arguments, **named)
        if dataset is not None and tf.executing_eagerly():
            graphs.prepare(tf)
            series = watch.of(dataset, lambda: _origin(dataset))
            self._tpuctl = series
            watch.opened(series, self)

    owned.__init__ = __init__


def _hook_next(watch: Watch, owned: Any, graphs: "_Graphs") -> None:
    import tensorflow as tf

    for name in ("_next_internal", "get_next_as_optional"):
        plain = getattr(owned, name, None)
        if plain is None:
            continue

        def taking(self: Any, _plain: Any = plain) -> Any:
            if not tf.executing_eagerly():
                return _timed(tf, graphs, self, lambda: _plain(self))
            series = getattr(self, "_tpuctl", None)
            if series is None:
                return _plain(self)
            return watch.take(series, lambda: _plain(self))

        setattr(owned, name, taking)


class Times(Protocol):
    """What one `next` inside a graph added up; those of one iterator have one lane."""

    lane: int

    def since(self) -> tuple[int, float]:
        """Batches and seconds since the last call."""


class _GraphTimes:
    """What one `next` inside a graph added up, and how much of it was looked at already."""

    def __init__(self, tf: Any) -> None:
        with tf.device("/cpu:0"):
            self.waited_s = tf.Variable(0.0, dtype=tf.float64, trainable=False)
            self.count = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.seen = (0, 0.0)
        self.lane = 0

    def since(self) -> tuple[int, float]:
        """Batches and seconds since the last call."""
        count, waited_s = int(self.count.numpy()), float(self.waited_s.numpy())
        before = self.seen
        self.seen = count, waited_s
        return count - before[0], max(0.0, waited_s - before[1])


class _Graphs:
    """Variables for graphs to add times up in; a graph cannot make them itself."""

    def __init__(self) -> None:
        self.spare: list[_GraphTimes] = []
        self.used: list[_GraphTimes] = []
        self.lanes = 0

    def prepare(self, tf: Any) -> None:
        """Have some ready."""
        while len(self.spare) < SPARE:
            self.spare.append(_GraphTimes(tf))

    def take(self, iterator: Any) -> _GraphTimes:
        """Hand one out; what takes from the same iterator has the same lane."""
        if not hasattr(iterator, "_tpuctl_lane"):
            self.lanes += 1
            iterator._tpuctl_lane = self.lanes
        times = self.spare.pop()
        times.lane = iterator._tpuctl_lane
        self.used.append(times)
        return times


def _timed(tf: Any, graphs: _Graphs, iterator: Any, take: Callable[[], Any]) -> Any:
    if not graphs.spare:
        return take()
    times = graphs.take(iterator)
    before = tf.timestamp()
    with tf.control_dependencies([before]):
        element = take()
    flat = [leaf for leaf in tf.nest.flatten(element, expand_composites=True) if tf.is_tensor(leaf)]
    with tf.control_dependencies(flat):
        waited = tf.timestamp() - before
        done = [times.waited_s.assign_add(waited), times.count.assign_add(1)]
    if not flat:
        # An Optional: what comes after it waits for nothing, the automatic order is enough.
        return element
    with tf.control_dependencies(done):
        return tf.nest.map_structure(
            lambda leaf: tf.identity(leaf) if tf.is_tensor(leaf) else leaf,
            element,
            expand_composites=True,
        )


def _collect(watch: Watch, graphs: Sequence[Times]) -> None:
    """Credit what graphs took to the data set that was iterated last.

    A strategy gives every replica an iterator of its own; in one step each takes a part of the
    batch, all at once.
    """
    lanes: dict[int, tuple[int, float]] = {}
    for times in graphs:
        batches, waited_s = times.since()
        before = lanes.get(times.lane, (0, 0.0))
        lanes[times.lane] = before[0] + batches, before[1] + waited_s
    batches, waited_s = max(lanes.values(), default=(0, 0.0))
    series = _fed_by_graph(watch)
    if batches and series:
        parts = sum(lane[0] for lane in lanes.values()) / batches
        examples = round(int(series.origin.settings.get("batch_size") or 1) * parts)
        series.arrived_unseen(batches, waited_s, time.perf_counter(), examples)
        if series.count >= 1:
            for callback in watch.begun:
                callback(series)


def _fed_by_graph(watch: Watch) -> Series | None:
    with watch.lock:
        alive = [s for s in watch.series.values() if s.iterator and s.iterator() is not None]
        quiet = [s for s in alive if s.origin.kind == "tf.data"]
        return max(quiet, key=lambda s: s.count, default=None)


def _origin(dataset: Any) -> Origin:
    import os

    import tensorflow as tf

    from tpuctl.pipeline._tfgraph import chain_of, read_snapshot

    options = dataset.options()
    pool = options.threading.private_threadpool_size or 0
    size = int(dataset.cardinality())
    return Origin(
        kind="tf.data",
        chain=chain_of(dataset),
        threadpool_size=pool or len(os.sched_getaffinity(0)),
        settings={
            "tensorflow": tf.__version__,
            "private_threadpool_size": pool or None,
            "deterministic": options.deterministic,
            "autotune": options.autotune.enabled,
            "batch_size": _batch_size(dataset),
        },
        snapshot=read_snapshot,
        examples=size if size >= 0 else None,
    )


def _batch_size(dataset: Any) -> int | None:
    """Examples per element, where a stage or the shape tells."""
    import tensorflow as tf

    for leaf in tf.nest.flatten(dataset.element_spec):
        shape = getattr(leaf, "shape", None)
        if shape is not None and shape.rank and shape[0]:
            return int(shape[0])
    walker = dataset
    while inputs := list(getattr(walker, "_inputs", list)()):
        size = getattr(walker, "_batch_size", None)
        if size is not None:
            return int(tf.get_static_value(size) or 0) or None
        walker = inputs[0]
    return None
