"""Grain pipelines: each transformation's function is timed in threads and workers.

The nodes of a Grain data set and their functions are private to Grain; attributes that a version
lacks are skipped without an error.
"""

import contextlib
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import grain
from absl import flags

from tpuctl.profiling.frameworks.iterables import location_of
from tpuctl.profiling.frameworks.meter import Meter, Metered
from tpuctl.profiling.frameworks.source import Source
from tpuctl.profiling.models import ChainNode, Input
from tpuctl.profiling.windows import StageCost

METHOD = "CPU clock of the threads around each call"
# The attribute in which a node, or a loader's older operation, keeps its function.
FUNCTIONS = (
    *("_map_fn", "_filter_fn", "_batch_fn", "_flat_map_fn"),
    *("map_function", "random_map_function", "condition_function"),
)
RANDOM = ("RandomMap",)
METHODS = ("map", "random_map", "np_random_map", "filter")


def allow_workers() -> None:
    """Mark absl's flags as parsed, which Grain's workers need and `absl.app.run` does elsewhere."""
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()


def open_grain(made: Any, folder: str, *, batch_size: int) -> Source:
    """Open a data set or a loader; its functions are wrapped in place."""
    data = getattr(made, "_dataset", made)
    meter, stages = Meter(folder), list[StageCost]()
    nodes = _nodes(data)
    lanes, workers = _lanes(nodes)
    _wrap_all(nodes, meter, stages, lanes, workers)
    for branch in range(1, workers):
        _wrap_all(_nodes(data, branch), meter, [], lanes, workers)
    read_from: Any = getattr(nodes[-1], "_source", None)
    operations = [getattr(node, "operation", None) for node in nodes]
    is_batched = any("Batch" in type(each).__name__ for each in (*nodes, *operations))
    return Source(
        kind="grain",
        chain=ChainNode("Grain", type(made).__name__, runs_python=True),
        batched=is_batched or None,
        batch_size=batch_size,
        input=Input(0, len(read_from) if hasattr(read_from, "__len__") else None, 0),
        lanes=lanes,
        runs_ahead=lanes > 1 or workers > 0,
        settings={
            "grain": grain.__version__,
            "num_workers": workers,
            "threads": lanes,
            **(
                {"loader": "grain_loader"}
                if isinstance(made, getattr(grain, "DataLoader", ()))
                else {}
            ),
        },
        opened=lambda: iter(made),
        costs=partial(_costs, meter, stages),
    )


def _nodes(data: Any, branch: int = 0) -> list[Any]:
    """The nodes from the output to the source, along the branch of one worker."""
    nodes = [data]
    while below := _below(nodes[-1]):
        nodes.append(below[min(branch, len(below) - 1)])
    return nodes


def _below(node: Any) -> list[Any]:
    """The inputs of a node; several if every worker has a part."""
    for attribute in ("_parents", "_datasets", "_ds"):
        found = getattr(node, attribute, None)
        if found:
            return list(found) if isinstance(found, (list, tuple)) else [found]
    return []


def _lanes(nodes: list[Any]) -> tuple[int, int]:
    """The number of threads that produce elements in all processes, and the number of processes."""
    threads = workers = 0
    for node in nodes:
        if _reads_ahead(node):
            threads = int(node._read_options.num_threads) or 1
        processes = [each for each in _below(node) if "ProcessPrefetch" in type(each).__name__]
        workers = max(workers, len(processes))
    has_threads = any("Prefetch" in type(node).__name__ for node in nodes)
    if not threads:
        # Iterating a MapDataset reads with the default options.
        threads = int(grain.ReadOptions().num_threads) if not has_threads else 1
    return threads * max(1, workers), workers


def _wrap_all(
    nodes: list[Any], meter: Meter, stages: list[StageCost], lanes: int, workers: int
) -> None:
    """Wrap the functions, source first; after the threads' elements meet, one thread runs them."""
    meets = max((i for i, node in enumerate(nodes) if _reads_ahead(node)), default=-1)
    for i in reversed(range(len(nodes))):
        _wrap(nodes[i], meter, stages, lanes if i > meets else max(1, workers))


def _reads_ahead(node: Any) -> bool:
    return getattr(node, "_read_options", None) is not None


def _wrap(node: Any, meter: Meter, stages: list[StageCost], lanes: int) -> None:
    does = getattr(node, "operation", node)
    kind = re.sub("MapDataset|IterDataset|Operation$", "", type(does).__name__)
    for attribute in FUNCTIONS:
        function = getattr(does, "__dict__", {}).get(attribute)
        if not callable(function) or isinstance(function, Metered):
            continue
        with contextlib.suppress(AttributeError, TypeError):
            setattr(does, attribute, Metered(function, meter, len(stages)))
            stages.append(_stage(kind.lstrip("_"), function, lanes))
        return
    source = node.__dict__.get("_source")
    if not isinstance(source, _MeteredSource) and hasattr(type(source), "__getitem__"):
        node._source = _MeteredSource(source, Metered(source.__getitem__, meter, len(stages)))
        stages.append(_stage("Source", source, lanes))


def _stage(kind: str, function: Any, lanes: int) -> StageCost:
    function = _wrapped(function)
    owner = getattr(function, "__self__", None)
    named = getattr(function, "__qualname__", None) or type(function).__qualname__
    name = type(owner).__name__ if owner is not None else named.rpartition("<locals>.")[2]
    place = location_of(function if owner is None else getattr(type(owner), "map", function))
    label = kind.lower() if "make_batch" in name.lower() or "_MakeBatch" in name else name
    random = kind.startswith(RANDOM) or "random" in named
    return StageCost(label, kind or "Map", place, 0, 0.0, 0.0, lanes, METHOD, random)


def _wrapped(function: Any) -> Any:
    """The function or the transformation's method that a loader's own function calls."""
    cells = getattr(function, "__closure__", None) or ()
    for transformation in (cell.cell_contents for cell in cells):
        methods = (getattr(transformation, name, None) for name in METHODS)
        if method := next(filter(callable, methods), None):
            return method
    function = getattr(function, "values_batch_fn", function)
    return getattr(function, "func", function)


class _MeteredSource:
    """A data source that counts its reads."""

    def __init__(self, source: Any, read: Callable[[int], Any]) -> None:
        self._tpuctl = source, read

    def __getattr__(self, name: str) -> Any:
        if name == "_tpuctl":
            raise AttributeError(name)
        return getattr(self._tpuctl[0], name)

    def __len__(self) -> int:
        return len(self._tpuctl[0])

    def __getitem__(self, index: int) -> Any:
        return self._tpuctl[1](index)

    def __repr__(self) -> str:
        return repr(self._tpuctl[0])


def _costs(meter: Meter, stages: list[StageCost]) -> tuple[StageCost, ...]:
    return tuple(
        replace(stage, calls=found.calls, wall_s=found.wall_s, cpu_s=found.cpu_s)
        for stage, found in zip(stages, meter.read(len(stages)), strict=True)
    )
