"""Text cleaned with regular expressions and split into byte pairs in py_function, padded."""

import itertools
import re
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.pipelines.inputs import sentences, stage

SOURCE = "https://www.tensorflow.org/tutorials/load_data/text"
NEEDS = "tensorflow"
STAGES = {
    "clean": r"clean",
    "merge_pairs": r"merge_pairs",
}

IDS = np.ones(200, "int32")
LINE = "abc def ghi " * 20


@stage(lambda text: LINE)
def clean(text: str) -> str:
    text = re.sub(r"([?.!,])", r" \\1 ", text.lower())
    return re.sub(r"[^a-z?.!,]+", " ", text).strip()


@stage(lambda text: IDS)
def merge_pairs(text: str) -> Any:
    found = []
    for word in text.split():
        pieces = list(word)
        while len(pieces) > 2:
            ranks = [(ord(a[0]) * 31 + ord(b[0])) % 97 for a, b in itertools.pairwise(pieces)]
            best = ranks.index(min(ranks))
            pieces[best : best + 2] = [pieces[best] + pieces[best + 1]]
        found += [len(piece) for piece in pieces]
    return np.array(found, "int32")


def tokenize(line: Any) -> Any:
    return merge_pairs(clean(line.numpy().decode()))


def encode(line: Any) -> Any:
    return tf.ensure_shape(tf.py_function(tokenize, [line], tf.int32), (None,))


def make() -> Any:
    data = tf.data.TextLineDataset(sentences()).shuffle(1000)
    data = data.map(encode, num_parallel_calls=tf.data.AUTOTUNE)
    return data.padded_batch(32).prefetch(tf.data.AUTOTUNE)
