"""An endless generator with augmentation in NumPy, in the loop's own thread."""

from typing import Any

import numpy as np

from benchmarks.pipelines.inputs import photograph, stage

SOURCE = "https://github.com/keras-team/keras-preprocessing/blob/master/keras_preprocessing/image/image_data_generator.py"
NEEDS = "numpy"
STAGES = {
    "affine": r"affine",
    "brightness": r"brightness",
}


IMAGES = np.stack([photograph(seed, 96, 96) for seed in range(32)])
READY = IMAGES[0].astype("float32")


@stage(lambda image: READY)
def affine(image: Any) -> Any:
    import scipy.ndimage

    angle = np.random.uniform(-0.3, 0.3)
    matrix = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    channels = [
        scipy.ndimage.affine_transform(image[..., c].astype("float32"), matrix, order=1)
        for c in range(3)
    ]
    return np.stack(channels, -1)


@stage(lambda image: READY)
def brightness(image: Any) -> Any:
    return np.clip(image * np.random.uniform(0.8, 1.2), 0, 255)


def make() -> Any:
    while True:
        chosen = np.random.randint(0, len(IMAGES), 16)
        yield np.stack([brightness(affine(IMAGES[i])) for i in chosen])
