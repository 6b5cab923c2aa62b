"""CenterNet: photographs warped with OpenCV and heat maps drawn for each box, in a PyDataset."""

import random
from typing import Any

import cv2
import keras
import numpy as np

from benchmarks.pipelines.inputs import photo_paths, photograph, stage

SOURCE = "https://github.com/xuannianz/keras-CenterNet/blob/master/generators/common.py"
NEEDS = "cv2"
STAGES = {
    "load_image": r"load_image",
    "warp": r"warp",
    "heat_maps": r"heat_maps|draw_gaussian",
}
IS_PROGRAM = True

cv2.setNumThreads(1)

INPUT, OUTPUT, CLASSES = 256, 64, 20
PHOTO = photograph()
MAPS = np.zeros((OUTPUT, OUTPUT, CLASSES), "float32")


@stage(lambda path: PHOTO)
def load_image(path: str) -> Any:
    return cv2.imread(path)


@stage(lambda image: np.zeros((INPUT, INPUT, 3), "float32"))
def warp(image: Any) -> Any:
    centre = (image.shape[1] / 2, image.shape[0] / 2)
    matrix = cv2.getRotationMatrix2D(centre, 0, INPUT / max(image.shape) * random.uniform(0.7, 1.3))
    matrix[:, 2] += INPUT / 2 - np.array(centre)
    return cv2.warpAffine(image, matrix, (INPUT, INPUT)).astype("float32") / 127.5 - 1


def draw_gaussian(heat: Any, x: int, y: int, radius: int) -> None:
    offsets = np.arange(-radius, radius + 1)
    shape = np.exp(-(offsets[:, None] ** 2 + offsets**2) / (2 * (radius / 3) ** 2))
    left, right = min(x, radius), min(OUTPUT - x, radius + 1)
    top, bottom = min(y, radius), min(OUTPUT - y, radius + 1)
    part = heat[y - top : y + bottom, x - left : x + right]
    np.maximum(part, shape[radius - top : radius + bottom, radius - left : radius + right], part)


@stage(lambda boxes: MAPS)
def heat_maps(boxes: Any) -> Any:
    found = MAPS.copy()
    for left, top, width, height, kind in boxes:
        radius = max(1, int(min(width, height) * 0.3))
        draw_gaussian(found[..., kind], left + width // 2, top + height // 2, radius)
    return found


class Generator(keras.utils.PyDataset):
    def __init__(self, paths: list[str], batch_size: int = 8) -> None:
        super().__init__()
        self.paths, self.batch_size = paths, batch_size
        draw = np.random.default_rng(0)
        self.boxes = [
            np.hstack([draw.integers(0, 40, (30, 2)), draw.integers(4, 40, (30, 2)),
                       draw.integers(0, CLASSES, (30, 1))]) for _ in paths
        ]  # fmt: skip
        for boxes in self.boxes:
            boxes[:, 2:4] = np.minimum(boxes[:, 2:4], OUTPUT - 1 - boxes[:, :2])

    def __len__(self) -> int:
        return len(self.paths) // self.batch_size

    def __getitem__(self, index: int) -> Any:
        group = range(index * self.batch_size, (index + 1) * self.batch_size)
        images = np.stack([warp(load_image(self.paths[i])) for i in group])
        return images, np.stack([heat_maps(self.boxes[i]) for i in group])

    def on_epoch_end(self) -> None:
        random.shuffle(self.paths)


def make() -> Any:
    return Generator(photo_paths())


if __name__ == "__main__":
    model = keras.Sequential([keras.layers.Conv2D(CLASSES, 1, strides=4)])
    model.compile("sgd", "mse")
    model.fit(make(), epochs=1000, verbose=0)
