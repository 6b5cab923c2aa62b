"""Photographs and masks read with OpenCV and warped in a Keras PyDataset."""

from typing import Any

import cv2
import keras
import numpy as np

from benchmarks.pipelines.inputs import photo_paths, photograph, stage

SOURCE = "https://github.com/kevinkwshin/Keras/blob/master/datagenerator.py"
NEEDS = "cv2"
STAGES = {
    "data_generation": r"data_generation",
    "augment": r"augment|elastic",
}
IS_PROGRAM = True

cv2.setNumThreads(1)

PHOTO = cv2.resize(photograph(), (256, 256))
MASK = np.zeros((256, 256), "uint8")


@stage(lambda path: (PHOTO, MASK))
def data_generation(path: str) -> Any:
    image = cv2.resize(cv2.imread(path), (256, 256))
    return image, (cv2.cvtColor(image, cv2.COLOR_BGR2GRAY) > 127).astype("uint8")


def elastic(shape: Any) -> Any:
    noise = np.random.uniform(-1, 1, (2, *shape)).astype("float32")
    return [30 * cv2.GaussianBlur(each, (31, 31), 4) for each in noise]


@stage(lambda image, mask: (PHOTO, MASK))
def augment(image: Any, mask: Any) -> Any:
    dx, dy = elastic(mask.shape)
    x, y = np.meshgrid(np.arange(256, dtype="float32"), np.arange(256, dtype="float32"))
    moved = cv2.remap(image, x + dx, y + dy, cv2.INTER_LINEAR)
    return moved, cv2.remap(mask, x + dx, y + dy, cv2.INTER_NEAREST)


class DataGenerator(keras.utils.PyDataset):
    def __init__(self, paths: list[str]) -> None:
        super().__init__()
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths) // 8

    def __getitem__(self, index: int) -> Any:
        pairs = [augment(*data_generation(p)) for p in self.paths[index * 8 : index * 8 + 8]]
        return np.array([p[0] for p in pairs]), np.array([p[1] for p in pairs])[..., None] / 255


def make() -> Any:
    return DataGenerator(photo_paths())


if __name__ == "__main__":
    model = keras.Sequential([keras.layers.Conv2D(1, 1, strides=8), keras.layers.UpSampling2D(8)])
    model.compile("sgd", "mse")
    model.fit(make(), epochs=1000, verbose=0)
