"""Image classification from scratch: a folder per class, finite, layers in a map."""

from typing import Any

import keras
import tensorflow as tf

from benchmarks.pipelines.inputs import is_left_out, photo_folder, photograph, stage

SOURCE = "https://keras.io/examples/vision/image_classification_from_scratch/"
NEEDS = "tensorflow"
STAGES = {
    "read": r"image_dataset|load_image|path_to_image|<lambda>|lambda",
    "augment": r"augment",
}


IMAGES = tf.constant(photograph(0, 180, 180)[None].repeat(16, 0), tf.float32)
LAYERS = [keras.layers.RandomFlip("horizontal"), keras.layers.RandomRotation(0.1)]


@stage(lambda images, labels: (images, labels))
def augment(images: Any, labels: Any) -> Any:
    for layer in LAYERS:
        images = layer(images, training=True)
    return images, labels


def make() -> Any:
    if is_left_out("read"):
        data = tf.data.Dataset.from_tensors((IMAGES, tf.zeros(16, tf.int32))).repeat(4)
    else:
        data = keras.utils.image_dataset_from_directory(
            photo_folder(), image_size=(180, 180), batch_size=16, verbose=False
        )
    data = data.map(augment, num_parallel_calls=tf.data.AUTOTUNE)
    return data.prefetch(tf.data.AUTOTUNE)
