"""Segmentation: image and mask resized and flipped in a map without parallel calls."""

from typing import Any

import tensorflow as tf

from benchmarks.pipelines.inputs import photo_paths, photograph, stage

SOURCE = "https://www.tensorflow.org/tutorials/images/segmentation"
NEEDS = "tensorflow"
STAGES = {
    "load_image": r"load_image",
    "augment": r"augment",
}


SMALL = tf.constant(photograph(0, 128, 128), tf.float32)


@stage(lambda path: (SMALL, SMALL[..., :1]))
def load_image(path: Any) -> Any:
    image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
    mask = tf.image.resize(image[..., :1], (128, 128), method="nearest")
    return tf.image.resize(image, (128, 128)) / 255.0, tf.cast(mask, tf.float32)


@stage(lambda image, mask: (image, mask))
def augment(image: Any, mask: Any) -> Any:
    both = tf.image.random_flip_left_right(tf.concat([image, mask], -1), seed=1)
    return both[..., :3], both[..., 3:]


def make() -> Any:
    options = tf.data.Options()
    options.experimental_optimization.map_parallelization = False
    data = tf.data.Dataset.from_tensor_slices(photo_paths()).repeat()
    data = data.map(load_image).map(augment).batch(16).prefetch(2)
    return data.with_options(options)
