"""Windows of a time series cut from an array, split into inputs and labels."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from benchmarks.pipelines.inputs import stage

SOURCE = "https://www.tensorflow.org/tutorials/structured_data/time_series"
NEEDS = "tensorflow"
STAGES = {"split_window": r"split_window"}


SERIES = np.random.default_rng(0).random((20_000, 19), "float32")


@stage(lambda windows: (tf.zeros((32, 24, 19)), tf.zeros((32, 24, 1))))
def split_window(windows: Any) -> Any:
    return windows[:, :24], windows[:, 24:, :1]


def make() -> Any:
    data = keras.utils.timeseries_dataset_from_array(
        SERIES, None, sequence_length=48, batch_size=32, shuffle=True
    )
    return data.map(split_window)
