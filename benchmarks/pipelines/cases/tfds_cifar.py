"""CIFAR-10 as TensorFlow Datasets reads it: shards interleaved, PNGs decoded, no cache."""

from typing import Any

import tensorflow as tf

from benchmarks.pipelines.inputs import photograph, small_records, stage

SOURCE = "https://www.tensorflow.org/datasets/keras_example"
NEEDS = "tensorflow"
STAGES = {
    "parse": r"parse",
    "decode": r"decode",
    "normalize_img": r"normalize_img",
}


CONTENT = tf.io.encode_png(photograph(0, 32, 32))
SMALL = tf.constant(photograph(0, 32, 32))


@stage(lambda record: (CONTENT, tf.constant(1, tf.int64)))
def parse(record: Any) -> Any:
    features = {
        "image": tf.io.FixedLenFeature((), tf.string),
        "label": tf.io.FixedLenFeature((), tf.int64),
    }
    found = tf.io.parse_single_example(record, features)
    return found["image"], found["label"]


@stage(lambda content, label: (SMALL, label))
def decode(content: Any, label: Any) -> Any:
    return tf.image.decode_png(content, channels=3), label


@stage(lambda image, label: (tf.cast(SMALL, tf.float32), label))
def normalize_img(image: Any, label: Any) -> Any:
    return tf.cast(image, tf.float32) / 255.0, label


def make() -> Any:
    data = tf.data.Dataset.from_tensor_slices(small_records())
    data = data.interleave(tf.data.TFRecordDataset, num_parallel_calls=tf.data.AUTOTUNE)
    data = data.map(parse, tf.data.AUTOTUNE).map(decode, tf.data.AUTOTUNE)
    data = data.map(normalize_img, num_parallel_calls=tf.data.AUTOTUNE)
    return data.shuffle(1000).batch(128).prefetch(tf.data.AUTOTUNE)
