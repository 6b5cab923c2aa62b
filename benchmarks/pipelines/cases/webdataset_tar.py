"""Tar shards of webdataset: decode with Pillow, resize and scale in a function, one process."""

from typing import Any

import numpy as np
import webdataset
from PIL import Image

from benchmarks.pipelines.inputs import is_left_out, photograph, stage, tar_shards

SOURCE = "https://github.com/webdataset/webdataset/blob/main/examples/train-resnet50-wds.ipynb"
NEEDS = "webdataset"
STAGES = {
    "decode": r"decode|imagehandler|load",
    "preprocess": r"preprocess",
}


PHOTO = Image.fromarray(photograph())
ARRAY = np.zeros((3, 128, 128), "float32")


@stage(lambda image: ARRAY)
def preprocess(image: Any) -> Any:
    small = np.asarray(image.resize((128, 128)), "float32") / 255.0
    return ((small - 0.45) / 0.225).transpose(2, 0, 1)


def make() -> Any:
    data = webdataset.WebDataset(tar_shards(), shardshuffle=False, empty_check=False).shuffle(32)
    data = (
        data.map(lambda found: {**found, "jpg": PHOTO})
        if is_left_out("decode")
        else data.decode("pil")
    )
    data = data.to_tuple("jpg", "__key__").map_tuple(preprocess, len)
    return data.batched(16)
