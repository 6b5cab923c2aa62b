"""The runtime's model of a pipeline, polled and added up by path.

tf.data counts per node and forgets a node when its iterator ends: `repeat` makes new nodes every
epoch. So each node's growth is added to the account of its place in the tree.
"""

from dataclasses import dataclass

from tpuctl.profiling.models import NodeCost

# What a vanished node did after the last look is lost; below this share nobody misses it.
NOTABLE_SHARE = 0.05
# Nodes that make iterators of their own for each input element.
EXPANDING = ("Interleave", "ParallelInterleave", "FlatMap")


@dataclass(frozen=True)
class ModelNode:
    """One node of a model snapshot, as tf.data counts it since the node's birth."""

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
    """The whole model at one moment."""

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
    """Adds up what the nodes at each path did; `forget` begins a new window."""

    def __init__(self) -> None:
        self._seen: dict[int, ModelNode] = {}
        self._main: dict[int, int] = {}
        self._accounts: dict[tuple[str, ...], _Totals] = {}
        self.nodes_vanished = False

    def forget(self) -> None:
        """Start all accounts at zero; what the nodes have counted until now is not ours."""
        for account in self._accounts.values():
            account.active_ns = account.elements = account.bytes_out = 0
        self.nodes_vanished = False

    def start_iterator(self) -> None:
        """Note that the next snapshot is of another iterator, with ids of its own."""
        self._seen.clear()
        self._main.clear()

    def add(self, snapshot: Snapshot) -> None:
        """Add what each node did since the snapshot before."""
        gone = sum(node.active_ns for id, node in self._seen.items() if id not in snapshot.nodes)
        if gone > NOTABLE_SHARE * sum(node.active_ns for node in self._seen.values()):
            self.nodes_vanished = True
        self._walk(snapshot, snapshot.output, ())
        self._seen = dict(snapshot.nodes)

    def costs(self) -> tuple[NodeCost, ...]:
        """What every path did since `forget`, outermost first."""
        return tuple(
            NodeCost(
                path,
                account.active_ns / 1e9,
                account.elements,
                account.bytes_out,
                account.parallelism,
                account.ratio,
            )
            for path, account in self._accounts.items()
        )

    def elements(self) -> tuple[int, ...]:
        """How many elements came from every path since `forget`, in the order of `costs`."""
        return tuple(account.elements for account in self._accounts.values())

    def _walk(
        self, snapshot: Snapshot, node_id: int, above: tuple[str, ...], mark: str = ""
    ) -> None:
        node = snapshot.nodes.get(node_id)
        if node is None:
            return
        path = (*above, node.name + mark)
        self._credit(path, node)
        for position, below in enumerate(node.inputs):
            self._walk(snapshot, below, path, self._mark(node, position, below))

    def _mark(self, node: ModelNode, position: int, below: int) -> str:
        if unversioned(node.name) in EXPANDING:
            return "" if self._main.setdefault(node.id, min(node.inputs)) == below else "*"
        return f"#{position}" if position else ""

    def _credit(self, path: tuple[str, ...], node: ModelNode) -> None:
        account = self._accounts.setdefault(path, _Totals())
        before = self._seen.get(node.id)
        grown = before is not None and before.elements <= node.elements
        account.active_ns += max(0, node.active_ns - (before.active_ns if before and grown else 0))
        account.elements += node.elements - (before.elements if before and grown else 0)
        account.bytes_out += max(0, node.bytes_out - (before.bytes_out if before and grown else 0))
        account.parallelism = node.parallelism
        account.ratio = node.ratio


def unversioned(name: str) -> str:
    """Take the version off an operation's name: `ParallelMapV2` is a `ParallelMap`."""
    stem, _, version = name.rpartition("V")
    return stem if stem and version.isdigit() else name
