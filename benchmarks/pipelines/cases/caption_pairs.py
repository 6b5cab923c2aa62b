"""Photographs decoded by TensorFlow and captions tokenised in py_function by one map."""

import random
import re
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.pipelines.inputs import photo_paths, photograph, sentences, stage

SOURCE = "https://keras.io/examples/vision/image_captioning/"
NEEDS = "tensorflow"
STAGES = {
    "decode": r"decode|lambda|pair",
    "standardize": r"standardize",
    "look_up": r"look_up",
}

PHOTO = tf.constant(photograph(0, 112, 112), tf.float32)
IDS = np.zeros(25, "int64")
WORDS = ["abc"] * 250


@stage(lambda path: PHOTO)
def decode(path: Any) -> Any:
    image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
    return tf.image.resize(image, (112, 112))


@stage(lambda text: WORDS)
def standardize(text: str) -> Any:
    return re.sub(r"[^a-z ]", "", re.sub(r"([aeiou])", r"<\\1>", text.lower())).split()


@stage(lambda words: IDS)
def look_up(words: Any) -> Any:
    hashes = [sum(31**i * ord(c) for i, c in enumerate(word)) % 5000 for word in words]
    return np.array((hashes + [0] * 25)[:25], "int64")


with open(sentences()) as file:
    LINES = file.read().splitlines()


def caption(_: Any) -> Any:
    return look_up(standardize(" ".join(random.choices(LINES, k=5))))


def pair(path: Any) -> Any:
    return decode(path), tf.ensure_shape(tf.py_function(caption, [path], tf.int64), (25,))


def make() -> Any:
    data = tf.data.Dataset.from_tensor_slices(photo_paths()).shuffle(64)
    return data.map(pair, num_parallel_calls=tf.data.AUTOTUNE).batch(16).prefetch(1)
