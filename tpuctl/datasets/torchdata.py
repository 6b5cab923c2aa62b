"""A data set for PyTorch: whole batches, the same ones for any number of loader processes."""

import importlib.util
from pathlib import Path
from typing import Any

from tpuctl.datasets.batches import open_batches
from tpuctl.errors import InvalidInputError


def open_torch_dataset(
    dst: str | Path,
    batch_size: int,
    *,
    seed: int = 0,
    shuffle: bool = True,
    host: int = 0,
    hosts: int = 1,
    start_step: int = 0,
    steps: int | None = None,
    planes: bool = False,
) -> Any:
    """Return a `torch.utils.data.IterableDataset` of (uint8 images, int64 labels), batch by batch.

    Load it with `DataLoader(dataset, batch_size=None, num_workers=N)`: each process decodes every
    n-th batch, and they come in the order of the steps, whatever N is. Images are N x 3 x H x W
    with the channels last in memory. Otherwise as `open_batches`, which it reads with. Raises
    InvalidInputError where torch is not installed.
    """
    if importlib.util.find_spec("torch") is None:
        raise InvalidInputError(
            "Reading with PyTorch needs torch, which is not installed.",
            hint="pip install torch (or read NumPy arrays: tpuctl.datasets.open_batches)",
        )
    batches = open_batches(
        dst,
        batch_size,
        seed=seed,
        shuffle=shuffle,
        host=host,
        hosts=hosts,
        start_step=start_step,
        steps=steps,
        planes=planes,
    )
    from tpuctl.datasets._torchdata import TorchBatches

    return TorchBatches(batches)
