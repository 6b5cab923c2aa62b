"""Two shuffled copies of small images in memory, zipped and mixed a batch at a time."""

from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.pipelines.inputs import stage

SOURCE = "https://keras.io/examples/vision/mixup/"
NEEDS = "tensorflow"
STAGES = {"mix_up": r"mix_up|lambda|beta"}
CONSUMER = "slow"

RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.random((8000, 28, 28, 1), "float32")
LABELS = np.eye(10, dtype="float32")[RANDOM.integers(0, 10, 8000)]


def sample_beta(size: Any, alpha: float) -> Any:
    one = tf.random.gamma((size,), alpha)
    return one / (one + tf.random.gamma((size,), alpha))


@stage(lambda one, two: one)
def mix_up(one: Any, two: Any) -> Any:
    (images, labels), (others, their_labels) = one, two
    share = sample_beta(tf.shape(images)[0], 0.2)
    x, y = tf.reshape(share, (-1, 1, 1, 1)), tf.reshape(share, (-1, 1))
    return images * x + others * (1 - x), labels * y + their_labels * (1 - y)


def make() -> Any:
    one = tf.data.Dataset.from_tensor_slices((IMAGES, LABELS)).shuffle(6400).batch(64)
    two = tf.data.Dataset.from_tensor_slices((IMAGES, LABELS)).shuffle(6400).batch(64)
    data = tf.data.Dataset.zip((one, two))
    return data.map(mix_up, num_parallel_calls=tf.data.AUTOTUNE)
