"""Time the `next` inside a graph, which is traced once and then runs in every step.

Two timestamps around the operation that takes the element are added up in a variable. The model of
an iterator that is created inside the graph cannot be read from outside, so the graph reads it
twice a second and stores it in a variable too.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tpuctl.profiling.program.watch import Series, Watch

Find = Callable[[], Series]
# Iterators that one graph may create before `prepare` is called again.
SPARE = 8
MODEL_EVERY_S = 0.5


class GraphTimes:
    """The sums for the `next` of an iterator inside a graph, in variables.

    `find` returns the series of its data set in the current recording, because a graph outlives
    recordings.
    """

    def __init__(self, tf: Any) -> None:
        # `tf.Variable` may not be created inside a `tf.function` that has been traced.
        from tensorflow.python.ops.resource_variable_ops import ResourceVariable

        with tf.device("/cpu:0"):
            self.waited_s = ResourceVariable(0.0, dtype=tf.float64, trainable=False)
            self.count = ResourceVariable(0, dtype=tf.int64, trainable=False)
            self.examples = ResourceVariable(0, dtype=tf.int64, trainable=False)
            self.model = ResourceVariable("", dtype=tf.string, trainable=False)
            self.model_at_s = ResourceVariable(0.0, dtype=tf.float64, trainable=False)
        self.find: Find | None = None
        self._previous = (0, 0.0, 0)

    @property
    def model_bytes(self) -> bytes:
        """The latest model of its iterator; empty if there is none."""
        return bytes(self.model.numpy())

    def since(self) -> tuple[int, float, int]:
        """Batches, seconds and, if the graph knows them, examples since the last call."""
        count, waited_s = int(self.count.numpy()), float(self.waited_s.numpy())
        examples = int(self.examples.numpy())
        before = self._previous
        self._previous = count, waited_s, examples
        return count - before[0], max(0.0, waited_s - before[1]), examples - before[2]


class Graphs:
    """Variables in which graphs add up times, created before they are needed."""

    def __init__(self) -> None:
        self.used: list[GraphTimes] = []
        self._spare: list[GraphTimes] = []
        self._inside = threading.local()

    def prepare(self, tf: Any) -> None:
        """Create spare variables, because a graph that is being built cannot create any."""
        with tf.init_scope():
            while len(self._spare) < SPARE:
                self._spare.append(GraphTimes(tf))

    @contextlib.contextmanager
    def inside(self) -> Iterator[bool]:
        """Enter a `next`, and say whether it is the outermost one; nested calls belong to it."""
        outermost = not getattr(self._inside, "taking", False)
        self._inside.taking = True
        try:
            yield outermost
        finally:
            self._inside.taking = not outermost

    def _of(self, iterator: Any) -> GraphTimes | None:
        """The variables of an iterator, the same in all traces of its loop."""
        found: GraphTimes | None = getattr(iterator, "_tpuctl_times", None)
        if found is None and self._spare:
            found = iterator._tpuctl_times = self._spare.pop()
            found.find = getattr(iterator, "_tpuctl_find", None)
            self.used.append(found)
        return found

    def timed(self, tf: Any, take: Callable[[], Any], iterator: Any) -> Any:
        """Take an element with a timestamp before and after."""
        with self.inside() as outermost:
            times = self._of(iterator) if outermost else None
            if times is None:
                return take()
            before = tf.timestamp()
            with tf.control_dependencies([before]):
                element = take()
        leaves = tf.nest.flatten(element, expand_composites=True)
        flat = [leaf for leaf in leaves if tf.is_tensor(leaf)]
        with tf.control_dependencies(flat):
            now = tf.timestamp()
            # A loop ends with an empty Optional.
            taken = tf.cast(element.has_value(), tf.int64) if hasattr(element, "has_value") else 1
            done = [times.waited_s.assign_add(now - before), times.count.assign_add(taken)]
            if (first := next((leaf for leaf in flat if leaf.shape.rank), None)) is not None:
                done.append(times.examples.assign_add(tf.shape(first, tf.int64)[0]))
            if getattr(iterator, "_tpuctl_ask", False):
                _ask_for_model(tf, times, iterator._iterator_resource, now)
        if not flat:
            # An Optional has no tensors to depend on; automatic control dependencies suffice.
            return element
        with tf.control_dependencies(done):
            return tf.nest.map_structure(
                lambda leaf: tf.identity(leaf) if tf.is_tensor(leaf) else leaf,
                element,
                expand_composites=True,
            )


def _ask_for_model(tf: Any, times: GraphTimes, resource: Any, now: Any) -> None:
    from tensorflow.python.ops import gen_experimental_dataset_ops

    def ask() -> Any:
        model = gen_experimental_dataset_ops.iterator_get_model_proto(resource)
        with tf.control_dependencies([times.model.assign(model), times.model_at_s.assign(now)]):
            return tf.constant(value=True)

    tf.cond(now - times.model_at_s > MODEL_EVERY_S, ask, lambda: tf.constant(value=False))


def collect(watch: Watch, graphs: Iterable[GraphTimes]) -> None:
    """Credit the batches of graphs to their data sets, or else to the one with most steps.

    With a strategy, every replica has its own iterator and takes its part of each batch.
    """
    replicas: dict[Find | None, list[tuple[int, float, int]]] = {}
    for times in graphs:
        batches, waited_s, examples = times.since()
        replicas.setdefault(times.find, []).append((batches, waited_s, examples))
        if batches and times.find and times.model_bytes:
            _add_model(watch, times.model_bytes, times.find())
    for find, taken in replicas.items():
        batches, waited_s, _ = max(taken)
        series = (find() if find else _busiest_tf_data(watch)) if batches else None
        if series is None:
            continue
        known = int(series.source.settings.get("batch_size") or 1)
        seen = sum(each or known * count for count, _, each in taken)
        examples = round(seen / batches)
        series.arrived_unseen(batches, waited_s, time.perf_counter(), examples)
        if series.count >= 1:
            for callback in watch.begun:
                callback(series)


def _add_model(watch: Watch, model: bytes, series: Series) -> None:
    from tensorflow.core.framework import model_pb2

    from tpuctl.profiling.frameworks._tf_graph import snapshot_of

    if snapshot := snapshot_of(model_pb2.ModelProto.FromString(model)):
        with watch.lock:
            series.node_stats.add(snapshot)


def _busiest_tf_data(watch: Watch) -> Series | None:
    with watch.lock:
        known = [s for s in watch.series.values() if s.source.kind == "tf.data"]
        alive = [s for s in known if s.iterator and s.iterator() is not None]
        # The last steps of a short training may be read after its iterators are gone.
        return max(alive or known or watch.ended, key=lambda s: s.count, default=None)
