"""Large photographs and GIF masks found by name, scaled by half, in a worker for every vCPU."""

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from benchmarks.pipelines.inputs import _made, photograph, stage

SOURCE = "https://github.com/milesial/Pytorch-UNet/blob/master/utils/data_loading.py"
NEEDS = "torch"
STAGES = {
    "load": r"load|glob",
    "preprocess": r"preprocess|resize|decode",
}


def write_cars(place: Path) -> None:
    """Forty-eight photographs of 960 by 640 pixels with masks of two values."""
    (place / "imgs").mkdir(parents=True)
    (place / "masks").mkdir()
    for index in range(48):
        if index % 12 == 0:
            picture = photograph(index, 640, 960)
        moved = np.roll(picture, index * 7, 1)
        Image.fromarray(moved).save(place / "imgs" / f"{index:04}.jpg", quality=90)
        mask = Image.fromarray((moved[..., 0] > 127).astype("uint8") * 255)
        mask.save(place / "masks" / f"{index:04}_mask.gif")


CARS = _made("cars", write_cars)
FILES = {end: next(CARS.rglob(f"0000*{end}")).read_bytes() for end in (".jpg", ".gif")}


@stage(lambda folder, name, end: Image.open(io.BytesIO(FILES[end])))
def load(folder: Path, name: str, end: str) -> Any:
    found = list(folder.glob(name + ".*"))
    assert len(found) == 1
    return Image.open(found[0])


@stage(lambda image, is_mask: np.zeros((320, 480) if is_mask else (3, 320, 480), "float32"))
def preprocess(image: Any, is_mask: bool) -> Any:
    size = (int(0.5 * image.size[0]), int(0.5 * image.size[1]))
    kind = Image.Resampling.NEAREST if is_mask else Image.Resampling.BICUBIC
    pixels = np.asarray(image.resize(size, resample=kind))
    if is_mask:
        mask = np.zeros(pixels.shape, "int64")
        for index, value in enumerate((0, 255)):
            mask[pixels == value] = index
        return mask
    pixels = pixels.transpose((2, 0, 1))
    return pixels / 255.0 if (pixels > 1).any() else pixels


class CarvanaDataset(torch.utils.data.Dataset[Any]):
    def __init__(self) -> None:
        self.ids = [path.stem for path in sorted((CARS / "imgs").iterdir())] * 20

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> Any:
        name = self.ids[index]
        mask = preprocess(load(CARS / "masks", name + "_mask", ".gif"), True)
        image = preprocess(load(CARS / "imgs", name, ".jpg"), False)
        return {
            "image": torch.as_tensor(image.copy()).float().contiguous(),
            "mask": torch.as_tensor(mask.copy()).long().contiguous(),
        }


def make() -> Any:
    return torch.utils.data.DataLoader(
        CarvanaDataset(), shuffle=True, batch_size=1, num_workers=os.cpu_count() or 1
    )
