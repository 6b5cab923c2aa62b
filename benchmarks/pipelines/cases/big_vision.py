"""ImageNet for big_vision: decode, Inception crop, flip, value range."""

from typing import Any

import tensorflow as tf

from benchmarks.pipelines.inputs import photo_paths, photograph, stage

SOURCE = "https://github.com/google-research/big_vision/blob/main/big_vision/input_pipeline.py"
NEEDS = "tensorflow"
STAGES = {
    "decode": r"decode",
    "inception_crop": r"inception_crop",
    "flip_and_scale": r"flip_and_scale",
}


PHOTO = tf.constant(photograph())
CROP = tf.constant(photograph(0, 224, 224), tf.float32)


@stage(lambda path: PHOTO)
def decode(path: Any) -> Any:
    return tf.io.decode_jpeg(tf.io.read_file(path), channels=3)


@stage(lambda image: CROP)
def inception_crop(image: Any) -> Any:
    begin, size, _ = tf.image.sample_distorted_bounding_box(
        tf.shape(image), tf.zeros((0, 0, 4)), area_range=(0.05, 1.0), min_object_covered=0,
        use_image_if_no_bounding_boxes=True,
    )  # fmt: skip
    crop = tf.slice(image, begin, size)
    crop.set_shape((None, None, 3))
    return tf.image.resize(crop, (224, 224))


@stage(lambda image: CROP)
def flip_and_scale(image: Any) -> Any:
    return tf.image.random_flip_left_right(image) / 127.5 - 1.0


def make() -> Any:
    data = tf.data.Dataset.from_tensor_slices(photo_paths()).shuffle(64).repeat()
    data = data.map(decode, num_parallel_calls=tf.data.AUTOTUNE)
    data = data.map(inception_crop, num_parallel_calls=tf.data.AUTOTUNE)
    data = data.map(flip_and_scale, num_parallel_calls=tf.data.AUTOTUNE)
    return data.batch(32, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
