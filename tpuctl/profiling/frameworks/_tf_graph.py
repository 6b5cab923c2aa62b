"""Inspect a tf.data pipeline: its transformations as written, and the runtime's model of them.

`_inputs`, `_map_func` and `_predicate` are private to TensorFlow; attributes that a version lacks
are skipped without an error.
"""

import functools
import inspect
import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf

from tpuctl.profiling.align import READERS
from tpuctl.profiling.frameworks.iterables import LINE
from tpuctl.profiling.models import ChainNode
from tpuctl.profiling.node_stats import ModelNode, Snapshot

OURS = str(Path(__file__).resolve().parents[2])
PYTHON_OPS = {"PyFunc", "EagerPyFunc", "PyFuncStateless"}
# What surrounds a call of Python without a cost of its own.
PASSIVE_OPS = {
    *("Const", "Placeholder", "Identity", "IdentityN", "NoOp", "Cast"),
    *("EnsureShape", "Reshape", "Shape", "Pack", "StridedSlice"),
    *("FlatMapDataset", "GeneratorDataset", "TensorDataset"),
}
RANDOM_OPS = ("Random", "SampleDistortedBoundingBox", "Multinomial", "TruncatedNormal")
JPEG_OPS = {"DecodeJpeg", "DecodeImage", "DecodeAndCropJpeg"}
GENERATED_BY = "_tpuctl_generated_by"
KNOWN_RATIO = (3, 4)  # NodeClass KNOWN_RATIO and ASYNC_KNOWN_RATIO in tensorflow's model.proto


def trunk_of(dataset: Any) -> list[Any]:
    """The data sets from the output to the first that does not have exactly one input."""
    trunk = [dataset]
    while len(_inputs(trunk[-1])) == 1:
        trunk.append(_inputs(trunk[-1])[0])
    return [each for each in trunk if _op(each) != "Options"]


def chain_of(dataset: Any) -> ChainNode:
    """Describe every transformation of a data set, the output first."""
    inputs = _inputs(dataset)
    if _op(dataset) == "Options" and len(inputs) == 1:
        return chain_of(inputs[0])
    function = _python_function(dataset)
    generator = _generator_of(function) if _is_from_generator(dataset) else None
    ops = {node.op for node in _graph_nodes(dataset)}
    made_from = getattr(dataset, GENERATED_BY, None)
    name, location = (
        _name(dataset, function),
        location_of_function(made_from.__getitem__ if made_from else generator or function),
    )
    if location is None and function is not None and (line := getattr(dataset, LINE, None)):
        # A library's function: the user wrote the call that made this data set.
        is_unnamed = name in ("<lambda>", _op_name(dataset))
        name, location = line[0] if is_unnamed else name, line[1]
    return ChainNode(
        op=_op(dataset),
        name=name,
        label=f"{made_from.__name__}.__getitem__" if made_from else getattr(dataset, "_name", None),
        location=location,
        runs_python=bool(ops & PYTHON_OPS) or _is_from_generator(dataset),
        is_random=any(op.removeprefix("Stateless").startswith(RANDOM_OPS) for op in ops),
        decodes_jpeg=bool(ops & JPEG_OPS),
        calls=_called_by(dataset),
        only_calls=_is_from_generator(dataset) or (bool(ops) and ops <= PYTHON_OPS | PASSIVE_OPS),
        inputs=tuple(chain_of(each) for each in inputs),
    )


def name_generator(dataset: Any, py_dataset: Any) -> None:
    """Name the generator that Keras creates after the user's `PyDataset` behind it."""
    for each in filter(_is_from_generator, trunk_of(dataset)):
        setattr(each, GENERATED_BY, type(py_dataset))


def loader_settings(dataset: Any) -> dict[str, str]:
    """The settings of the user's `PyDataset` behind a generator; empty for other data sets."""
    for each in trunk_of(dataset):
        if made_from := getattr(each, GENERATED_BY, None):
            return {"loader": "py_dataset", "loader_class": made_from.__name__}
    return {}


def gives_batches(dataset: Any) -> bool:
    """Whether the elements of a data set are batches, according to its transformations."""
    trunk = trunk_of(dataset)
    for each in trunk:
        if "Unbatch" in _op(each):
            return False
        if "Batch" in _op(each) or _op(each) in ("GroupByWindow",):
            return True
    # Of several data sets that are put together, one may only say which comes next.
    inputs = _inputs(trunk[-1])
    return len(inputs) > 1 and any(map(gives_batches, inputs))


def examples_in(dataset: Any) -> int | None:
    """The number of examples in an epoch, not of batches; None if unknown."""
    trunk = trunk_of(dataset)
    batched = list(itertools.takewhile(gives_batches, trunk))
    try:
        with tf.init_scope():
            epoch, *counts = (int(d.cardinality()) for d in (dataset, *batched[-1:], *trunk))
    except (TypeError, ValueError, RuntimeError):
        return None
    if not batched:
        return epoch if epoch >= 0 else None
    batches, examples = counts[0], (*counts[1:], -1)[len(batched)]
    return round(examples * epoch / batches) if min(epoch, examples) >= 0 < batches else None


def does_work(dataset: Any) -> bool:
    """Whether a transformation computes or copies, instead of only passing elements on."""
    is_read = _op(dataset) in READERS
    return is_read or _python_function(dataset) is not None or "Batch" in _op(dataset)


def threads_of(options: Any) -> int:
    """The size of the thread pool that the stages share."""
    return options.threading.private_threadpool_size or len(os.sched_getaffinity(0))


def settings_of(options: Any) -> dict[str, Any]:
    """The options of a data set that affect its speed."""
    return {
        "tensorflow": tf.__version__,
        "private_threadpool_size": options.threading.private_threadpool_size or None,
        "max_intra_op_parallelism": options.threading.max_intra_op_parallelism,
        "deterministic": options.deterministic,
        "autotune": options.autotune.enabled,
    }


def read_snapshot(iterator: Iterator[Any]) -> Snapshot | None:
    """Read the model of a running iterator; None if the runtime has none."""
    try:
        model = tf.data.experimental.get_model_proto(iterator)
    except (AttributeError, RuntimeError, tf.errors.OpError):
        return None
    return snapshot_of(model)


def snapshot_of(model: Any) -> Snapshot | None:
    """Read a `ModelProto`; None if it is empty."""
    nodes = {node.id: _model_node(node) for node in model.nodes.values()}
    return Snapshot(nodes, model.output) if model.output in nodes else None


def _model_node(node: Any) -> ModelNode:
    parallelism = next((p for p in node.parameters if p.name == "parallelism"), None)
    calls = None
    if parallelism is not None:
        calls = int(parallelism.max if parallelism.tunable else parallelism.value)
    return ModelNode(
        id=node.id,
        name=node.name,
        active_ns=node.processing_time,
        elements=node.num_elements,
        bytes_out=node.bytes_produced,
        parallelism=calls,
        ratio=node.ratio if node.node_class in KNOWN_RATIO and node.ratio > 0 else None,
        inputs=tuple(node.inputs),
    )


def _inputs(dataset: Any) -> list[Any]:
    inputs = getattr(dataset, "_inputs", None)
    return list(inputs()) if inputs else []


def _op(dataset: Any) -> str:
    name = type(dataset).__name__.lstrip("_")
    for version in ("V1", "V2", "V3"):
        name = name.removesuffix(version)
    return name.removesuffix("Dataset") or name


def _python_function(dataset: Any) -> Any:
    for attribute in ("_map_func", "_predicate", "_reduce_func", "_scan_func", "_key_func"):
        wrapped = getattr(dataset, attribute, None)
        if wrapped is not None:
            function = getattr(wrapped, "_func", wrapped)
            function = getattr(function, "python_function", function)
            while isinstance(function, functools.partial):
                function = function.func
            return function
    return None


def _name(dataset: Any, function: Any) -> str:
    if _is_from_generator(dataset):
        return "from_generator"
    name = getattr(function, "__name__", None)
    ours = getattr(function, "__module__", "").startswith("tensorflow.")
    if name and not ours:
        return str(name)
    return _op_name(dataset)


def _op_name(dataset: Any) -> str:
    return re.sub("([A-Z])", r"_\1", _op(dataset)).lower().lstrip("_")


def location_of_function(function: Any) -> str | None:
    """Where the user wrote a function; None for library code."""
    code = getattr(function, "__code__", None)
    if code is None and function is not None:
        code = getattr(type(function).__call__, "__code__", None)
    if code is None or code.co_filename.startswith(OURS) or "site-packages" in code.co_filename:
        return None
    return f"{code.co_filename}:{code.co_firstlineno}"


def _graph_nodes(dataset: Any) -> list[Any]:
    for attribute in ("_map_func", "_predicate", "_reduce_func", "_scan_func"):
        function = getattr(getattr(dataset, attribute, None), "function", None)
        graph = getattr(function, "graph", None)
        if graph is not None:
            definition = graph.as_graph_def()
            nested = (node for each in definition.library.function for node in each.node_def)
            return [*definition.node, *nested]
    return []


def _called_by(dataset: Any) -> tuple[str, ...]:
    """Where the Python functions were written that a transformation calls in every element."""
    if made_from := getattr(dataset, GENERATED_BY, None):
        found = [made_from.__getitem__]
    elif _is_from_generator(dataset):
        found = [_generator_of(_python_function(dataset))]
    else:
        nodes = (node for node in _graph_nodes(dataset) if node.op in PYTHON_OPS)
        found = [_registered(node.attr["token"].s.decode()) for node in nodes]
    return tuple(filter(None, map(location_of_function, found)))


def _generator_of(function: Any) -> Any:
    """The user's function behind `from_generator`, which is kept in a closure's closure."""
    for cell in getattr(function, "__closure__", None) or ():
        content = cell.cell_contents
        found = getattr(content, "_generator", None) or _generator_of(content)
        if found is not None:
            return found
    return None


def _registered(token: str) -> Any:
    """The function that a graph knows by a token."""
    from tensorflow.python.ops import script_ops

    found = getattr(script_ops, "_py_funcs", None)
    function = getattr(found, "_funcs", {}).get(token)
    return inspect.unwrap(getattr(function, "_func", function)) if function else None


def _is_from_generator(dataset: Any) -> bool:
    module = getattr(_python_function(dataset), "__module__", "")
    is_flat_map = _op(dataset) == "FlatMap" and bool(_inputs(dataset))
    return is_flat_map and module.endswith("from_generator_op")
