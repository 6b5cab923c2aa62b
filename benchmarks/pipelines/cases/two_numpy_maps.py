"""Photographs decoded by TensorFlow, then two maps that call NumPy and OpenCV."""

from typing import Any

import cv2
import numpy as np
import tensorflow as tf

from benchmarks.pipelines.inputs import photo_paths, photograph, stage

SOURCE = "https://albumentations.ai/docs/integrations/tensorflow/"
NEEDS = "cv2"
STAGES = {
    "decode": r"decode",
    "denoise": r"denoise",
    "perspective": r"perspective",
}

PHOTO = photograph(0, 160, 160)


@stage(lambda path: tf.constant(PHOTO))
def decode(path: Any) -> Any:
    image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3, ratio=2)
    return tf.cast(tf.image.resize(image, (160, 160)), tf.uint8)


@stage(lambda image: PHOTO)
def denoise(image: Any) -> Any:
    noisy = np.clip(image + np.random.normal(0, 8, image.shape), 0, 255).astype("uint8")
    return cv2.bilateralFilter(noisy, 5, 40, 40)


@stage(lambda image: PHOTO)
def perspective(image: Any) -> Any:
    corners = np.array([[0, 0], [159, 0], [159, 159], [0, 159]], "float32")
    moved = corners + np.random.uniform(-20, 20, (4, 2)).astype("float32")
    return cv2.warpPerspective(image, cv2.getPerspectiveTransform(corners, moved), (160, 160))


def make() -> Any:
    cv2.setNumThreads(1)
    data = tf.data.Dataset.from_tensor_slices(photo_paths()).repeat()
    data = data.map(decode, num_parallel_calls=2)
    data = data.map(lambda image: tf.numpy_function(perspective, [image], tf.uint8), 2)
    data = data.map(lambda image: tf.numpy_function(denoise, [image], tf.uint8), 2)
    return data.batch(8).prefetch(2)
