"""Objects from a distant store, one request per item, in four worker processes."""

import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.pipelines.inputs import packed_arrays, stage

SOURCE = "https://github.com/awslabs/s3-connector-for-pytorch"
NEEDS = "torch"
STAGES = {
    "get_object": r"get_object|__getitem__",
    "unpack": r"unpack",
}


CONTENT = Path(packed_arrays()[0]).read_bytes()
ARRAY = np.zeros(256 * 256 * 3, "<i2")


@stage(lambda path: CONTENT)
def get_object(path: str) -> bytes:
    time.sleep(0.04)
    return Path(path).read_bytes()


@stage(lambda content: ARRAY)
def unpack(content: bytes) -> Any:
    return np.frombuffer(zlib.decompress(content), "<i2")


class S3MapDataset(torch.utils.data.Dataset[Any]):
    def __init__(self) -> None:
        self.keys = packed_arrays() * 40

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, index: int) -> Any:
        return unpack(get_object(self.keys[index])).copy()


def make() -> Any:
    return torch.utils.data.DataLoader(S3MapDataset(), batch_size=16, num_workers=4)
