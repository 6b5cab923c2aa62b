"""Record tf.data's iterators: in plain loops, in Keras's `fit`, and inside graphs.

`OwnedIterator`, its members, and the way AutoGraph turns a loop into a graph are private to
TensorFlow: attributes that a version lacks are not patched.
"""

import warnings
import weakref
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

from tpuctl.profiling.frameworks.iterables import remember_lines
from tpuctl.profiling.frameworks.source import Source
from tpuctl.profiling.models import Input
from tpuctl.profiling.program._tf_graphs import Graphs, collect
from tpuctl.profiling.program.watch import Watch

# TensorFlow's names for graphs of functions inside a data set; loops there do not train.
DATASET_FUNCTION = "Dataset"
DETERMINISTIC = (
    "TensorFlow allows no clock inside a graph after enable_op_determinism(): leave that out to "
    "measure Keras fit and loops in a tf.function."
)


class TensorFlowHooks:
    """Patches TensorFlow so that its iterators are recorded."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._graphs = Graphs()
        # Data sets passed into graphs as arguments; inside, their transformations are unknown.
        self._arguments: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()

    def collect(self) -> None:
        """Read the sums of the graphs; must be called regularly."""
        collect(self._watch, self._graphs.used)

    def iterators(self, module: ModuleType) -> None:
        """Record every iterator of a single data set from now on."""
        owned: Any = module.OwnedIterator
        self._hook_init(owned)
        self._hook_next(owned, ("_next_internal", "get_next_as_optional"))

    def loops(self, module: ModuleType) -> None:
        """Make a `for` over a data set inside a `tf.function` use an iterator.

        TensorFlow turns it into a reduction, which has no `next` to observe.
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
                # If the loop itself is wrong, TensorFlow raises the error again without this patch.
                put(before)
                return plain(dataset, extra_test, body, get, put, *rest)

        namespace._tf_ag_dataset_for_stmt = loop
        for kind, registered in list(control_flow.for_loop_registry._registry.items()):
            if registered is plain:
                control_flow.for_loop_registry._registry[kind] = loop

    def arguments(self, module: ModuleType) -> None:
        """Remember data sets that are passed into a graph, to recognise them, and their lines."""
        data: Any = module.DatasetV2
        plain = data._type_spec.fget

        def _type_spec(dataset: Any) -> Any:
            spec = plain(dataset)
            if type(dataset).__name__ != "_VariantDataset":
                self._arguments[str(spec.element_spec)] = dataset
            return spec

        data._type_spec = property(_type_spec)
        remember_lines(data)

    def py_datasets(self, module: ModuleType) -> None:
        """Remember which `PyDataset` feeds the generator that Keras creates from it."""
        adapter: Any = module.__dict__["PyDatasetAdapter"]
        plain = adapter.get_tf_dataset

        def get_tf_dataset(self_: Any) -> Any:
            from tpuctl.profiling.frameworks._tf_graph import name_generator

            made = plain(self_)
            name_generator(made, self_.py_dataset)
            return made

        adapter.get_tf_dataset = get_tf_dataset

    def distributed(self, module: ModuleType) -> None:
        """Record data sets that a strategy distributes to several devices."""
        inputs: Any = module
        for kind in (inputs.DistributedDataset, inputs.DistributedDatasetsFromFunction):
            self._hook_distribution(kind)
        self._hook_next(inputs.DistributedIteratorBase, ("get_next", "get_next_as_optional"))

    def _hook_distribution(self, kind: Any) -> None:
        plain = kind.__iter__

        def __iter__(self_: Any) -> Any:
            # The iterators that it creates, one for each device, are its parts.
            with self._graphs.inside():
                iterator = plain(self_)
            if (dataset := _distributed_data(self_)) is not None:
                self._begin(iterator, dataset, distributed=self_)
            return iterator

        kind.__iter__ = __iter__

    def _hook_init(self, owned: Any) -> None:
        plain = owned.__init__

        def __init__(self_: Any, dataset: Any = None, *arguments: Any, **named: Any) -> None:
            plain(self_, dataset, *arguments, **named)
            with self._graphs.inside() as outermost:
                if dataset is not None and outermost:
                    self._begin(self_, dataset)

        owned.__init__ = __init__

    def _begin(self, iterator: Any, dataset: Any, *, distributed: Any = None) -> None:
        """Record an iterator of a data set, or of the `distributed` one made from it."""
        import tensorflow as tf

        eager = tf.executing_eagerly()
        if not eager and (not self._watch.is_on or _inside_data_set()):
            return
        self._graphs.prepare(tf)
        known = self._arguments.get(str(dataset.element_spec), dataset)
        dataset = known if type(dataset).__name__ == "_VariantDataset" else dataset
        thing, has_model = (dataset, eager) if distributed is None else (distributed, False)
        is_on = partial(getattr, self._watch, "is_on")
        make = partial(
            _source, dataset, has_model=has_model, distributed=thing is distributed, is_on=is_on
        )
        find = partial(self._watch.of, thing, make)
        iterator._tpuctl, iterator._tpuctl_find = find(), find
        # Reading the model fails if there is none.
        keeps_model = _options(dataset).autotune.enabled is not False
        iterator._tpuctl_ask = not eager and distributed is None and keeps_model
        self._watch.in_graphs = self._watch.in_graphs or not eager
        if eager:
            self._watch.opened(iterator._tpuctl, iterator)

    def _hook_next(self, kind: Any, names: tuple[str, ...]) -> None:
        for name in names:
            if plain := getattr(kind, name, None):
                setattr(kind, name, self._taking(plain))

    def _taking(self, plain: Callable[[Any], Any]) -> Callable[..., Any]:
        import tensorflow as tf
        from tensorflow.python.framework.config import is_op_determinism_enabled

        def taking(self_: Any, *arguments: Any, **named: Any) -> Any:
            def take() -> Any:
                return plain(self_, *arguments, **named)

            if not tf.executing_eagerly():
                if is_op_determinism_enabled():
                    self._watch.unseen = DETERMINISTIC
                    return take()
                return self._graphs.timed(tf, take, self_)
            series = getattr(self_, "_tpuctl", None)
            return take() if series is None else self._watch.take(series, take)

        return taking


def _distributed_data(distributed: Any) -> Any:
    """The data set that a strategy distributes, or its part for the first host."""
    whole = getattr(distributed, "_original_dataset", None)
    parts = (getattr(distributed, name, None) for name in ("_cloned_datasets", "_datasets"))
    return whole if whole is not None else next((part[0] for part in parts if part), None)


def _inside_data_set() -> bool:
    """Whether the graph that is being built is inside a function of a data set."""
    from tensorflow.python.framework import ops

    graph = ops.get_default_graph()
    while graph is not None:
        if str(getattr(graph, "name", "")).startswith(DATASET_FUNCTION):
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


def _source(
    dataset: Any, *, has_model: bool, distributed: bool, is_on: Callable[[], bool]
) -> Source:
    """Describe a data set; `has_model` if its iterators' model is readable outside a graph."""
    from tpuctl.profiling.frameworks._tf_graph import (
        chain_of,
        examples_in,
        loader_settings,
        read_snapshot,
        settings_of,
        threads_of,
    )
    from tpuctl.profiling.frameworks.threads import sampled_calls

    options, chain = _options(dataset), chain_of(dataset)
    return Source(
        kind="tf.data",
        chain=chain,
        input=Input(0, examples_in(dataset), 0),
        threadpool_size=threads_of(options),
        settings={
            **settings_of(options),
            "batch_size": _batch_size(dataset),
            "distributed": distributed,
            **loader_settings(dataset),
        },
        snapshot=read_snapshot if has_model else lambda _: None,
        **sampled_calls(chain, is_on),
    )


def _options(dataset: Any) -> Any:
    """The options, without TensorFlow's warning that they may be incomplete inside a graph."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return dataset.options()


def _batch_size(dataset: Any) -> int | None:
    """Examples per element, if a stage or the shape shows it."""
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
