"""Two data sets, one of photographs and one of small PNGs, sampled by weight."""

from typing import Any

import tensorflow as tf

from benchmarks.pipelines.inputs import photo_paths, photograph, small_records, stage

SOURCE = "https://www.tensorflow.org/guide/data#rejection_resampling"
NEEDS = "tensorflow"
STAGES = {
    "load_photo": r"load_photo",
    "load_icon": r"load_icon",
    "augment": r"augment",
}

SMALL = tf.constant(photograph(0, 96, 96), tf.float32)
AUTOTUNE = tf.data.AUTOTUNE


@stage(lambda path: SMALL)
def load_photo(path: Any) -> Any:
    image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
    return tf.image.resize(image, (96, 96))


@stage(lambda record: SMALL)
def load_icon(record: Any) -> Any:
    found = tf.io.parse_single_example(record, {"image": tf.io.FixedLenFeature([], tf.string)})
    return tf.image.resize(tf.io.decode_png(found["image"], channels=3), (96, 96))


@stage(lambda image: image)
def augment(image: Any) -> Any:
    image = tf.image.random_flip_left_right(tf.image.random_brightness(image, 20.0))
    image = tf.image.random_hue(tf.image.random_saturation(image / 255.0, 0.6, 1.4), 0.1)
    return tf.image.random_contrast(image, 0.6, 1.4)


def make() -> Any:
    photos = tf.data.Dataset.from_tensor_slices(photo_paths()).shuffle(64).repeat()
    icons = tf.data.TFRecordDataset(small_records()).shuffle(64).repeat()
    parts = [photos.map(load_photo, AUTOTUNE), icons.map(load_icon, AUTOTUNE)]
    data = tf.data.Dataset.sample_from_datasets(parts, [0.3, 0.7])
    return data.map(augment, AUTOTUNE).batch(32).prefetch(AUTOTUNE)
