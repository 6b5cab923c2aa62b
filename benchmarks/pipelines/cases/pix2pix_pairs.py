"""Pairs of pictures opened, cropped, flipped and normalised in a generator for tf.data."""

import random
from typing import Any

import numpy as np
import tensorflow as tf
from PIL import Image, ImageFilter

from benchmarks.pipelines.inputs import photo_paths, photograph, stage

SOURCE = "https://github.com/eriklindernoren/Keras-GAN/blob/master/pix2pix/data_loader.py"
NEEDS = "tensorflow"
STAGES = {
    "imread": r"imread",
    "sketch": r"sketch",
    "jitter": r"jitter",
}

PHOTO = Image.fromarray(photograph())
READY = np.zeros((2, 128, 128, 3), "float32")


@stage(lambda path: PHOTO)
def imread(path: str) -> Any:
    return Image.open(path).convert("RGB")


@stage(lambda image: PHOTO)
def sketch(image: Any) -> Any:
    return image.filter(ImageFilter.FIND_EDGES)


@stage(lambda first, second: READY)
def jitter(first: Any, second: Any) -> Any:
    left, top = random.randrange(30), random.randrange(30)
    pair = [each.resize((158, 158)) for each in (first, second)]
    pair = [each.crop((left, top, left + 128, top + 128)) for each in pair]
    if random.random() < 0.5:
        pair = [each.transpose(Image.Transpose.FLIP_LEFT_RIGHT) for each in pair]
    return np.stack([np.asarray(each) for each in pair]).astype("float32") / 127.5 - 1


def load_batch() -> Any:
    paths = photo_paths()
    random.shuffle(paths)
    for path in paths:
        image = imread(path)
        yield jitter(image, sketch(image))


def make() -> Any:
    spec = tf.TensorSpec((2, 128, 128, 3), tf.float32)
    data = tf.data.Dataset.from_generator(load_batch, output_signature=spec)
    return data.repeat().batch(8).prefetch(tf.data.AUTOTUNE)
