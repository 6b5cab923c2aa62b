"""YOLOv5's mosaics: four images read with OpenCV, put together, warped, colours shifted."""

import random
from typing import Any

import cv2
import numpy as np
import torch

from benchmarks.pipelines.inputs import photo_paths, photograph, stage

SOURCE = "https://github.com/ultralytics/yolov5/blob/master/utils/dataloaders.py"
NEEDS = "cv2"
STAGES = {
    "load_image": r"load_image",
    "random_perspective": r"random_perspective",
    "augment_hsv": r"augment_hsv",
}


cv2.setNumThreads(0)
torch.set_num_threads(1)
SIZE = 320
SMALL = photograph(0, 240, SIZE)
IMAGE = photograph(0, SIZE, SIZE)


@stage(lambda path: SMALL)
def load_image(path: str) -> Any:
    image = cv2.imread(path)
    ratio = SIZE / max(image.shape[:2])
    size = int(image.shape[1] * ratio), int(image.shape[0] * ratio)
    return cv2.resize(image, size, interpolation=cv2.INTER_LINEAR)


@stage(lambda image: IMAGE)
def random_perspective(image: Any) -> Any:
    turn = cv2.getRotationMatrix2D((SIZE, SIZE), random.uniform(-10, 10), random.uniform(0.5, 1.5))
    turn[:, 2] -= SIZE / 2
    return cv2.warpAffine(image, turn, (SIZE, SIZE), borderValue=(114, 114, 114))


@stage(lambda image: IMAGE)
def augment_hsv(image: Any) -> Any:
    gains = np.random.uniform(-1, 1, 3) * (0.015, 0.7, 0.4) + 1
    planes = cv2.split(cv2.cvtColor(image, cv2.COLOR_BGR2HSV))
    steps = np.arange(256)
    tables = [(steps * gains[0] % 180), (steps * gains[1]).clip(0, 255), steps * gains[2]]
    tables = [each.clip(0, 255).astype("uint8") for each in tables]
    found = cv2.merge([cv2.LUT(p, t) for p, t in zip(planes, tables, strict=True)])
    return cv2.cvtColor(found, cv2.COLOR_HSV2BGR)


class LoadImagesAndLabels(torch.utils.data.Dataset[Any]):
    def __init__(self) -> None:
        self.paths = photo_paths()

    def __len__(self) -> int:
        return len(self.paths)

    def load_mosaic(self, index: int) -> Any:
        canvas = np.full((2 * SIZE, 2 * SIZE, 3), 114, "uint8")
        corners = ((0, 0), (0, SIZE), (SIZE, 0), (SIZE, SIZE))
        for top, left in corners:
            image = load_image(self.paths[index])
            canvas[top : top + image.shape[0], left : left + image.shape[1]] = image
            index = random.randrange(len(self.paths))
        return random_perspective(canvas)

    def __getitem__(self, index: int) -> Any:
        image = augment_hsv(self.load_mosaic(index))
        return torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1)[::-1]))


def make() -> Any:
    return torch.utils.data.DataLoader(LoadImagesAndLabels(), batch_size=16, shuffle=True)
