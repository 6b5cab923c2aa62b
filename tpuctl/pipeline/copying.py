"""Which stages only copy, so that the time the runtime gives them is mostly waiting. Pure."""

from collections.abc import Iterator, Sequence

from tpuctl.pipeline.align import canonical
from tpuctl.pipeline.models import NodeCost

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
