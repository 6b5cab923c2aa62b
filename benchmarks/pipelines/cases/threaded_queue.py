"""Threads that decode photographs and fill a queue, as Keras 2 read generators."""

import queue
import threading
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.pipelines.inputs import photo_paths, photograph, stage

SOURCE = "https://github.com/keras-team/keras/blob/v2.15.0/keras/utils/data_utils.py"
NEEDS = "numpy"
STAGES = {
    "decode": r"decode",
    "shrink": r"shrink",
}


PHOTO = Image.fromarray(photograph())
SMALL = np.zeros((112, 112, 3), "uint8")


@stage(lambda path: PHOTO)
def decode(path: str) -> Any:
    return Image.open(path).convert("RGB")


@stage(lambda image: SMALL)
def shrink(image: Any) -> Any:
    return np.asarray(image.resize((112, 112)))


def make() -> Any:
    paths, ready = photo_paths(), queue.Queue(64)

    def fill(first: int) -> None:
        index = first
        while True:
            ready.put(shrink(decode(paths[index % len(paths)])))
            index += 4

    for first in range(4):
        threading.Thread(target=fill, args=(first,), daemon=True).start()
    while True:
        yield np.stack([ready.get() for _ in range(16)])
