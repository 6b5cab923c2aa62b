"""Rows of a driving log from pandas, frames shifted and darkened by OpenCV, endless."""

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pandas as pd
from PIL import Image

from benchmarks.pipelines.inputs import _encoded, _made, photograph, stage

SOURCE = "https://github.com/naokishibuya/car-behavioral-cloning/blob/master/utils.py"
NEEDS = "pandas"
STAGES = {
    "load_image": r"load_image|imread|decode",
    "augment": r"augment|random_flip|random_translate|random_brightness",
    "preprocess": r"preprocess|crop|rgb2yuv",
}


def write_drive(place: Path) -> None:
    """A log of 150 moments with a frame of each of three cameras."""
    place.mkdir()
    rows = ["center,left,right,steering"]
    for index in range(150):
        if index % 15 == 0:
            picture = photograph(index, 160, 320)
        names = [f"{side}_{index}.jpg" for side in ("center", "left", "right")]
        for shift, name in enumerate(names):
            (place / name).write_bytes(_encoded(np.roll(picture, 9 * index + 20 * shift, 1)))
        rows.append(", ".join([*names, f"{np.sin(index):.4f}"]))
    (place / "driving_log.csv").write_text("\n".join(rows))


DRIVE = _made("drive", write_drive)
FRAME = photograph(0, 160, 320)
READY = photograph(0, 66, 200)


@stage(lambda name: FRAME)
def load_image(name: str) -> Any:
    return np.asarray(Image.open(DRIVE / name.strip()))


@stage(lambda image, steering: (image, steering))
def augment(image: Any, steering: float) -> Any:
    if np.random.rand() < 0.5:
        image, steering = cv2.flip(image, 1), -steering
    x, y = 100 * (np.random.rand() - 0.5), 10 * (np.random.rand() - 0.5)
    moved = np.array([[1, 0, x], [0, 1, y]], "float32")
    image = cv2.warpAffine(image, moved, image.shape[1::-1])
    hsv = cv2.cvtColor(image, cv2.COLOR_RGB2HSV)
    hsv[:, :, 2] = hsv[:, :, 2] * (1.0 + 0.4 * (np.random.rand() - 0.5))
    return cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB), steering + x * 0.002


@stage(lambda image: READY)
def preprocess(image: Any) -> Any:
    image = cv2.resize(image[60:-25], (200, 66), interpolation=cv2.INTER_AREA)
    return cv2.cvtColor(image, cv2.COLOR_RGB2YUV)


def make() -> Any:
    log = pd.read_csv(DRIVE / "driving_log.csv")
    paths, angles = log[["center", "left", "right"]].values, log["steering"].values
    images, steers = np.empty((40, 66, 200, 3)), np.empty(40)
    while True:
        for i, index in enumerate(np.random.permutation(len(paths))[:40]):
            steering = angles[index]
            if np.random.rand() < 0.6:
                choice = np.random.choice(3)
                steering += (0.0, 0.2, -0.2)[choice]
                image, steering = augment(load_image(paths[index][choice]), steering)
            else:
                image = load_image(paths[index][0])
            images[i], steers[i] = preprocess(image), steering
        yield images, steers
