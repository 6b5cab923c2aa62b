"""Small pictures cached, shuffled in a large buffer, cut out and mixed up as batches."""

from typing import Any

import tensorflow as tf

from benchmarks.pipelines.inputs import small_records, stage

SOURCE = "https://keras.io/examples/vision/cutmix/"
NEEDS = "tensorflow"
STAGES = {
    "parse": r"parse",
    "distort": r"distort",
    "mix_up": r"mix_up",
}

SMALL = tf.zeros((32, 32, 3))


@stage(lambda record: SMALL)
def parse(record: Any) -> Any:
    found = tf.io.parse_single_example(record, {"image": tf.io.FixedLenFeature([], tf.string)})
    return tf.cast(tf.io.decode_png(found["image"], channels=3), tf.float32) / 255.0


@stage(lambda image: SMALL)
def distort(image: Any) -> Any:
    image = tf.image.resize_with_crop_or_pad(image, 40, 40)
    image = tf.image.random_crop(image, (32, 32, 3))
    return tf.image.random_flip_left_right(tf.image.adjust_hue(image, 0.1))


@stage(lambda images: images)
def mix_up(images: Any) -> Any:
    share = tf.random.uniform((tf.shape(images)[0], 1, 1, 1))
    return share * images + (1 - share) * tf.random.shuffle(images)


def make() -> Any:
    data = tf.data.TFRecordDataset(small_records()).map(parse).cache()
    data = data.shuffle(2048).map(distort, tf.data.AUTOTUNE)
    return data.batch(128).map(mix_up, tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
