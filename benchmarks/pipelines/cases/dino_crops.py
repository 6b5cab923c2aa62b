"""Global and local crops, blurred and solarised with Pillow, in py_function."""

import io
import random
from typing import Any

import numpy as np
import tensorflow as tf
from PIL import Image, ImageFilter, ImageOps

from benchmarks.pipelines.inputs import photo_paths, photograph, stage

SOURCE = "https://github.com/facebookresearch/dino/blob/main/main_dino.py"
NEEDS = "tensorflow"
STAGES = {
    "open_image": r"open_image",
    "crop": r"crop",
    "blur": r"blur",
}

PHOTO = Image.fromarray(photograph())
PART = Image.fromarray(photograph(0, 96, 96))


@stage(lambda content: PHOTO)
def open_image(content: bytes) -> Any:
    return Image.open(io.BytesIO(content)).convert("RGB")


@stage(lambda image, low: PART)
def crop(image: Any, low: float) -> Any:
    share = random.uniform(low, 1.0)
    width, height = int(image.width * share), int(image.height * share)
    left, top = random.randint(0, image.width - width), random.randint(0, image.height - height)
    box = (left, top, left + width, top + height)
    return image.resize((96, 96), Image.Resampling.BICUBIC, box)


@stage(lambda image: PART)
def blur(image: Any) -> Any:
    image = image.filter(ImageFilter.GaussianBlur(random.uniform(0.5, 2.0)))
    return ImageOps.solarize(image) if random.random() < 0.2 else image


def views(content: Any) -> Any:
    image = open_image(content.numpy())
    crops = [crop(image, low) for low in (0.4, 0.4, 0.1, 0.1, 0.1, 0.1)]
    return np.stack([np.asarray(blur(each)) for each in crops])


def make() -> Any:
    data = tf.data.Dataset.from_tensor_slices(photo_paths()).repeat().map(tf.io.read_file)
    data = data.map(lambda content: tf.py_function(views, [content], tf.uint8), 2)
    return data.batch(8).prefetch(1)
