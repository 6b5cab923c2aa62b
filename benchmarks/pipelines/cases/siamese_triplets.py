"""Triplets of photographs, cut and coloured with NumPy, in a Keras PyDataset."""

import random
from typing import Any

import keras
import numpy as np
from PIL import Image

from benchmarks.pipelines.inputs import photo_paths, photograph, stage

SOURCE = "https://keras.io/examples/vision/siamese_network/"
NEEDS = "keras"
STAGES = {
    "load": r"load|decode",
    "colour_jitter": r"colour_jitter",
    "cut_out": r"cut_out",
}
IS_PROGRAM = True

PHOTO = photograph(0, 160, 160)
READY = np.zeros((160, 160, 3), "float32")


@stage(lambda path: PHOTO)
def load(path: str) -> Any:
    image = Image.open(path)
    image.draft("RGB", (250, 187))
    return np.asarray(image.resize((160, 160)))


@stage(lambda image: READY)
def colour_jitter(image: Any) -> Any:
    image = image.astype("float32") / 255
    grey = image @ np.array([0.3, 0.59, 0.11], "float32")
    image = image + random.uniform(-0.4, 0.4) * (image - grey[..., None])
    image = (image - image.mean()) * random.uniform(0.6, 1.4) + image.mean()
    return np.clip(image, 0, 1) ** random.uniform(0.8, 1.2)


@stage(lambda image: image)
def cut_out(image: Any) -> Any:
    x, y = random.randrange(120), random.randrange(120)
    image[y : y + 40, x : x + 40] = 0
    return image


class Triplets(keras.utils.PyDataset):
    def __init__(self, paths: list[str]) -> None:
        super().__init__(workers=2)
        self.paths = paths

    def __len__(self) -> int:
        return 50

    def __getitem__(self, index: int) -> Any:
        rows = [random.choices(self.paths, k=3) for _ in range(4)]
        images = [[cut_out(colour_jitter(load(path))) for path in row] for row in rows]
        return np.stack(images), np.zeros(4)


def make() -> Any:
    return Triplets(photo_paths())


if __name__ == "__main__":
    model = keras.Sequential([keras.layers.GlobalAveragePooling3D(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(make(), epochs=1000, verbose=0)
