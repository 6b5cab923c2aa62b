"""Volumes unpacked by a pool of threads inside a generator, resized and turned."""

import concurrent.futures
import random
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import scipy.ndimage

from benchmarks.pipelines.inputs import packed_arrays, stage

SOURCE = "https://github.com/MIC-DKFZ/batchgenerators"
NEEDS = "scipy"
STAGES = {
    "unpack": r"unpack",
    "turn": r"turn",
    "gamma": r"gamma",
}

VOLUME = np.ones((256, 256, 3), "float32")


@stage(lambda path: VOLUME)
def unpack(path: str) -> Any:
    values = np.frombuffer(zlib.decompress(Path(path).read_bytes()), "<i2")
    return values.reshape(256, 256, 3).astype("float32")


@stage(lambda volume: VOLUME[:64, :64])
def turn(volume: Any) -> Any:
    turned = scipy.ndimage.rotate(volume[..., 0], random.uniform(-15, 15), reshape=False, order=1)
    return np.stack([turned[96:160, 96:160]] * 3, axis=-1)


@stage(lambda volume: VOLUME[:64, :64])
def gamma(volume: Any) -> Any:
    low, high = volume.min(), volume.max()
    return ((volume - low) / (high - low + 1e-7)) ** random.uniform(0.7, 1.5)


def example(path: str) -> Any:
    return gamma(turn(unpack(path)))


def make() -> Any:
    pool = concurrent.futures.ThreadPoolExecutor(2)
    paths = packed_arrays()
    while True:
        chosen = random.choices(paths, k=8)
        yield np.stack(list(pool.map(example, chosen)))
