"""Read host traces into work per transformation, and match it with the stages as written."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tpuctl.errors import TpuctlError
from tpuctl.profiling.deep.models import Deep, Operation, TracedNode
from tpuctl.profiling.models import Measurement, NodeCost
from tpuctl.profiling.trace.capture import open_trace
from tpuctl.profiling.trace.stages import ROOT, InputPipeline, StageWork, read_pipeline
from tpuctl.profiling.trace.xspace import PS_PER_S

# Where less than this of a trace's work is found again in the model, the two do not fit together.
LEAST_MATCHED = 0.8
# Which epoch, or which source of several, an iterator belongs to: `Repeat[3]::Map`.
_INCARNATION = re.compile(r"\[\d+\]$")
MOST_OPERATIONS, LEAST_SHARE = 3, 0.05

NodePath = tuple[str, ...]


@dataclass
class _Node:
    work_s: float = 0.0
    elements: int = 0
    operations: "Counter[str]" = field(default_factory=Counter)
    parallelism: int | None = None


def read_files(measured: Measurement) -> Measurement:
    """Put what its trace files show into a measurement; what cannot be read is told."""
    if measured.deep is None or not measured.trace_files:
        return measured
    found: list[InputPipeline] = []
    failures: list[str] = []
    for file in measured.trace_files:
        try:
            if pipeline := read_pipeline(open_trace(Path(file))):
                found.append(pipeline)
        except TpuctlError as error:
            failures.append(str(error))
    nodes = merge(found)
    if not nodes:
        why = failures[0] if failures else "there are no events of tf.data in it."
        return replace(measured, deep=replace(measured.deep, missing=why))
    return replace(measured, deep=_with_links(measured.deep, found), traced=nodes)


def _with_links(deep: Deep, found: Sequence[InputPipeline]) -> Deep:
    linked = sum(stage.work_ps for each in found for stage in each.stages)
    total = linked + sum(each.unlinked_ps for each in found)
    return replace(deep, linked_fraction=linked / total if total else None)


def merge(found: Iterable[InputPipeline]) -> tuple[TracedNode, ...]:
    """Add up what all captures show of each transformation, its incarnations together."""
    nodes: dict[NodePath, _Node] = defaultdict(_Node)
    for pipeline in found:
        for stage in pipeline.stages:
            _add(nodes[_path(stage)], stage)
    return tuple(
        TracedNode(
            path,
            node.work_s,
            node.elements,
            tuple((name, time_ps / PS_PER_S) for name, time_ps in node.operations.most_common()),
            node.parallelism,
        )
        for path, node in sorted(nodes.items(), key=lambda item: len(item[0]))
    )


def _add(node: _Node, stage: StageWork) -> None:
    node.work_s += stage.work_ps / PS_PER_S
    node.elements += stage.elements
    node.operations.update(stage.operations)
    calls = stage.settings.get("parallelism")
    if isinstance(calls, int) and calls > 0:
        node.parallelism = max(calls, node.parallelism or 1)


def _path(stage: StageWork) -> NodePath:
    root = ROOT.partition("::")[2]
    return (root, *(_plain(part) for part in stage.path.split("::")[2:]))


def _plain(name: str) -> str:
    """A node's name without its epoch and its place among its siblings, on either side."""
    return _INCARNATION.sub("", name.partition("#")[0].rstrip("*"))


def as_costs(traced: Sequence[TracedNode]) -> tuple[NodeCost, ...]:
    """The nodes of a trace in place of a runtime's model that there is none of."""
    nodes = [NodeCost(n.path, n.work_s, n.elements, 0, n.parallelism, None) for n in traced]
    root = NodeCost((ROOT.partition("::")[2],), 0.0, 1, 0, None, None)
    return (root, *nodes) if nodes else ()


@dataclass(frozen=True)
class Links:
    """The work in a trace, by the nodes of the model that it belongs to."""

    work_s: dict[NodePath, float]
    operations: dict[NodePath, dict[str, float]]
    matched: float

    @property
    def fits(self) -> bool:
        """Whether trace and model are of one pipeline."""
        return self.matched >= LEAST_MATCHED


def link(costs: Sequence[NodeCost], traced: Sequence[TracedNode]) -> Links:
    """Give traced work to the nodes of the model.

    Nodes that a trace cannot tell apart, such as two inputs of one zip that are built alike,
    divide it as the model does.
    """
    by_path: dict[NodePath, list[NodeCost]] = defaultdict(list)
    for cost in costs:
        by_path[tuple(map(_plain, cost.path))].append(cost)
    work: dict[NodePath, float] = defaultdict(float)
    operations: dict[NodePath, dict[str, float]] = {}
    for node in traced:
        same = by_path.get(node.path, [])
        active_s = sum(cost.active_s for cost in same)
        for cost in same:
            part = cost.active_s / active_s if active_s else 1 / len(same)
            work[cost.path] += part * node.work_s
            operations[cost.path] = {name: part * time_s for name, time_s in node.operations}
    total = sum(node.work_s for node in traced)
    return Links(dict(work), operations, sum(work.values()) / total if total else 0.0)


def top_operations(links: Links, paths: Iterable[NodePath]) -> tuple[Operation, ...]:
    """The operations that most of a stage's work is, the largest first."""
    times_s: dict[str, float] = defaultdict(float)
    whole_s = 0.0
    for path in paths:
        whole_s += links.work_s.get(path, 0.0)
        for name, time_s in links.operations.get(path, {}).items():
            times_s[name] += time_s
    largest = sorted(times_s.items(), key=lambda item: -item[1])[:MOST_OPERATIONS]
    found = (Operation(name, min(1.0, time_s / whole_s)) for name, time_s in largest if whole_s)
    return tuple(each for each in found if each.share_of_stage >= LEAST_SHARE)
