"""Match the pipeline as written with the executed nodes and the work in a host trace. Pure.

tf.data rewrites pipelines (a map and a batch become MapAndBatch, a prefetch is appended), so
neither the order nor the number of nodes is reliable: they are aligned by an edit script between
the two trees.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from tpuctl.profiling.models import ChainNode
from tpuctl.profiling.node_stats import EXPANDING, unversioned
from tpuctl.profiling.trace.models import Operation, TracedNode
from tpuctl.profiling.windows import NodeCost

SAME = {
    "ForeverRepeat": "Repeat",
    "FiniteRepeat": "Repeat",
    "EmptyRepeat": "Repeat",
    "FiniteTake": "Take",
    "FiniteSkip": "Skip",
    "MemoryCache": "Cache",
    "FileCache": "Cache",
    "ParallelMap": "Map",
    "ParallelBatch": "Batch",
    "ParallelInterleave": "Interleave",
    "FromTensor": "Tensor",
}
FUSED = {"MapAndBatch": ("Batch", "Map"), "ShuffleAndRepeat": ("Repeat", "Shuffle")}
READERS = ("TFRecord", "TextLine", "FixedLengthRecord")
BOOKKEEPING = ("Root", "Options", "Model", "MaxIntraOpParallelism", "PrivateThreadPool")
MATCH, FUSE, SKIP_WRITTEN, SKIP_RAN = "match", "fuse", "skip written", "skip ran"
STEPS = {MATCH: (1, 1), FUSE: (2, 1), SKIP_WRITTEN: (1, 0), SKIP_RAN: (0, 1)}
# A batch node below this share of the model's time does not distort the result.
LEAST_BATCH_SHARE = 0.02
# Of the iterators that a flat_map or interleave creates, as many elements must have been counted.
LEAST_SEEN = 8
MOSTLY = 0.5
# If less than this share of a trace's work is found in the model, they do not belong together.
LEAST_MATCHED = 0.8
# Which epoch, or which source of several, an iterator belongs to: `Repeat[3]::Map`.
_INCARNATION = re.compile(r"\[\d+\]$")
MOST_OPERATIONS, LEAST_OPERATION_SHARE = 3, 0.05


@dataclass
class RunNode:
    """An executed node, with its inputs and the nodes that it created per element (interleave)."""

    cost: NodeCost
    examples_per_element: float = 1.0
    inputs: list["RunNode"] = field(default_factory=list)
    inner: list["RunNode"] = field(default_factory=list)

    @property
    def op(self) -> str:
        """The operation's name."""
        return self.cost.op


@dataclass(frozen=True)
class AlignedStage:
    """Transformations as written, and the nodes that executed them."""

    written: tuple[ChainNode, ...]
    ran: tuple[RunNode, ...]

    @property
    def expands(self) -> bool:
        """Whether it makes elements of a file, or of another element that is no example."""
        return any(unversioned(node.op) in EXPANDING for node in self.ran)


Node = TypeVar("Node", ChainNode, RunNode)


def trunk(root: Node) -> list[Node]:
    """The nodes from the output down to the first that does not have exactly one input."""
    nodes = [root]
    while len(nodes[-1].inputs) == 1:
        nodes.append(nodes[-1].inputs[0])
    return nodes


def canonical(op: str) -> str:
    """Map an operation's name to the one that is common to written and executed pipelines."""
    stem = unversioned(op)
    return SAME.get(stem, stem)


def build_tree(costs: Sequence[NodeCost], examples_per_element: float) -> RunNode | None:
    """Arrange node costs as a tree and work out how many examples one element of each is."""
    nodes = {cost.path: RunNode(cost) for cost in costs}
    roots = [node for path, node in nodes.items() if len(path) == 1]
    for path, node in nodes.items():
        if parent := nodes.get(path[:-1]):
            (parent.inner if path[-1].endswith("*") else parent.inputs).append(node)
    if not roots:
        return None
    root = max(roots, key=lambda node: node.cost.elements)
    _set_examples_per_element(root, examples_per_element)
    return root


def align(chain: ChainNode, root: RunNode) -> list[AlignedStage]:
    """Pair every transformation with the nodes that executed it, outermost first."""
    written, ran = trunk(chain), trunk(root)
    stages: list[AlignedStage] = []
    waiting: list[RunNode] = []
    branches: list[tuple[ChainNode, RunNode]] = []
    for action, i, j in _edit_script(written, ran):
        if action == SKIP_WRITTEN:
            continue
        if action == SKIP_RAN and unversioned(ran[j].op) in BOOKKEEPING:
            waiting.append(ran[j])
            continue
        names = {MATCH: written[i : i + 1], FUSE: written[i : i + 2]}.get(action, [])
        stages.append(AlignedStage(tuple(names), (*waiting, ran[j], *_all_below(ran[j].inner))))
        waiting = []
        # A zip or a choice of data sets: its inputs are aligned one by one.
        if names and len(names[-1].inputs) > 1:
            branches = list(zip(names[-1].inputs, ran[j].inputs, strict=False))
    for below, fed_by in branches:
        stages += align(below, fed_by)
    return _with_files(stages, written)


def _with_files(stages: list[AlignedStage], written: Sequence[ChainNode]) -> list[AlignedStage]:
    """Give a reader of a list of files the flat_map or interleave that reads them."""
    matched = [node for stage in stages for node in stage.written]
    readers = [node for node in written if node.op in READERS and node not in matched]
    for i, stage in enumerate(stages):
        if readers and stage.expands and not stage.written:
            stages[i] = AlignedStage((readers.pop(0),), stage.ran)
    return stages


def merge_labelled(stages: Sequence[AlignedStage]) -> list[AlignedStage]:
    """Join neighbours that have the same user-given name (`ds.map(..., name="decode")`)."""
    merged: list[AlignedStage] = []
    for stage in stages:
        label = _label(stage)
        if merged and label and label == _label(merged[-1]):
            last = merged.pop()
            stage = AlignedStage(last.written + stage.written, last.ran + stage.ran)
        merged.append(stage)
    return merged


def _label(stage: AlignedStage) -> str | None:
    labels = {node.label for node in stage.written}
    return labels.pop() if len(labels) == 1 else None


def _set_examples_per_element(node: RunNode, examples_per_element: float) -> None:
    node.examples_per_element = examples_per_element
    examples = examples_per_element * node.cost.elements
    ratio = node.cost.ratio
    for below in node.inputs:
        if ratio and len(node.inputs) == 1:
            # A partial batch still consumes single examples.
            partial = ratio > 1 and examples_per_element < 0.999 * ratio
            each = 1.0 if partial else examples_per_element / ratio
        else:
            each = examples / below.cost.elements if below.cost.elements else 0.0
        _set_examples_per_element(below, each)
    for below in node.inner:
        # Most of those that end at once are missing, but the others are like them.
        each = examples / below.cost.elements if below.cost.elements else 0.0
        is_enough = below.cost.elements >= LEAST_SEEN
        _set_examples_per_element(below, min(each, examples_per_element) if is_enough else each)


def _all_below(nodes: Sequence[RunNode]) -> list[RunNode]:
    return [below for node in nodes for below in (node, *_all_below(node.inputs + node.inner))]


def _edit_script(
    written: Sequence[ChainNode], ran: Sequence[RunNode]
) -> list[tuple[str, int, int]]:
    """Find the cheapest edits that turn one list into the other (Wagner and Fischer, 1974)."""
    costs: dict[tuple[int, int], tuple[float, str]] = {}
    for i in range(len(written), -1, -1):
        for j in range(len(ran), -1, -1):
            options = [
                (price + costs[i + STEPS[action][0], j + STEPS[action][1]][0], action)
                for action, price in _moves(written[i : i + 2], ran[j : j + 1])
            ]
            costs[i, j] = min(options, default=(0.0, ""))
    script, i, j = [], 0, 0
    while action := costs[i, j][1]:
        script.append((action, i, j))
        i, j = i + STEPS[action][0], j + STEPS[action][1]
    return script


def _moves(written: Sequence[ChainNode], ran: Sequence[RunNode]) -> Iterator[tuple[str, float]]:
    """Yield the edits that are possible at one position, each with its cost."""
    if written:
        yield SKIP_WRITTEN, 1.0
    if ran:
        yield SKIP_RAN, 1.0
    if written and ran:
        op = canonical(ran[0].op)
        if canonical(written[0].op) == op:
            yield MATCH, 0.0
        if FUSED.get(op) == tuple(canonical(node.op) for node in written):
            yield FUSE, 0.0


def loses_iterators(nodes: Sequence[NodeCost]) -> bool:
    """Whether most iterators of a flat_map or interleave ended between two looks at the model."""
    for node in nodes:
        if unversioned(node.op) in EXPANDING:
            inner = [n.elements for n in nodes if n.path[:-1] == node.path and "*" in n.path[-1]]
            if sum(inner) < MOSTLY * node.elements:
                return True
    return False


def notable_batches(nodes: Sequence[NodeCost]) -> Iterator[tuple[NodeCost, float]]:
    """Yield every batch node with a notable share of the pipeline's time, and its batch size."""
    total_s = sum(node.active_s for node in nodes)
    for node in nodes:
        is_notable = node.elements and node.active_s > LEAST_BATCH_SHARE * total_s
        if is_notable and node.ratio and canonical(node.op) == "Batch":
            yield node, node.ratio


NodePath = tuple[str, ...]


def plain_name(name: str) -> str:
    """A node's name without its epoch and its position among its siblings."""
    return _INCARNATION.sub("", name.partition("#")[0].rstrip("*"))


def costs_from_trace(traced: Sequence[TracedNode]) -> tuple[NodeCost, ...]:
    """Node costs from a trace, for pipelines of which the runtime has no model."""
    nodes = [NodeCost(n.path, n.work_s, n.elements, 0, n.parallelism, None) for n in traced]
    return (NodeCost(("Root",), 0.0, 1, 0, None, None), *nodes) if nodes else ()


@dataclass(frozen=True)
class TracedWork:
    """The work in a host trace by node of the model."""

    work_s: dict[NodePath, float]
    operations: dict[NodePath, dict[str, float]]
    matched: float

    @property
    def fits(self) -> bool:
        """Whether trace and model are of the same pipeline."""
        return self.matched >= LEAST_MATCHED

    def top_operations(self, paths: Iterable[NodePath]) -> tuple[Operation, ...]:
        """The operations that make up most of a stage's work, largest first."""
        times_s: dict[str, float] = defaultdict(float)
        total_s = 0.0
        for path in paths:
            total_s += self.work_s.get(path, 0.0)
            for name, time_s in self.operations.get(path, {}).items():
                times_s[name] += time_s
        largest = sorted(times_s.items(), key=lambda item: -item[1])[:MOST_OPERATIONS]
        found = (Operation(name, min(1.0, time_s / total_s)) for name, time_s in largest if total_s)
        return tuple(each for each in found if each.share_of_stage >= LEAST_OPERATION_SHARE)


def match_trace(costs: Sequence[NodeCost], traced: Sequence[TracedNode]) -> TracedWork:
    """Assign traced work to the nodes of the model.

    Nodes that a trace cannot tell apart, such as two identical inputs of one zip, share the work in
    proportion to the model's times.
    """
    by_path: dict[NodePath, list[NodeCost]] = defaultdict(list)
    for cost in costs:
        by_path[tuple(map(plain_name, cost.path))].append(cost)
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
    return TracedWork(dict(work), operations, sum(work.values()) / total if total else 0.0)
