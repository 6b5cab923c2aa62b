"""Rows of CSV decoded one by one, crossed and hashed columns, finite."""

from typing import Any

import tensorflow as tf

from benchmarks.pipelines.inputs import stage, table

SOURCE = "https://github.com/tensorflow/models/blob/v1.13.0/official/wide_deep/census_dataset.py"
NEEDS = "tensorflow"
STAGES = {
    "parse_csv": r"parse_csv",
    "cross_columns": r"cross_columns",
}

DEFAULTS = [[0.0]] * 6 + [[""]] * 2
ROW = (tf.zeros(6), tf.constant(["a", "b"]))
READY = tf.zeros(6)


@stage(lambda line: ROW)
def parse_csv(line: Any) -> Any:
    *numbers, sex, deck = tf.io.decode_csv(line, DEFAULTS)
    return tf.stack(numbers), tf.stack([sex, deck])


@stage(lambda numbers, words: (READY, tf.zeros(101)))
def cross_columns(numbers: Any, words: Any) -> Any:
    crossed = tf.strings.join([words[0], "_", words[1], "_", tf.strings.as_string(numbers[0], 1)])
    wide = tf.one_hot(tf.strings.to_hash_bucket_fast(crossed, 100), 101)
    return tf.math.log1p(numbers), wide


def make() -> Any:
    data = tf.data.TextLineDataset(table()).skip(1).shuffle(5000)
    return data.map(parse_csv).map(cross_columns).batch(256).prefetch(1)
