"""Compressed volumes, decompressed and normalised in two worker processes."""

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.pipelines.inputs import packed_arrays, stage

SOURCE = (
    "https://github.com/Project-MONAI/tutorials/blob/main/3d_segmentation/unet_training_array.py"
)
NEEDS = "torch"
STAGES = {
    "load_volume": r"load_volume",
    "normalize": r"normalize",
}


VOLUME = np.ones((256, 256, 3), "float32")


@stage(lambda path: VOLUME)
def load_volume(path: str) -> Any:
    values = np.frombuffer(zlib.decompress(Path(path).read_bytes()), "<i2")
    return values.reshape(256, 256, 3).astype("float32")


@stage(lambda volume: VOLUME)
def normalize(volume: Any) -> Any:
    low, high = np.percentile(volume, (1, 99))
    return ((volume.clip(low, high) - volume.mean()) / (volume.std() + 1e-5)).astype("float32")


class ArrayDataset(torch.utils.data.Dataset[Any]):
    def __init__(self) -> None:
        self.paths = packed_arrays() * 20

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        return normalize(load_volume(self.paths[index]))


def make() -> Any:
    return torch.utils.data.DataLoader(
        ArrayDataset(), batch_size=8, shuffle=True, num_workers=2, persistent_workers=True
    )
