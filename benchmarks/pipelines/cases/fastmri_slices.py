"""fastMRI's slices: gzip HDF5 opened for each item, k-space masked and transformed, two workers."""

from typing import Any

import h5py
import numpy as np
import torch

from benchmarks.pipelines.inputs import scans, stage

SOURCE = "https://github.com/facebookresearch/fastMRI/blob/main/fastmri/data/mri_data.py"
NEEDS = "h5py"
STAGES = {
    "read_slice": r"read_slice",
    "apply_mask": r"apply_mask",
    "ifft2c": r"ifft2c",
    "root_sum_of_squares": r"root_sum_of_squares",
}


KSPACE = torch.ones(4, 256, 256, dtype=torch.complex64)
IMAGE = torch.zeros(256, 256)


@stage(lambda path, index: KSPACE)
def read_slice(path: str, index: int) -> Any:
    with h5py.File(path, "r") as file:
        return torch.from_numpy(np.asarray(file["kspace"][index]))


@stage(lambda kspace: KSPACE)
def apply_mask(kspace: Any) -> Any:
    mask = torch.rand(256) < 0.25
    mask[118:138] = True
    return kspace.mul_(mask)


@stage(lambda kspace: KSPACE)
def ifft2c(kspace: Any) -> Any:
    moved = torch.fft.ifftshift(kspace, dim=(-2, -1))
    return torch.fft.fftshift(torch.fft.ifft2(moved, norm="ortho"), dim=(-2, -1))


@stage(lambda image: IMAGE)
def root_sum_of_squares(image: Any) -> Any:
    return (image.real**2 + image.imag**2).sum(0).sqrt()


class SliceDataset(torch.utils.data.Dataset[Any]):
    def __init__(self) -> None:
        self.slices = [(path, index) for path in scans() for index in range(4)] * 16

    def __len__(self) -> int:
        return len(self.slices)

    def __getitem__(self, index: int) -> Any:
        return root_sum_of_squares(ifft2c(apply_mask(read_slice(*self.slices[index]))))


def make() -> Any:
    return torch.utils.data.DataLoader(
        SliceDataset(), batch_size=4, shuffle=True, num_workers=2, persistent_workers=True
    )
