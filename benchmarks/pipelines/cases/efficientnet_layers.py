"""Photographs resized and batched, then augmented by Keras layers in a map over batches."""

from typing import Any

import keras
import tensorflow as tf

from benchmarks.pipelines.inputs import photo_paths, stage

SOURCE = "https://keras.io/examples/vision/image_classification_efficientnet_fine_tuning/"
NEEDS = "tensorflow"
STAGES = {
    "load": r"load",
    "img_augmentation": r"img_augmentation",
}

SIZE, BATCH = 128, 16
LAYERS = [
    keras.layers.RandomRotation(factor=0.15),
    keras.layers.RandomTranslation(height_factor=0.1, width_factor=0.1),
    keras.layers.RandomFlip(),
    keras.layers.RandomContrast(factor=0.1),
]
PHOTO = tf.zeros((SIZE, SIZE, 3))


@stage(lambda path, label: (PHOTO, label))
def load(path: Any, label: Any) -> Any:
    image = tf.image.decode_jpeg(tf.io.read_file(path), 3)
    return tf.image.resize(image, (SIZE, SIZE)), label


@stage(lambda images, labels: (images, labels))
def img_augmentation(images: Any, labels: Any) -> Any:
    for layer in LAYERS:
        images = layer(images)
    return images, labels


def make() -> Any:
    paths = photo_paths()
    data = tf.data.Dataset.from_tensor_slices((paths, [i % 4 for i in range(len(paths))]))
    data = data.shuffle(64).map(load, num_parallel_calls=tf.data.AUTOTUNE)
    data = data.batch(BATCH, drop_remainder=True)
    data = data.map(img_augmentation, num_parallel_calls=tf.data.AUTOTUNE)
    return data.prefetch(tf.data.AUTOTUNE)
