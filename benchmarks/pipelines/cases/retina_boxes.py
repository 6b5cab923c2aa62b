"""Boxes matched with anchors in py_function after the decode and the resize in TensorFlow."""

from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.pipelines.inputs import photo_paths, photograph, stage

SOURCE = "https://keras.io/examples/vision/retinanet/"
NEEDS = "tensorflow"
STAGES = {
    "decode": r"decode",
    "match": r"match|overlaps|offsets",
    "flip": r"flip",
}

PHOTO = tf.constant(photograph(0, 128, 128), tf.float32)
CORNERS = np.stack(np.meshgrid(np.arange(0, 128, 4), np.arange(0, 128, 4)), -1).reshape(-1, 2)
ANCHORS = np.concatenate([np.concatenate([CORNERS, CORNERS + s], 1) for s in (16, 32, 64)])
ANCHORS = ANCHORS.astype("float32")
READY = np.zeros((len(ANCHORS), 5), "float32")


@stage(lambda path: PHOTO)
def decode(path: Any) -> Any:
    image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
    return tf.image.resize(image, (128, 128))


def overlaps(boxes: Any) -> Any:
    low = np.maximum(ANCHORS[:, None, :2], boxes[None, :, :2])
    high = np.minimum(ANCHORS[:, None, 2:], boxes[None, :, 2:])
    shared = np.prod(np.clip(high - low, 0, None), -1)
    areas = np.prod(ANCHORS[:, 2:] - ANCHORS[:, :2], -1)[:, None]
    return shared / (areas + np.prod(boxes[:, 2:] - boxes[:, :2], -1) - shared)


def offsets(boxes: Any) -> Any:
    size = ANCHORS[:, 2:] - ANCHORS[:, :2]
    moved = (boxes[:, :2] - ANCHORS[:, :2]) / size
    return np.concatenate([moved, np.log((boxes[:, 2:] - boxes[:, :2]) / size)], 1)


@stage(lambda seed: READY)
def match(seed: Any) -> Any:
    corners = np.random.uniform(0, 90, (20, 2))
    boxes = np.concatenate([corners, corners + np.random.uniform(8, 38, (20, 2))], 1)
    shared = overlaps(boxes.astype("float32"))
    best = shared.argmax(1)
    found = np.concatenate([offsets(boxes[best]), shared.max(1, keepdims=True) > 0.5], 1)
    return found.astype("float32")


@stage(lambda image: image)
def flip(image: Any) -> Any:
    return tf.image.random_flip_left_right(image)


def add_boxes(image: Any) -> Any:
    found = tf.numpy_function(match, [tf.constant(0)], tf.float32)
    return image, tf.ensure_shape(found, (len(ANCHORS), 5))


def make() -> Any:
    data = tf.data.Dataset.from_tensor_slices(photo_paths()).shuffle(64)
    data = data.map(decode, num_parallel_calls=tf.data.AUTOTUNE).map(flip)
    data = data.map(add_boxes, num_parallel_calls=tf.data.AUTOTUNE)
    return data.batch(8, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
