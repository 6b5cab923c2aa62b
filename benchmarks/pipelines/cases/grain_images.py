"""Grain's map data set: decode and resize with Pillow in threads."""

from typing import Any

import grain
import numpy as np
from PIL import Image

from benchmarks.pipelines.inputs import photo_paths, photograph, stage

SOURCE = "https://google-grain.readthedocs.io/en/latest/tutorials/dataset_basic_tutorial.html"
NEEDS = "grain"
STAGES = {
    "decode": r"decode",
    "resize": r"resize",
    "normalize": r"normalize",
}


PHOTO = Image.fromarray(photograph())
SMALL = PHOTO.resize((224, 224))
ARRAY = np.zeros((224, 224, 3), "float32")


@stage(lambda path: PHOTO)
def decode(path: str) -> Any:
    return Image.open(path).convert("RGB")


@stage(lambda image: SMALL)
def resize(image: Any) -> Any:
    return image.resize((224, 224), Image.Resampling.BICUBIC)


@stage(lambda image: ARRAY)
def normalize(image: Any) -> Any:
    return (np.asarray(image, "float32") - 127.5) / 127.5


def make() -> Any:
    data = grain.MapDataset.source(photo_paths()).shuffle(seed=0).repeat()
    data = data.map(decode).map(resize).map(normalize).batch(16)
    return data.to_iter_dataset(grain.ReadOptions(num_threads=8))
