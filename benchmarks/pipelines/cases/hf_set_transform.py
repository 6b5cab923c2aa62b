"""A Hugging Face data set of image bytes with a transform at access, in a DataLoader."""

import io
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from PIL import Image

from benchmarks.pipelines.inputs import photo_paths, photograph, stage

SOURCE = "https://huggingface.co/docs/datasets/image_process"
NEEDS = "datasets"
STAGES = {
    "decode": r"decode",
    "pixels": r"pixels",
}


PHOTO = Image.fromarray(photograph())
SMALL = np.zeros((3, 96, 96), "float32")


@stage(lambda content: PHOTO)
def decode(content: bytes) -> Any:
    return Image.open(io.BytesIO(content)).convert("RGB")


@stage(lambda image: SMALL)
def pixels(image: Any) -> Any:
    small = image.resize((96, 96), Image.Resampling.BICUBIC)
    return np.asarray(small, "float32").transpose(2, 0, 1) / 255.0


def transforms(examples: Any) -> Any:
    return {"pixel_values": [pixels(decode(each)) for each in examples["image"]]}


def make() -> Any:
    data = datasets.Dataset.from_dict({"image": [Path(p).read_bytes() for p in photo_paths()]})
    data.set_transform(transforms)
    return torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
