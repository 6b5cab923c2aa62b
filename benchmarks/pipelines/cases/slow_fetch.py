"""Pictures fetched from a store that answers after 8 ms, in a generator for tf.data."""

import io
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from PIL import Image

from benchmarks.pipelines.inputs import photo_paths, photograph, stage

SOURCE = "https://github.com/piskvorky/smart_open"
NEEDS = "tensorflow"
STAGES = {
    "get_object": r"get_object",
    "to_array": r"to_array",
}

CONTENT = Path(photo_paths()[0]).read_bytes()
SMALL = photograph(0, 64, 64)


@stage(lambda path: CONTENT)
def get_object(path: str) -> bytes:
    time.sleep(0.008)
    return Path(path).read_bytes()


@stage(lambda content: SMALL)
def to_array(content: bytes) -> Any:
    image = Image.open(io.BytesIO(content))
    image.draft("RGB", (64, 64))
    return np.asarray(image.resize((64, 64)))


def bucket() -> Any:
    paths = photo_paths()
    while True:
        yield to_array(get_object(random.choice(paths)))


def make() -> Any:
    spec = tf.TensorSpec((64, 64, 3), tf.uint8)
    data = tf.data.Dataset.from_generator(bucket, output_signature=spec)
    return data.batch(16).prefetch(2)
