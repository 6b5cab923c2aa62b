"""torchvision's reference training: repeated augmentation, TrivialAugment, mixup when collating."""

from typing import Any

import torch
from PIL import Image

from benchmarks.pipelines.inputs import allow_torchvision, is_left_out, photo_folder, photograph

allow_torchvision()
from torchvision import datasets, transforms  # noqa: E402
from torchvision.transforms import v2  # noqa: E402

SOURCE = "https://github.com/pytorch/vision/blob/main/references/classification/train.py"
NEEDS = "torchvision"
STAGES = {
    "loader": r"loader|decode|ImageFolder",
    "RandomResizedCrop": r"RandomResizedCrop",
    "TrivialAugmentWide": r"TrivialAugment",
    "Normalize": r"Normalize|PILToTensor|ConvertImageDtype",
    "mixup": r"mixup|MixUp|CutMix|collate",
}

SIZE = 176
PHOTO = Image.fromarray(photograph())
CROP = PHOTO.resize((SIZE, SIZE))
READY = {
    "RandomResizedCrop": CROP,
    "TrivialAugmentWide": CROP,
    "Normalize": torch.zeros(3, SIZE, SIZE),
}
BATCH = torch.zeros(32, 3, SIZE, SIZE), torch.zeros(32, 4)
MIXES = v2.RandomChoice([v2.MixUp(alpha=0.2, num_classes=4), v2.CutMix(alpha=1.0, num_classes=4)])


def mixup(batch: Any) -> Any:
    if is_left_out("mixup"):
        # The same memory again would need no copy to the other process either.
        return [each.clone() for each in BATCH]
    return MIXES(*torch.utils.data.default_collate(batch))


class RASampler(torch.utils.data.Sampler[int]):
    """Every photograph several times in a row, so that a batch has its augmentations."""

    def __init__(self, data: Any, repetitions: int = 4) -> None:
        self.data, self.repetitions = data, repetitions

    def __len__(self) -> int:
        return len(self.data) // 256 * 256

    def __iter__(self) -> Any:
        order = torch.randperm(len(self.data)).tolist()
        return iter([each for each in order for _ in range(self.repetitions)][: len(self)])


def make() -> Any:
    steps = [
        transforms.RandomResizedCrop(SIZE), transforms.RandomHorizontalFlip(0.5),
        transforms.TrivialAugmentWide(), transforms.PILToTensor(),
        transforms.ConvertImageDtype(torch.float),
        transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        transforms.RandomErasing(p=0.1),
    ]  # fmt: skip
    for index, each in enumerate(steps):
        if is_left_out(name := type(each).__name__):
            steps[index] = lambda image, name=name: READY[name]
    data = datasets.ImageFolder(str(photo_folder()), transforms.Compose(steps))
    data.samples *= 16
    if is_left_out("loader"):
        data.loader = lambda path: PHOTO
    return torch.utils.data.DataLoader(
        data, batch_size=32, sampler=RASampler(data), num_workers=2, collate_fn=mixup
    )
