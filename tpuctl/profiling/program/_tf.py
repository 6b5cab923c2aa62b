"""Watch tf.data's iterators: those of plain loops, of Keras's `fit`, and those inside graphs.

`OwnedIterator`, its members, and how AutoGraph turns a loop into a graph are private to TensorFlow:
what one of its versions does not have is left alone.
"""

import warnings
import weakref
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

from tpuctl.profiling.program._tf_graphs import Graphs, collect
from tpuctl.profiling.program.watch import Origin, Watch

# What TensorFlow calls the graphs of functions inside a data set; a loop there is no training.
DATASET_FUNCTION = "Dataset"


class TensorFlowHooks:
    """All that is watched of TensorFlow in this process."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._graphs = Graphs()
        # The data sets that went into a graph as arguments; inside they have lost their past.
        self._arguments: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()

    def collect(self) -> None:
        """Look at what graphs added up; to be called now and then."""
        collect(self._watch, self._graphs.used)

    def iterators(self, module: ModuleType) -> None:
        """Watch every iterator of one data set from now on."""
        owned: Any = module.OwnedIterator
        self._hook_birth(owned)
        self._hook_next(owned, ("_next_internal", "get_next_as_optional"))

    def loops(self, module: ModuleType) -> None:
        """Let a `for` over a data set inside a `tf.function` take its elements from an iterator.

        TensorFlow makes a reduction of it, in which there is no `next` to be seen.
        """
        from tensorflow.python.autograph.operators import control_flow

        namespace: Any = module
        plain = namespace._tf_ag_dataset_for_stmt
        by_iterator = control_flow._tf_iterator_for_stmt

        def loop(dataset: Any, extra_test: Any, body: Any, get: Any, put: Any, *rest: Any) -> Any:
            import tensorflow as tf

            if not self._watch.is_on or tf.executing_eagerly() or _inside_data_set():
                return plain(dataset, extra_test, body, get, put, *rest)
            before = get()
            try:
                self._graphs.prepare(tf)
                return by_iterator(iter(dataset), extra_test, body, get, put, *rest)
            except Exception:
                # What else is wrong with the loop is said again, without us in it.
                put(before)
                return plain(dataset, extra_test, body, get, put, *rest)

        namespace._tf_ag_dataset_for_stmt = loop
        for kind, registered in list(control_flow.for_loop_registry._registry.items()):
            if registered is plain:
                control_flow.for_loop_registry._registry[kind] = loop

    def arguments(self, module: ModuleType) -> None:
        """Remember data sets that go into a graph as an argument, to know them again there."""
        data: Any = module.DatasetV2
        plain = data._type_spec.fget

        def _type_spec(dataset: Any) -> Any:
            spec = plain(dataset)
            if type(dataset).__name__ != "_VariantDataset":
                self._arguments[str(spec.element_spec)] = dataset
            return spec

        data._type_spec = property(_type_spec)

    def distributed(self, module: ModuleType) -> None:
        """Watch data sets that a strategy deals out to several devices."""
        inputs: Any = module
        for kind in (inputs.DistributedDataset, inputs.DistributedDatasetsFromFunction):
            self._hook_dealing(kind)
        self._hook_next(inputs.DistributedIteratorBase, ("get_next", "get_next_as_optional"))

    def _hook_dealing(self, kind: Any) -> None:
        plain = kind.__iter__

        def __iter__(self_: Any) -> Any:
            # The iterators below it, one for each device, are its parts.
            with self._graphs.inside():
                iterator = plain(self_)
            if (dataset := _dealt_out_by(self_)) is not None:
                self._begin(iterator, dataset, dealt=self_)
            return iterator

        kind.__iter__ = __iter__

    def _hook_birth(self, owned: Any) -> None:
        born = owned.__init__

        def __init__(self_: Any, dataset: Any = None, *arguments: Any, **named: Any) -> None:
            born(self_, dataset, *arguments, **named)
            with self._graphs.inside() as outermost:
                if dataset is not None and outermost:
                    self._begin(self_, dataset)

        owned.__init__ = __init__

    def _begin(self, iterator: Any, dataset: Any, *, dealt: Any = None) -> None:
        """Watch an iterator of a data set, or of what a strategy has `dealt` out of it."""
        import tensorflow as tf

        eager = tf.executing_eagerly()
        if not eager and (not self._watch.is_on or _inside_data_set()):
            return
        self._graphs.prepare(tf)
        known = self._arguments.get(str(dataset.element_spec), dataset)
        dataset = known if type(dataset).__name__ == "_VariantDataset" else dataset
        thing, from_here = (dataset, eager) if dealt is None else (dealt, False)
        make = partial(_origin, dataset, has_model=from_here, dealt=dealt is not None)
        find = partial(self._watch.of, thing, make)
        iterator._tpuctl, iterator._tpuctl_find = find(), find
        iterator._tpuctl_ask = not eager and dealt is None and _keeps_model(dataset)
        self._watch.in_graphs = self._watch.in_graphs or not eager
        if eager:
            self._watch.opened(iterator._tpuctl, iterator)

    def _hook_next(self, kind: Any, names: tuple[str, ...]) -> None:
        for name in names:
            if plain := getattr(kind, name, None):
                setattr(kind, name, self._taking(plain))

    def _taking(self, plain: Callable[[Any], Any]) -> Callable[..., Any]:
        import tensorflow as tf

        def taking(self_: Any, *arguments: Any, **named: Any) -> Any:
            def take() -> Any:
                return plain(self_, *arguments, **named)

            if not tf.executing_eagerly():
                return self._graphs.timed(tf, take, self_)
            series = getattr(self_, "_tpuctl", None)
            return take() if series is None else self._watch.take(series, take)

        return taking


def _dealt_out_by(distributed: Any) -> Any:
    """The data set that a strategy deals out, or its part for the first host."""
    whole = getattr(distributed, "_original_dataset", None)
    parts = (getattr(distributed, name, None) for name in ("_cloned_datasets", "_datasets"))
    return whole if whole is not None else next((part[0] for part in parts if part), None)


def _inside_data_set() -> bool:
    """Whether the graph that is being built is, at some level, a function of a data set."""
    from tensorflow.python.framework import ops

    graph = ops.get_default_graph()
    while graph is not None:
        if str(getattr(graph, "name", "")).startswith(DATASET_FUNCTION):
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


def _keeps_model(dataset: Any) -> bool:
    """Whether its iterators can be asked for a model, which fails where there is none."""
    return _options(dataset).autotune.enabled is not False


def _origin(dataset: Any, *, has_model: bool, dealt: bool) -> Origin:
    """Describe a data set; `has_model` where its iterators can be asked from outside a graph."""
    import os

    import tensorflow as tf

    from tpuctl.profiling.frameworks._tf_graph import chain_of, read_snapshot

    options = _options(dataset)
    pool = options.threading.private_threadpool_size or 0
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
            "distributed": dealt,
        },
        snapshot=read_snapshot if has_model else lambda _: None,
        examples=_examples(dataset),
    )


def _options(dataset: Any) -> Any:
    """The options; inside a graph TensorFlow warns that they may not be all."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return dataset.options()


def _examples(dataset: Any) -> int | None:
    """How many elements it has, where that is known outside of a graph."""
    import tensorflow as tf

    try:
        with tf.init_scope():
            size = int(dataset.cardinality())
    except (TypeError, ValueError, RuntimeError):
        return None
    return size if size >= 0 else None


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
