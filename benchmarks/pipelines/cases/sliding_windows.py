"""Rows of CSV parsed, cut into overlapping windows by tf.data, and normalised, finite."""

from typing import Any

import tensorflow as tf

from benchmarks.pipelines.inputs import stage, table

SOURCE = "https://www.tensorflow.org/guide/data#time_series_windowing"
NEEDS = "tensorflow"
STAGES = {
    "parse_row": r"parse_row",
    "to_batch": r"to_batch|flat_map|window",
    "normalize": r"normalize",
}

ROW = tf.zeros(6)
WINDOW = tf.zeros((24, 6))


@stage(lambda line: ROW)
def parse_row(line: Any) -> Any:
    return tf.stack(tf.io.decode_csv(line, [[0.0]] * 6 + [[""]] * 2)[:6])


@stage(lambda rows: tf.data.Dataset.from_tensors(WINDOW))
def to_batch(rows: Any) -> Any:
    return rows.batch(24, drop_remainder=True)


@stage(lambda window: (window[:-1], window[-1]))
def normalize(window: Any) -> Any:
    mean, variance = tf.nn.moments(window, axes=[0])
    window = (window - mean) / tf.sqrt(variance + 1e-6)
    return window[:-1], window[-1]


def make() -> Any:
    data = tf.data.TextLineDataset(table()).skip(1).map(parse_row)
    data = data.window(24, shift=4, drop_remainder=True).flat_map(to_batch)
    return data.map(normalize).shuffle(500).batch(64).prefetch(tf.data.AUTOTUNE)
