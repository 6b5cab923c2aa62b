"""timm's training transform with random augmentation, two worker processes."""

from typing import Any

import torch
from PIL import Image

from benchmarks.pipelines.inputs import allow_torchvision, is_left_out, photo_paths, photograph

allow_torchvision()
from timm.data import create_transform  # noqa: E402

SOURCE = (
    "https://github.com/huggingface/pytorch-image-models/blob/main/timm/data/transforms_factory.py"
)
NEEDS = "timm"
STAGES = {
    "decode": r"decode|load|__getitem__",
    "RandAugment": r"RandAugment|AugmentOp",
    "RandomResizedCropAndInterpolation": r"RandomResizedCrop",
    "Normalize": r"Normalize|ToTensor",
}


PHOTO = Image.fromarray(photograph())
CROP = PHOTO.resize((224, 224))
TENSOR = torch.zeros(3, 224, 224)
NO_DECODE = is_left_out("decode")
READY = {"RandAugment": CROP, "RandomResizedCropAndInterpolation": CROP, "Normalize": TENSOR}


class ImageDataset:
    def __init__(self, transform: Any) -> None:
        self.paths, self.transform = photo_paths(), transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        image = PHOTO if NO_DECODE else Image.open(self.paths[index]).convert("RGB")
        return self.transform(image), index % 4


def make() -> Any:
    transform = create_transform(224, is_training=True, auto_augment="rand-m9-inc1")
    for index, each in enumerate(transform.transforms):
        if is_left_out(name := type(each).__name__):
            transform.transforms[index] = lambda image, name=name: READY[name]
    data: Any = ImageDataset(transform)
    return torch.utils.data.DataLoader(
        data, batch_size=16, shuffle=True, num_workers=2, persistent_workers=True
    )
