"""TF models' classification input: TFRecords interleaved, random crop, standardized."""

from typing import Any

import tensorflow as tf

from benchmarks.pipelines.inputs import photo_paths, photo_records, photograph, stage

SOURCE = "https://github.com/tensorflow/models/blob/master/official/vision/dataloaders/classification_input.py"
NEEDS = "tensorflow"
STAGES = {
    "decode": r"decode",
    "random_crop": r"random_crop",
    "normalize": r"normalize",
}


CONTENT = tf.io.read_file(photo_paths()[0])
PHOTO = tf.constant(photograph())
IMAGE = tf.constant(photograph(0, 224, 224), tf.float32)


@stage(lambda record: (CONTENT, tf.constant(1, tf.int64)))
def parse(record: Any) -> Any:
    features = {
        "image": tf.io.FixedLenFeature((), tf.string),
        "label": tf.io.FixedLenFeature((), tf.int64),
    }
    found = tf.io.parse_single_example(record, features)
    return found["image"], found["label"]


@stage(lambda content, label: (PHOTO, label))
def decode(content: Any, label: Any) -> Any:
    return tf.image.decode_image(content, channels=3, expand_animations=False), label


@stage(lambda image, label: (IMAGE, label))
def random_crop(image: Any, label: Any) -> Any:
    image = tf.image.random_flip_left_right(image)
    image = tf.image.random_crop(image, (320, 320, 3))
    return tf.image.resize(image, (224, 224)), label


@stage(lambda image, label: (IMAGE, label))
def normalize(image: Any, label: Any) -> Any:
    return tf.image.per_image_standardization(image), label


def make() -> Any:
    data = tf.data.Dataset.from_tensor_slices(photo_records()).shuffle(4).repeat()
    data = data.interleave(
        lambda file: tf.data.TFRecordDataset(file), cycle_length=4, num_parallel_calls=4
    )
    data = data.shuffle(64)
    for function in (parse, decode, random_crop, normalize):
        data = data.map(function, num_parallel_calls=tf.data.AUTOTUNE)
    return data.batch(16, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
