"""Time the `next` inside a graph, which is called once and then runs for every step.

Two time stamps are put around the operation that takes the element and added up in a variable.
Where the iterator itself is made in the graph nobody outside can ask for its model, so the graph
asks, twice a second, and leaves the answer in a variable too.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from tpuctl.pipeline.program.watching import Series, Watch

SPARE = 8
MODEL_EVERY_S = 0.5


class GraphTimes:
    """What one `next` inside a graph added up, and how much of it was looked at already.

    `find` gives the series of its data set, in whatever recording runs: a graph outlives them.
    """

    def __init__(self, tf: Any) -> None:
        # `tf.Variable` is forbidden once a `tf.function` has been traced, and would be its own.
        from tensorflow.python.ops.resource_variable_ops import ResourceVariable

        with tf.device("/cpu:0"):
            self.waited_s = ResourceVariable(0.0, dtype=tf.float64, trainable=False)
            self.count = ResourceVariable(0, dtype=tf.int64, trainable=False)
            self.model = ResourceVariable("", dtype=tf.string, trainable=False)
            self.model_at_s = ResourceVariable(0.0, dtype=tf.float64, trainable=False)
        self.find: Callable[[], Series] | None = None
        self._seen = (0, 0.0)

    def since(self) -> tuple[int, float]:
        """Batches and seconds since the last call."""
        count, waited_s = int(self.count.numpy()), float(self.waited_s.numpy())
        before = self._seen
        self._seen = count, waited_s
        return count - before[0], max(0.0, waited_s - before[1])


class Graphs:
    """Variables for graphs to add times up in, made before they are needed."""

    def __init__(self) -> None:
        self.used: list[GraphTimes] = []
        self._spare: list[GraphTimes] = []
        self._inside = threading.local()

    def prepare(self, tf: Any) -> None:
        """Have some ready; a graph that is being built cannot make them for itself."""
        with tf.init_scope():
            while len(self._spare) < SPARE:
                self._spare.append(GraphTimes(tf))

    @contextlib.contextmanager
    def inside(self) -> Iterator[bool]:
        """Say whether this is the outermost `next`; those that it calls are part of it."""
        outermost = not getattr(self._inside, "taking", False)
        self._inside.taking = True
        try:
            yield outermost
        finally:
            self._inside.taking = not outermost

    def _of(self, iterator: Any) -> GraphTimes | None:
        """The variables of an iterator, the same however often its loop is traced."""
        found: GraphTimes | None = getattr(iterator, "_tpuctl_times", None)
        if found is None and self._spare:
            found = iterator._tpuctl_times = self._spare.pop()
            found.find = getattr(iterator, "_tpuctl_find", None)
            self.used.append(found)
        return found

    def timed(self, tf: Any, take: Callable[[], Any], iterator: Any) -> Any:
        """Take an element with a time stamp before and one after."""
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
            done = [times.waited_s.assign_add(now - before), times.count.assign_add(1)]
            if getattr(iterator, "_tpuctl_ask", False):
                _ask_for_model(tf, times, iterator._iterator_resource, now)
        if not flat:
            # An Optional: what comes after it waits for nothing, the automatic order is enough.
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


def collect(watch: Watch, graphs: Graphs) -> None:
    """Credit what graphs took to their data sets, else to the one that was iterated last."""
    for times in graphs.used:
        batches, waited_s = times.since()
        series = None
        if batches:
            series = times.find() if times.find else _fed_by_graph(watch)
        if series is None:
            continue
        examples = int(series.origin.settings.get("batch_size") or 1)
        series.arrived_unseen(batches, waited_s, time.perf_counter(), examples)
        if times.find:
            _add_model(watch, times, series)
        if series.count >= 1:
            for callback in watch.begun:
                callback(series)


def _add_model(watch: Watch, times: GraphTimes, series: Series) -> None:
    from tensorflow.core.framework import model_pb2

    from tpuctl.pipeline._tfgraph import snapshot_of

    content = times.model.numpy()
    snapshot = snapshot_of(model_pb2.ModelProto.FromString(content)) if content else None
    if snapshot:
        with watch.lock:
            series.ledger.add(snapshot)


def _fed_by_graph(watch: Watch) -> Series | None:
    with watch.lock:
        alive = [s for s in watch.series.values() if s.iterator and s.iterator() is not None]
        quiet = [s for s in alive if s.origin.kind == "tf.data"]
        return max(quiet, key=lambda s: s.count, default=None)
