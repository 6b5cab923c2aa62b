"""Patches of compressed HDF5 scans, read, transformed and scaled in a generator for tf.data."""

import random
from typing import Any

import h5py
import numpy as np
import tensorflow as tf

from benchmarks.pipelines.inputs import scans, stage

SOURCE = "https://github.com/ellisdg/3DUnetCNN/blob/master/unet3d/generator.py"
NEEDS = "h5py"
STAGES = {
    "read_slice": r"read_slice",
    "to_image": r"to_image",
    "scale": r"scale",
}

SLICE = np.ones((4, 256, 256), "complex64")
IMAGE = np.ones((256, 256), "float32")


@stage(lambda file, index: SLICE)
def read_slice(file: Any, index: int) -> Any:
    return file["kspace"][index]


@stage(lambda values: IMAGE)
def to_image(values: Any) -> Any:
    coils = np.fft.ifftshift(np.fft.ifft2(values), axes=(-2, -1))
    return np.sqrt((np.abs(coils) ** 2).sum(axis=0)).astype("float32")


@stage(lambda image: IMAGE[:96, :96])
def scale(image: Any) -> Any:
    x, y = random.randrange(160), random.randrange(160)
    patch = image[y : y + 96, x : x + 96]
    return (patch - patch.mean()) / (patch.std() + 1e-6)


def data_generator() -> Any:
    for path in scans():
        with h5py.File(path) as file:
            for index in range(len(file["kspace"])):
                image = to_image(read_slice(file, index))
                for _ in range(2):
                    yield scale(image)


def make() -> Any:
    spec = tf.TensorSpec((96, 96), tf.float32)
    data = tf.data.Dataset.from_generator(data_generator, output_signature=spec)
    return data.repeat().shuffle(64).batch(16).prefetch(2)
