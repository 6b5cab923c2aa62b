"""Chunks of a Zarr store in a bucket, one request after another, decompressed and cut."""

import random
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.pipelines.inputs import packed_arrays, stage

SOURCE = "https://github.com/earth-mover/dataloader-demo/blob/main/main.py"
NEEDS = "torch"
STAGES = {
    "fetch_chunk": r"fetch_chunk",
    "decompress": r"decompress",
    "patches": r"patches",
}
IS_PROGRAM = True


CONTENT = Path(packed_arrays()[0]).read_bytes()
CHUNK = np.zeros((256, 256, 3), "<i2")
PATCHES = torch.zeros(4, 3, 64, 64)


@stage(lambda key: CONTENT)
def fetch_chunk(key: str) -> bytes:
    time.sleep(0.1)
    return Path(key).read_bytes()


@stage(lambda content: CHUNK)
def decompress(content: bytes) -> Any:
    return np.frombuffer(zlib.decompress(content), "<i2").reshape(256, 256, 3)


@stage(lambda chunk: PATCHES)
def patches(chunk: Any) -> Any:
    corners = [(random.randrange(192), random.randrange(192)) for _ in range(4)]
    found = np.stack([chunk[top : top + 64, left : left + 64] for top, left in corners])
    return torch.from_numpy(found.transpose(0, 3, 1, 2).astype("float32") / 1000.0)


class XBatcherPyTorchDataset(torch.utils.data.Dataset[Any]):
    def __init__(self) -> None:
        self.keys = packed_arrays() * 32

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, index: int) -> Any:
        return patches(decompress(fetch_chunk(self.keys[index])))


def make() -> Any:
    return torch.utils.data.DataLoader(XBatcherPyTorchDataset(), batch_size=4, shuffle=True)


if __name__ == "__main__":
    model = torch.nn.Conv2d(3, 1, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(1000):
        for batch in make():
            optimizer.zero_grad()
            model(batch.flatten(0, 1)).square().mean().backward()
            optimizer.step()
