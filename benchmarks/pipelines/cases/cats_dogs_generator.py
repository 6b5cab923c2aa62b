"""Keras's ImageDataGenerator over two folders: sheared, zoomed and flipped, a program that fits."""

from typing import Any

import tensorflow as tf
from keras.src.utils import image_utils
from PIL import Image

from benchmarks.pipelines.inputs import is_left_out, photo_folder, photograph

SOURCE = "https://gist.github.com/fchollet/0830affa1f7f19fd47b06d4cf89ed44d"
NEEDS = "keras"
STAGES = {
    "load_img": r"load_img",
    "apply_transform": r"apply_transform|random_transform|affine",
    "standardize": r"standardize",
}
IS_PROGRAM = True

PHOTO = Image.fromarray(photograph(0, 150, 150))
LOAD = vars(image_utils).setdefault("kept_load_img", image_utils.load_img)
image_utils.load_img = (lambda *args, **kwargs: PHOTO.copy()) if is_left_out("load_img") else LOAD
Generator = tf.keras.preprocessing.image.ImageDataGenerator


class WithoutTransform(Generator):  # type: ignore[misc, valid-type]
    def apply_transform(self, x: Any, transform_parameters: Any) -> Any:
        return x


class WithoutStandardize(Generator):  # type: ignore[misc, valid-type]
    def standardize(self, x: Any) -> Any:
        return x


def make() -> Any:
    kind = WithoutTransform if is_left_out("apply_transform") else Generator
    kind = WithoutStandardize if is_left_out("standardize") else kind
    train = kind(rescale=1.0 / 255, shear_range=0.2, zoom_range=0.2, horizontal_flip=True)
    return train.flow_from_directory(
        photo_folder(), target_size=(150, 150), batch_size=16, class_mode="binary",
        classes=["class_0", "class_1"],
    )  # fmt: skip


if __name__ == "__main__":
    from keras import Input, Sequential, layers

    model = Sequential([Input((150, 150, 3))])
    for each in (layers.Conv2D(8, 3, strides=4), layers.Flatten(), layers.Dense(1, "sigmoid")):
        model.add(each)
    model.compile(loss="binary_crossentropy", optimizer="rmsprop", metrics=["accuracy"])
    model.fit(make(), epochs=10_000, verbose=0)
