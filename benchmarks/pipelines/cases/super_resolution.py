"""Super-resolution: a folder of images without labels, luminance and a smaller one of it."""

from typing import Any

import keras
import tensorflow as tf

from benchmarks.pipelines.inputs import is_left_out, photo_folder, photograph, stage

SOURCE = "https://keras.io/examples/vision/super_resolution_sub_pixel/"
NEEDS = "tensorflow"
STAGES = {
    "read": r"image_dataset|load_image|path_to_image|lambda",
    "scaling": r"scaling",
    "process": r"process|rgb_to_yuv",
}

CROP, FACTOR = 300, 3
IMAGES = tf.constant(photograph(0, CROP, CROP)[None].repeat(8, 0), tf.float32)


@stage(lambda images: images)
def scaling(images: Any) -> Any:
    return images / 255.0


def process_input(images: Any) -> Any:
    y, _, _ = tf.split(tf.image.rgb_to_yuv(images), 3, axis=-1)
    return tf.image.resize(y, (CROP // FACTOR, CROP // FACTOR), method="area")


def process_target(images: Any) -> Any:
    y, _, _ = tf.split(tf.image.rgb_to_yuv(images), 3, axis=-1)
    return y


@stage(lambda images: (images[:, ::FACTOR, ::FACTOR, :1], images[..., :1]))
def process(images: Any) -> Any:
    return process_input(images), process_target(images)


def make() -> Any:
    if is_left_out("read"):
        data = tf.data.Dataset.from_tensors(IMAGES).repeat(7)
    else:
        data = keras.utils.image_dataset_from_directory(
            photo_folder(), batch_size=8, image_size=(CROP, CROP), validation_split=0.2,
            subset="training", seed=1337, label_mode=None, verbose=False,
        )  # fmt: skip
    return data.map(scaling).map(process).prefetch(buffer_size=32)
