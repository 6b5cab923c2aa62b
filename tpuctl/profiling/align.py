"""Match the pipeline as written with the nodes that ran: an edit script between two trees.

tf.data rewrites pipelines (a map and a batch become MapAndBatch, a prefetch is added at the end),
so neither order nor number of nodes can be relied on.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tpuctl.profiling.models import ChainNode, NodeCost
from tpuctl.profiling.runtime_model import unversioned

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
BOOKKEEPING = ("Root", "Options", "Model", "MaxIntraOpParallelism", "PrivateThreadPool")
MATCH, FUSE, SKIP_WRITTEN, SKIP_RAN = "match", "fuse", "skip written", "skip ran"


@dataclass
class RunNode:
    """A node that ran, with the nodes that fed it and those it made by itself."""

    cost: NodeCost
    examples_per_element: float = 1.0
    inputs: list["RunNode"] = field(default_factory=list)
    inner: list["RunNode"] = field(default_factory=list)

    @property
    def op(self) -> str:
        """The operation's name, without its place among its siblings."""
        return self.cost.path[-1].partition("#")[0].rstrip("*")


@dataclass(frozen=True)
class AlignedStage:
    """Transformations as written, and the nodes that did their work."""

    written: tuple[ChainNode, ...]
    ran: tuple[RunNode, ...]


def canonical(op: str) -> str:
    """Reduce an operation's name to what both sides call it."""
    stem = unversioned(op)
    return SAME.get(stem, stem)


def grow_tree(costs: Sequence[NodeCost], examples_per_element: float) -> RunNode | None:
    """Arrange the accounts as the tree they came from and say what one element of each is worth."""
    nodes = {cost.path: RunNode(cost) for cost in costs}
    roots = [node for path, node in nodes.items() if len(path) == 1]
    for path, node in nodes.items():
        if above := nodes.get(path[:-1]):
            (above.inner if path[-1].endswith("*") else above.inputs).append(node)
    if not roots:
        return None
    root = max(roots, key=lambda node: node.cost.elements)
    _weigh(root, examples_per_element)
    return root


def align(chain: ChainNode, root: RunNode) -> list[AlignedStage]:
    """Pair every transformation with the nodes that ran for it, outermost first."""
    written, ran = _trunk_written(chain), _trunk_ran(root)
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
        if names and len(names[-1].inputs) > 1:
            branches = list(zip(names[-1].inputs, ran[j].inputs, strict=False))
    for below, fed_by in branches:
        stages += align(below, fed_by)
    return stages


def merge_labelled(stages: Sequence[AlignedStage]) -> list[AlignedStage]:
    """Join neighbours that their author gave the same name (`ds.map(..., name="decode")`)."""
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


def _weigh(node: RunNode, examples_per_element: float) -> None:
    node.examples_per_element = examples_per_element
    examples = examples_per_element * node.cost.elements
    ratio = node.cost.ratio
    for below in node.inputs:
        if ratio and len(node.inputs) == 1:
            # A batch that is not full still consumes single examples.
            partial = ratio > 1 and examples_per_element < 0.999 * ratio
            worth = 1.0 if partial else examples_per_element / ratio
        else:
            worth = examples / below.cost.elements if below.cost.elements else 0.0
        _weigh(below, worth)
    for below in node.inner:
        _weigh(below, examples / below.cost.elements if below.cost.elements else 0.0)


def _trunk_written(chain: ChainNode) -> list[ChainNode]:
    trunk = [chain]
    while len(trunk[-1].inputs) == 1:
        trunk.append(trunk[-1].inputs[0])
    return trunk


def _trunk_ran(root: RunNode) -> list[RunNode]:
    trunk = [root]
    while len(trunk[-1].inputs) == 1:
        trunk.append(trunk[-1].inputs[0])
    return trunk


def _all_below(nodes: Sequence[RunNode]) -> list[RunNode]:
    return [below for node in nodes for below in (node, *_all_below(node.inputs + node.inner))]


def _edit_script(
    written: Sequence[ChainNode], ran: Sequence[RunNode]
) -> list[tuple[str, int, int]]:
    """Find the cheapest way to read one list as the other (Wagner and Fischer, 1974)."""
    costs: dict[tuple[int, int], tuple[float, str]] = {}
    for i in range(len(written), -1, -1):
        for j in range(len(ran), -1, -1):
            options = [
                (price + costs[i + di, j + dj][0], action)
                for action, di, dj, price in _moves(written, ran, i, j)
            ]
            costs[i, j] = min(options, default=(0.0, ""))
    script, i, j = [], 0, 0
    steps = {MATCH: (1, 1), FUSE: (2, 1), SKIP_WRITTEN: (1, 0), SKIP_RAN: (0, 1)}
    while action := costs[i, j][1]:
        script.append((action, i, j))
        i, j = i + steps[action][0], j + steps[action][1]
    return script


def _moves(
    written: Sequence[ChainNode], ran: Sequence[RunNode], i: int, j: int
) -> list[tuple[str, int, int, float]]:
    moves: list[tuple[str, int, int, float]] = []
    if i < len(written):
        moves.append((SKIP_WRITTEN, 1, 0, 1.0))
    if j < len(ran):
        moves.append((SKIP_RAN, 0, 1, 1.0))
    if i < len(written) and j < len(ran):
        op = canonical(ran[j].op)
        if canonical(written[i].op) == op:
            moves.append((MATCH, 1, 1, 0.0))
        pair = tuple(canonical(node.op) for node in written[i : i + 2])
        if FUSED.get(op) == pair:
            moves.append((FUSE, 2, 1, 0.0))
    return moves


# Below this share of the model's time a wrong one does no harm.
LEAST_SHARE = 0.02


def batches_that_count(nodes: Sequence[NodeCost]) -> Iterator[tuple[NodeCost, float]]:
    """Every batch that has a notable share of a pipeline's time, with how many it puts together."""
    total_s = sum(node.active_s for node in nodes)
    for node in nodes:
        op = node.path[-1].partition("#")[0].rstrip("*")
        is_notable = node.elements and node.active_s > LEAST_SHARE * total_s
        if is_notable and node.ratio and canonical(op) == "Batch":
            yield node, node.ratio
