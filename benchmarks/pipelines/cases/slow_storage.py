"""The guide's naive loop over files in a distant store: open and read one after the other."""

import time
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.pipelines.inputs import stage

SOURCE = "https://www.tensorflow.org/guide/data_performance#the_naive_approach"
NEEDS = "tensorflow"
STAGES = {
    "read_far": r"read_far|fetch",
    "scale": r"scale",
}


VALUES = np.ones((64, 64), "float32")


def fetch(index: Any) -> Any:
    time.sleep(0.015)
    return VALUES + index


@stage(lambda index: tf.constant(VALUES))
def read_far(index: Any) -> Any:
    return tf.ensure_shape(tf.numpy_function(fetch, [index], tf.float32), (64, 64))


@stage(lambda values: values)
def scale(values: Any) -> Any:
    return tf.math.sin(values) * 0.5


def make() -> Any:
    index = tf.data.Dataset.range(400).map(lambda each: tf.cast(each, tf.float32))
    return index.map(read_far, num_parallel_calls=2).map(scale).batch(16).prefetch(1)
