"""DLRM on Criteo: rows of a table picked one by one, turned into a batch by collate_fn."""

from typing import Any

import numpy as np
import torch

from benchmarks.pipelines.inputs import stage

SOURCE = "https://github.com/facebookresearch/dlrm/blob/main/dlrm_data_pytorch.py"
NEEDS = "torch"
STAGES = {
    "collate_wrapper_criteo": r"collate_wrapper_criteo",
    "row": r"row|__getitem__",
}

ROWS, BATCH = 20_000, 128
RANDOM = np.random.default_rng(0)
DENSE = list(RANDOM.integers(0, 500, (ROWS, 13), "int32"))
SPARSE = list(RANDOM.integers(0, 2**30, (ROWS, 26), "int32"))
CLICKED = list(RANDOM.integers(0, 2, ROWS, "int32"))
READY = (
    torch.zeros(BATCH, 13), torch.zeros(26, BATCH, dtype=torch.long),
    torch.zeros(26, BATCH, dtype=torch.long), torch.zeros(BATCH, 1),
)  # fmt: skip


@stage(lambda index: (DENSE[0], SPARSE[0], CLICKED[0]))
def row(index: int) -> Any:
    return DENSE[index], SPARSE[index] % 1_000_000, CLICKED[index]


class CriteoDataset(torch.utils.data.Dataset):  # type: ignore[misc]
    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Any:
        return row(index)


@stage(lambda rows: READY)
def collate_wrapper_criteo(rows: Any) -> Any:
    dense, sparse, clicked = zip(*rows, strict=True)
    x_int = torch.log(torch.tensor(np.array(dense), dtype=torch.float) + 1)
    x_cat = torch.tensor(np.array(sparse), dtype=torch.long)
    offsets = [torch.tensor(range(len(rows))) for _ in range(x_cat.shape[1])]
    indices = [x_cat[:, i] for i in range(x_cat.shape[1])]
    target = torch.tensor(np.array(clicked), dtype=torch.float32).view(-1, 1)
    return x_int, torch.stack(offsets), torch.stack(indices), target


def make() -> Any:
    return torch.utils.data.DataLoader(
        CriteoDataset(), batch_size=BATCH, shuffle=True, drop_last=True,
        collate_fn=collate_wrapper_criteo,
    )  # fmt: skip
