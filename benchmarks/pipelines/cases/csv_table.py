"""A table from CSV: rows decoded, columns stacked, finite."""

from typing import Any

import tensorflow as tf

from benchmarks.pipelines.inputs import stage, table

SOURCE = "https://www.tensorflow.org/tutorials/load_data/csv"
NEEDS = "tensorflow"
STAGES = {
    "decode_row": r"decode_row",
    "features": r"features",
}


DEFAULTS = [0.0] * 6 + ["", ""]
ROW = tuple(tf.constant(each) for each in DEFAULTS)


@stage(lambda line: ROW)
def decode_row(line: Any) -> Any:
    return tuple(tf.io.decode_csv(line, DEFAULTS))


@stage(lambda *columns: (tf.zeros(7), tf.constant(1)))
def features(*columns: Any) -> Any:
    kind = tf.cast(tf.equal(columns[6], "a"), tf.float32)
    return tf.stack([*columns[:6], kind]), tf.cast(tf.equal(columns[7], "b"), tf.int32)


def make() -> Any:
    data = tf.data.TextLineDataset(table()).skip(1)
    data = data.map(decode_row, tf.data.AUTOTUNE).map(features, tf.data.AUTOTUNE)
    return data.shuffle(1000).batch(256, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
