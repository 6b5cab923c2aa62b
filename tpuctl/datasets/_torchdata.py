"""Batches as a PyTorch data set."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

if TYPE_CHECKING:
    from tpuctl.datasets.readers import Batches


class TorchBatches(IterableDataset):  # type: ignore[misc,unused-ignore]
    """Batches as tensors; in a loader's worker process, only that worker's share."""

    def __init__(self, batches: "Batches") -> None:
        super().__init__()
        self.batches = batches

    @property
    def steps_per_epoch(self) -> int:
        """How many batches every host takes in an epoch."""
        return self.batches.steps_per_epoch

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        info = get_worker_info()
        batches = self.batches
        if info is not None:
            batches = replace(batches, worker=info.id, workers=info.num_workers)
        for batch in batches:
            images = torch.from_numpy(batch.images)
            # Without a copy: the memory is what the device wants, and convolutions prefer.
            images = images if batches.planes else images.permute(0, 3, 1, 2)
            yield images, torch.from_numpy(batch.labels).long()
