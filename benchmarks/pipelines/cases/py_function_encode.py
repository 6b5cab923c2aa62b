"""Subwords by longest match in Python behind tf.py_function, in calls that share one lock."""

from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.pipelines.inputs import sentences, stage

SOURCE = "https://github.com/tensorflow/docs/blob/r2.1/site/en/tutorials/text/transformer.ipynb"
NEEDS = "tensorflow"
STAGES = {
    "encode": r"encode|py_function|EagerPyFunc",
    "clean": r"clean",
}


LETTERS = "abcdefghijklmnopqrstuvwxyz"
PIECES = [*LETTERS, *(a + b for a in LETTERS for b in LETTERS), *(3 * a for a in LETTERS)]
VOCABULARY = {piece: index for index, piece in enumerate(PIECES, 1)}
IDS = np.ones(650, "int64")


@stage(lambda text: text)
def clean(text: Any) -> Any:
    return tf.strings.lower(tf.strings.strip(text))


@stage(lambda text: IDS)
def encode(text: bytes) -> Any:
    ids = []
    for word in text.decode().split():
        start = 0
        while start < len(word):
            end = min(start + 6, len(word))
            while word[start:end] not in VOCABULARY and end > start + 1:
                end -= 1
            ids.append(VOCABULARY.get(word[start:end], 0))
            start = end
    return np.array(ids)


def tf_encode(text: Any) -> Any:
    ids = tf.py_function(lambda text: encode(text.numpy()), [text], tf.int64)
    ids.set_shape([None])
    return ids[:600]


def make() -> Any:
    data = tf.data.TextLineDataset(sentences()).repeat().batch(5).shuffle(400)
    data = data.map(lambda lines: tf.strings.reduce_join(lines, separator=" "))
    data = data.map(clean, num_parallel_calls=tf.data.AUTOTUNE)
    data = data.map(tf_encode, num_parallel_calls=tf.data.AUTOTUNE)
    return data.padded_batch(32, padded_shapes=[600], drop_remainder=True)
