"""Characters from memory: cached, windows, shuffled; then an expensive random mask per epoch."""

from typing import Any

import tensorflow as tf

from benchmarks.pipelines.inputs import sentences, stage

SOURCE = "https://github.com/google-research/bert/blob/master/create_pretraining_data.py"
NEEDS = "tensorflow"
STAGES = {
    "tokenize": r"tokenize",
    "mask": r"mask",
}


IDS = tf.ones(128, tf.int32)


@stage(lambda line: IDS)
def tokenize(line: Any) -> Any:
    codes = tf.strings.unicode_decode(line, "UTF-8")
    return tf.concat([codes, tf.zeros(128, tf.int32)], 0)[:128]


@stage(lambda ids: (IDS, IDS))
def mask(ids: Any) -> Any:
    order = tf.argsort(tf.random.uniform((8, 128)))
    chosen = tf.reduce_any(order < 3, 0)
    other = tf.random.uniform((128,), maxval=30_000, dtype=tf.int32)
    return tf.where(chosen, other, ids), tf.where(chosen, ids, -1)


def make() -> Any:
    data = tf.data.TextLineDataset(sentences()).take(640).map(tokenize, tf.data.AUTOTUNE).cache()
    data = data.shuffle(1000).map(mask, num_parallel_calls=tf.data.AUTOTUNE)
    return data.batch(64).prefetch(tf.data.AUTOTUNE)
