"""Photographs zipped with trimaps that are decoded too, flipped together."""

from typing import Any

import tensorflow as tf

from benchmarks.pipelines.inputs import photo_paths, photograph, stage

SOURCE = "https://keras.io/examples/vision/oxford_pets_image_segmentation/"
NEEDS = "tensorflow"
STAGES = {
    "load_image": r"load_image",
    "load_mask": r"load_mask",
    "flip": r"flip",
}

PHOTO = tf.constant(photograph(0, 128, 128), tf.float32)
MASK = PHOTO[..., :1]
AUTOTUNE = tf.data.AUTOTUNE


@stage(lambda path: PHOTO)
def load_image(path: Any) -> Any:
    image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
    return tf.image.resize(image, (128, 128), antialias=True) / 255.0


@stage(lambda path: MASK)
def load_mask(path: Any) -> Any:
    mask = tf.io.decode_jpeg(tf.io.read_file(path), channels=1)
    return tf.image.resize(mask, (128, 128), method="nearest")


@stage(lambda image, mask: (image, mask))
def flip(image: Any, mask: Any) -> Any:
    both = tf.image.random_flip_left_right(tf.concat([image, tf.cast(mask, tf.float32)], -1))
    return both[..., :3], both[..., 3:]


def make() -> Any:
    paths = tf.data.Dataset.from_tensor_slices(photo_paths())
    data = tf.data.Dataset.zip((paths.map(load_image, AUTOTUNE), paths.map(load_mask, AUTOTUNE)))
    return data.shuffle(16).map(flip).batch(16).repeat().prefetch(AUTOTUNE)
