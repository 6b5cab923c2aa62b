"""Words made ids by a Python encoder behind tf.py_function, in parallel calls that share a lock."""

from typing import Any

import tensorflow as tf

from benchmarks.pipelines.inputs import sentences, stage

SOURCE = "https://github.com/tensorflow/docs/blob/r2.1/site/en/tutorials/load_data/text.ipynb"
NEEDS = "tensorflow"
STAGES = {
    "encode": r"encode|py_function|EagerPyFunc",
    "clean": r"clean",
}


IDS = [1] * 42
VOCABULARY: dict[str, int] = {}


@stage(lambda line: line)
def clean(line: Any) -> Any:
    return tf.strings.lower(tf.strings.strip(line))


@stage(lambda text: IDS)
def encode(text: str) -> Any:
    ids, word = [], ""
    for char in text + " ":
        if char.isalnum():
            word += char
        elif word:
            ids.append(VOCABULARY.setdefault(word, len(VOCABULARY) + 1))
            word = ""
    return ids


def encode_map(line: Any) -> Any:
    ids = tf.py_function(lambda text: encode(text.numpy().decode()), [line], tf.int64)
    ids.set_shape([None])
    return ids


def make() -> Any:
    data = tf.data.TextLineDataset(sentences()).shuffle(4000).repeat()
    data = data.map(clean, num_parallel_calls=tf.data.AUTOTUNE)
    data = data.map(encode_map, num_parallel_calls=tf.data.AUTOTUNE)
    return data.padded_batch(64, padded_shapes=[80], drop_remainder=True)
