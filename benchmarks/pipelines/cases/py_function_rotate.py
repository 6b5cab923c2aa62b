"""Random rotation with SciPy through tf.py_function, after a decode in TensorFlow."""

from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.pipelines.inputs import photo_paths, photograph, stage

SOURCE = "https://www.tensorflow.org/guide/data#applying_arbitrary_python_logic"
NEEDS = "tensorflow"
STAGES = {
    "decode": r"decode",
    "rotate": r"rotate",
}


SMALL = tf.constant(photograph(0, 128, 128), tf.float32)


@stage(lambda path: SMALL)
def decode(path: Any) -> Any:
    image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
    return tf.image.resize(image, (128, 128))


def random_rotate(image: Any) -> Any:
    import scipy.ndimage

    return scipy.ndimage.rotate(image, np.random.uniform(-30, 30), reshape=False)


@stage(lambda image: image)
def rotate(image: Any) -> Any:
    return tf.ensure_shape(tf.py_function(random_rotate, [image], tf.float32), (128, 128, 3))


def make() -> Any:
    data = tf.data.Dataset.from_tensor_slices(photo_paths()).shuffle(64)
    data = data.map(decode, num_parallel_calls=tf.data.AUTOTUNE)
    return data.map(rotate, num_parallel_calls=2).batch(16).prefetch(2)
