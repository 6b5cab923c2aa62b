"""The runtime's model of a pipeline, polled and added up by path.

tf.data counts per node and drops a node when its iterator ends: `repeat` creates new nodes in
every epoch. So the increase of each node's counts is added to the totals of its path in the tree.
"""

from dataclasses import dataclass, replace

from tpuctl.profiling.windows import NodeCost

# Work between the last poll and a node's end is lost; below this share, it does not matter.
NOTABLE_SHARE = 0.05
# Nodes that create an iterator for each input element.
EXPANDING = ("Interleave", "ParallelInterleave", "FlatMap")


@dataclass(frozen=True)
class ModelNode:
    """One node of a model snapshot; its counts are since it was created."""

    id: int
    name: str
    active_ns: int
    elements: int
    bytes_out: int
    parallelism: int | None
    ratio: float | None
    inputs: tuple[int, ...]


@dataclass(frozen=True)
class Snapshot:
    """The whole model at one point in time."""

    nodes: dict[int, ModelNode]
    output: int


@dataclass
class _Totals:
    active_ns: int = 0
    elements: int = 0
    bytes_out: int = 0
    parallelism: int | None = None
    ratio: float | None = None


class NodeStats:
    """Adds up the work of the nodes at each path; `reset` begins a new window."""

    def __init__(self) -> None:
        self._previous: dict[int, ModelNode] = {}
        self._main: dict[int, int] = {}
        self._totals: dict[tuple[str, ...], _Totals] = {}
        self.nodes_vanished = False

    def reset(self) -> None:
        """Set all totals to zero; the nodes' counts so far are ignored."""
        for total in self._totals.values():
            total.active_ns = total.elements = total.bytes_out = 0
        self.nodes_vanished = False

    def start_iterator(self) -> None:
        """Expect the next snapshot to be of a new iterator, with other IDs."""
        self._previous.clear()
        self._main.clear()

    def add(self, snapshot: Snapshot) -> None:
        """Add the work of each node since the previous snapshot."""
        gone = sum(
            node.active_ns for id, node in self._previous.items() if id not in snapshot.nodes
        )
        if gone > NOTABLE_SHARE * sum(node.active_ns for node in self._previous.values()):
            self.nodes_vanished = True
        self._walk(snapshot, snapshot.output, ())
        self._previous = dict(snapshot.nodes)

    def costs(self) -> tuple[NodeCost, ...]:
        """The work of every path since `reset`, outermost first."""
        return tuple(
            NodeCost(
                path,
                total.active_ns / 1e9,
                total.elements,
                total.bytes_out,
                total.parallelism,
                total.ratio,
            )
            for path, total in self._totals.items()
        )

    def elements(self) -> tuple[int, ...]:
        """The number of elements from every path since `reset`, in the order of `costs`."""
        return tuple(total.elements for total in self._totals.values())

    def _walk(
        self, snapshot: Snapshot, node_id: int, above: tuple[str, ...], mark: str = ""
    ) -> None:
        node = snapshot.nodes.get(node_id)
        if node is None:
            return
        path = (*above, node.name + mark)
        self._add(path, node)
        for position, below in enumerate(node.inputs):
            self._walk(snapshot, below, path, self._mark(node, position, below))

    def _mark(self, node: ModelNode, position: int, below: int) -> str:
        # The oldest input is the data set itself; the others are iterators per element ("*").
        if unversioned(node.name) in EXPANDING:
            return "" if self._main.setdefault(node.id, min(node.inputs)) == below else "*"
        return f"#{position}" if position else ""

    def _add(self, path: tuple[str, ...], node: ModelNode) -> None:
        total = self._totals.setdefault(path, _Totals())
        before = self._previous.get(node.id)
        if before is None or before.elements > node.elements:
            # A new node, or another one with the same ID: all of its counts are new.
            before = replace(node, active_ns=0, elements=0, bytes_out=0)
        total.active_ns += max(0, node.active_ns - before.active_ns)
        total.elements += node.elements - before.elements
        total.bytes_out += max(0, node.bytes_out - before.bytes_out)
        total.parallelism = node.parallelism
        total.ratio = node.ratio


def unversioned(name: str) -> str:
    """Remove the version from an operation's name: `ParallelMapV2` is a `ParallelMap`."""
    stem, _, version = name.rpartition("V")
    return stem if stem and version.isdigit() else name
