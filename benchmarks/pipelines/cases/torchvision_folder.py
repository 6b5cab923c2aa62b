"""ImageNet of the PyTorch examples: ImageFolder, random crop, in the main process."""

from typing import Any

import torch
from PIL import Image

from benchmarks.pipelines.inputs import allow_torchvision, is_left_out, photo_folder, photograph

allow_torchvision()
from torchvision import datasets, transforms  # noqa: E402

SOURCE = "https://github.com/pytorch/examples/blob/main/imagenet/main.py"
NEEDS = "torchvision"
STAGES = {
    "decode": r"decode|loader|ImageFolder",
    "RandomResizedCrop": r"RandomResizedCrop",
    "ToTensor": r"ToTensor",
    "Normalize": r"Normalize",
}


PHOTO = Image.fromarray(photograph())
CROP = PHOTO.resize((224, 224))
TENSOR = torch.zeros(3, 224, 224)
READY = {"RandomResizedCrop": CROP, "ToTensor": TENSOR, "Normalize": TENSOR}


def make() -> Any:
    steps = [
        transforms.RandomResizedCrop(224),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    ]
    for index, each in enumerate(steps):
        if is_left_out(name := type(each).__name__):
            steps[index] = lambda image, name=name: READY[name]
    given = {"loader": lambda path: PHOTO} if is_left_out("decode") else {}
    data = datasets.ImageFolder(str(photo_folder()), transforms.Compose(steps), **given)
    return torch.utils.data.DataLoader(data, batch_size=16, shuffle=True, num_workers=0)
