"""MONAI: volumes loaded, scaled, cropped around the organ, and bent, by dictionary transforms."""

import random
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.pipelines.inputs import is_left_out, packed_arrays

SOURCE = "https://github.com/Project-MONAI/tutorials/blob/main/3d_segmentation/spleen_segmentation_3d.ipynb"
NEEDS = "torch"
STAGES = {
    "LoadImaged": r"LoadImaged",
    "ScaleIntensityRanged": r"ScaleIntensityRanged",
    "RandCropByPosNegLabeld": r"RandCropByPosNegLabeld",
    "RandAffined": r"RandAffined",
}

SHAPE, PATCH = (48, 64, 64), (32, 48, 48)
VOLUME = np.ones(SHAPE, "float32")
READY = {"image": VOLUME, "label": np.arange(VOLUME.size).reshape(SHAPE) % 2 == 0}
PATCHES = [{"image": torch.ones(1, *PATCH), "label": torch.ones(1, *PATCH)}]


class LoadImaged:
    def __call__(self, data: dict[str, Any]) -> dict[str, Any]:
        if is_left_out("LoadImaged"):
            return READY
        values = np.frombuffer(zlib.decompress(Path(data["image"]).read_bytes()), "<i2")
        image = values[: 48 * 64 * 64].reshape(SHAPE).astype("float32")
        return {"image": image, "label": image > np.median(image)}


class ScaleIntensityRanged:
    def __call__(self, data: dict[str, Any]) -> dict[str, Any]:
        if is_left_out("ScaleIntensityRanged"):
            return data
        image = np.clip((data["image"] + 57) / (164 + 57), 0, 1)
        return {**data, "image": image}


class RandCropByPosNegLabeld:
    def __call__(self, data: dict[str, Any]) -> list[dict[str, Any]]:
        if is_left_out("RandCropByPosNegLabeld"):
            return PATCHES
        inside = np.flatnonzero(data["label"] if random.random() < 0.5 else ~data["label"])
        centre = np.unravel_index(np.random.choice(inside), SHAPE)
        begins = [
            int(np.clip(c - p // 2, 0, s - p)) for c, p, s in zip(centre, PATCH, SHAPE, strict=True)
        ]
        box = tuple(slice(b, b + p) for b, p in zip(begins, PATCH, strict=True))
        return [{k: torch.tensor(v[box], dtype=torch.float32)[None] for k, v in data.items()}]


class RandAffined:
    def __call__(self, patches: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if is_left_out("RandAffined"):
            return patches
        matrix = torch.eye(3, 4)[None] + 0.1 * torch.randn(1, 3, 4)
        grid = torch.nn.functional.affine_grid(matrix, [1, 1, *PATCH], align_corners=False)
        sample = torch.nn.functional.grid_sample
        return [
            {
                "image": sample(each["image"][None], grid, align_corners=False)[0],
                "label": sample(each["label"][None], grid, "nearest", align_corners=False)[0],
            }
            for each in patches
        ]


class Dataset:
    def __init__(self) -> None:
        self.paths = packed_arrays()
        steps = (LoadImaged, ScaleIntensityRanged, RandCropByPosNegLabeld, RandAffined)
        self.transforms: list[Any] = [step() for step in steps]

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> Any:
        data: Any = {"image": self.paths[index % len(self.paths)]}
        for transform in self.transforms:
            data = transform(data)
        return data[0]


def make() -> Any:
    data: Any = Dataset()
    return torch.utils.data.DataLoader(
        data, batch_size=2, shuffle=True, num_workers=2, persistent_workers=True
    )
