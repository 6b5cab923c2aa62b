"""A generator in Python that makes windows of a series, behind from_generator."""

from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.pipelines.inputs import is_left_out

SOURCE = "https://www.tensorflow.org/guide/data#consuming_python_generators"
NEEDS = "tensorflow"
STAGES = {"gen_series": r"gen_series|from_generator"}


READY = np.zeros(200, "float32")


def gen_series() -> Any:
    state = 1
    while is_left_out("gen_series"):
        yield READY
    while True:
        values = []
        for _ in range(200):
            state = (1103515245 * state + 12345) % 2147483648
            values.append(state / 2147483648 - 0.5)
        yield np.cumsum(np.array(values, "float32"))


def make() -> Any:
    spec = tf.TensorSpec((200,), tf.float32)
    data = tf.data.Dataset.from_generator(gen_series, output_signature=spec)
    return data.shuffle(20).batch(32).prefetch(2)
