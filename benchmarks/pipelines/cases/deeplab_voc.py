"""DeepLab's input: photographs and masks scaled, padded, cropped and flipped by one reader each."""

from typing import Any

import tensorflow as tf

from benchmarks.pipelines.inputs import photo_records, photograph, stage

SOURCE = (
    "https://github.com/tensorflow/models/blob/master/research/deeplab/datasets/data_generator.py"
)
NEEDS = "tensorflow"
STAGES = {
    "parse_function": r"parse_function",
    "preprocess_image": r"preprocess_image",
}

CROP, READERS = 321, 1
PHOTO = tf.constant(photograph())
LABEL = tf.zeros((*PHOTO.shape[:2], 1), tf.int32)
READY = tf.zeros((CROP, CROP, 3)), tf.zeros((CROP, CROP, 1), tf.int32)


@stage(lambda record: (PHOTO, LABEL))
def parse_function(record: Any) -> Any:
    found = tf.io.parse_single_example(record, {"image": tf.io.FixedLenFeature([], tf.string)})
    image = tf.image.decode_jpeg(found["image"], 3)
    return image, tf.cast(image[..., :1] // 16, tf.int32)


@stage(lambda image, label: READY)
def preprocess_image(image: Any, label: Any) -> Any:
    scale = 0.5 + 0.25 * tf.cast(tf.random.uniform([], 0, 7, tf.int32), tf.float32)
    size = tf.cast(tf.cast(tf.shape(image)[:2], tf.float32) * scale, tf.int32)
    image = tf.image.resize(tf.cast(image, tf.float32), size)
    label = tf.image.resize(label, size, "nearest")
    wanted = tf.maximum(size, CROP)
    both = tf.concat([image - 127.5, tf.cast(label, tf.float32) - 255], -1)
    both = tf.image.pad_to_bounding_box(both, 0, 0, wanted[0], wanted[1])
    both = tf.image.random_flip_left_right(tf.image.random_crop(both, (CROP, CROP, 4)))
    return both[..., :3] + 127.5, tf.cast(both[..., 3:] + 255, tf.int32)


def make() -> Any:
    data = tf.data.TFRecordDataset(photo_records(), num_parallel_reads=READERS)
    data = data.map(parse_function, num_parallel_calls=READERS)
    data = data.map(preprocess_image, num_parallel_calls=READERS)
    return data.shuffle(50).repeat().batch(8).prefetch(8)
