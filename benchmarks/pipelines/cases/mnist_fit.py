"""Digits from arrays in memory for a model that takes far longer: the input keeps up."""

from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.pipelines.inputs import stage

SOURCE = "https://www.tensorflow.org/tutorials/quickstart/advanced"
NEEDS = "tensorflow"
STAGES = {"scale": r"scale|lambda"}
CONSUMER = "slow"


IMAGES = np.random.default_rng(0).integers(0, 255, (6000, 28, 28), "uint8")


@stage(lambda images, labels: (tf.zeros((32, 28, 28, 1)), labels))
def scale(images: Any, labels: Any) -> Any:
    return tf.cast(images, tf.float32)[..., None] / 255.0, labels


def make() -> Any:
    data = tf.data.Dataset.from_tensor_slices((IMAGES, np.zeros(6000, "int64")))
    return data.shuffle(1000).batch(32, drop_remainder=True).map(scale).prefetch(2)
