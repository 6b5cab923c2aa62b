"""A Keras PyDataset that reads and resizes with scikit-image."""

import math
from typing import Any

import keras
import numpy as np
import skimage.io
import skimage.transform

from benchmarks.pipelines.inputs import photo_paths, photograph, stage

SOURCE = "https://keras.io/api/data_loading/python_dataset/"
NEEDS = "keras"
STAGES = {
    "imread": r"imread|decode",
    "resize": r"resize",
}
IS_PROGRAM = True


PHOTO = photograph()
SMALL = np.zeros((128, 128, 3))


@stage(lambda path: PHOTO)
def imread(path: str) -> Any:
    return skimage.io.imread(path)


@stage(lambda image: SMALL)
def resize(image: Any) -> Any:
    return skimage.transform.resize(image, (128, 128))


class CIFAR10PyDataset(keras.utils.PyDataset):
    def __init__(self, paths: list[str], batch_size: int) -> None:
        super().__init__()
        self.paths, self.batch_size = paths, batch_size

    def __len__(self) -> int:
        return math.ceil(len(self.paths) / self.batch_size)

    def __getitem__(self, index: int) -> Any:
        paths = self.paths[index * self.batch_size : (index + 1) * self.batch_size]
        return np.array([resize(imread(path)) for path in paths]), np.zeros(len(paths))


def make() -> Any:
    return CIFAR10PyDataset(photo_paths(), 8)


if __name__ == "__main__":
    model = keras.Sequential(
        [keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(1, activation="sigmoid")]
    )
    model.compile("sgd", "binary_crossentropy")
    model.fit(make(), epochs=1000, verbose=0)
