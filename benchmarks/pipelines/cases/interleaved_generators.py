"""Generators of compressed arrays, one for each file, interleaved by tf.data."""

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.pipelines.inputs import packed_arrays, stage

SOURCE = "https://stackoverflow.com/questions/52179857/parallelize-tf-from-generator"
NEEDS = "tensorflow"
STAGES = {
    "unpack": r"unpack",
    "standardize": r"standardize",
    "tiles": r"tiles",
}

VOLUME = np.ones((256, 256, 3), "float32")
TILES = np.ones((16, 64, 64, 3), "float32")


@stage(lambda path: VOLUME)
def unpack(path: str) -> Any:
    values = np.frombuffer(zlib.decompress(Path(path).read_bytes()), "<i2")
    return values.reshape(256, 256, 3).astype("float32")


@stage(lambda volume: VOLUME)
def standardize(volume: Any) -> Any:
    low, high = np.percentile(volume, (1, 99))
    return (volume.clip(low, high) - low) / (high - low + 1)


@stage(lambda volume: TILES)
def tiles(volume: Any) -> Any:
    return volume.reshape(4, 64, 4, 64, 3).swapaxes(1, 2).reshape(16, 64, 64, 3)


def read_file(path: bytes) -> Any:
    yield from tiles(standardize(unpack(path.decode())))


def open_file(path: Any) -> Any:
    spec = tf.TensorSpec((64, 64, 3), tf.float32)
    return tf.data.Dataset.from_generator(read_file, args=(path,), output_signature=spec)


def make() -> Any:
    paths = tf.data.Dataset.from_tensor_slices(packed_arrays()).shuffle(8).repeat()
    data = paths.interleave(open_file, cycle_length=4, num_parallel_calls=4)
    return data.shuffle(100).batch(32).prefetch(2)
