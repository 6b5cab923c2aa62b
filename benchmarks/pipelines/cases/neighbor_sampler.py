"""PyG's neighbour sampler: a batch of nodes made a subgraph in the collate function."""

from typing import Any

import numpy as np
import torch

from benchmarks.pipelines.inputs import stage

SOURCE = (
    "https://github.com/pyg-team/pytorch_geometric/"
    "blob/master/torch_geometric/loader/neighbor_sampler.py"
)
NEEDS = "torch"
STAGES = {
    "sample_neighbors": r"sample_neighbors",
    "relabel": r"relabel",
    "gather": r"gather",
}


torch.set_num_threads(1)
NODES, FEATURES = 20_000, 32
RANDOM = np.random.default_rng(0)
STARTS = np.concatenate([[0], np.cumsum(RANDOM.integers(1, 40, NODES))])
COLUMNS = RANDOM.integers(0, NODES, STARTS[-1])
X = torch.rand(NODES, FEATURES)
EDGES = np.stack([np.arange(1200) % 128, np.arange(1200) + 128])
READY = torch.zeros(5000, FEATURES)


@stage(lambda nodes, size: EDGES)
def sample_neighbors(nodes: Any, size: int) -> Any:
    targets, sources = [], []
    for node in nodes:
        around = COLUMNS[STARTS[node] : STARTS[node + 1]]
        if len(around) > size:
            around = around[np.random.permutation(len(around))[:size]]
        sources.extend(around.tolist())
        targets.extend([node] * len(around))
    return np.array([targets, sources])


@stage(lambda nodes, edges: (np.arange(5000), EDGES))
def relabel(nodes: Any, edges: Any) -> Any:
    found, places = np.unique(np.concatenate([nodes, edges.ravel()]), return_inverse=True)
    return found, places[len(nodes) :].reshape(2, -1)


@stage(lambda nodes: READY)
def gather(nodes: Any) -> Any:
    return X[torch.from_numpy(nodes)]


def sample(batch: list[int]) -> Any:
    nodes = np.array(batch)
    layers = []
    for size in (10, 5):
        nodes, edges = relabel(nodes, sample_neighbors(nodes, size))
        layers.append(torch.from_numpy(edges))
    return torch.tensor(batch), gather(nodes), layers


def make() -> Any:
    data: Any = range(NODES)
    return torch.utils.data.DataLoader(data, batch_size=128, shuffle=True, collate_fn=sample)
