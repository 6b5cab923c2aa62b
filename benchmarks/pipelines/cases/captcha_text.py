"""Lines of text drawn with Pillow, distorted and encoded in a generator, padded batches."""

import random
from typing import Any

import numpy as np
import tensorflow as tf
from PIL import Image, ImageDraw

from benchmarks.pipelines.inputs import sentences, stage

SOURCE = "https://github.com/Belval/TextRecognitionDataGenerator"
NEEDS = "tensorflow"
STAGES = {
    "draw_text": r"draw_text",
    "distort": r"distort",
    "encode": r"encode",
}

DRAWN = Image.new("L", (400, 32), 255)
ARRAY = np.zeros((32, 400), "float32")
CODES = np.zeros(40, "int32")


@stage(lambda text: DRAWN)
def draw_text(text: str) -> Any:
    image = Image.new("L", (400, 32), 255)
    ImageDraw.Draw(image).text((4, 8), text, fill=random.randrange(100))
    return image


@stage(lambda image: ARRAY)
def distort(image: Any) -> Any:
    pixels = np.asarray(
        image.rotate(random.uniform(-2, 2), Image.Resampling.BICUBIC, fillcolor=255)
    )
    shift = (4 * np.sin(np.arange(400) / 20 + random.random() * 6)).astype(int)
    moved = np.stack([np.roll(pixels[:, i], shift[i]) for i in range(400)], axis=1)
    return (moved / 255 + np.random.normal(0, 0.05, moved.shape)).astype("float32")


@stage(lambda text: CODES)
def encode(text: str) -> Any:
    return np.array([ord(letter) - 32 for letter in text], "int32")


def generate() -> Any:
    with open(sentences()) as file:
        for line in file:
            text = line[: random.randrange(20, 60)]
            yield distort(draw_text(text)), encode(text)


def make() -> Any:
    spec = (tf.TensorSpec((32, 400), tf.float32), tf.TensorSpec((None,), tf.int32))
    data = tf.data.Dataset.from_generator(generate, output_signature=spec)
    return data.padded_batch(32).prefetch(2)
