"""DETR's COCO data set: Pillow images resized in pairs with boxes, padded into one tensor."""

from typing import Any

import numpy as np
import torch
from PIL import Image

from benchmarks.pipelines.inputs import photo_paths, photograph, stage

SOURCE = "https://github.com/facebookresearch/detr/blob/main/datasets/transforms.py"
NEEDS = "torch"
STAGES = {
    "load_image": r"load_image",
    "resize": r"resize",
    "to_tensor": r"to_tensor",
    "normalize": r"normalize",
    "nested_tensor": r"nested_tensor|collate",
}


PHOTO = Image.fromarray(photograph())
LARGE = PHOTO.resize((640, 480))
TENSOR = torch.zeros(3, 480, 640)
BATCH = (torch.zeros(4, 3, 480, 640), torch.zeros(4, 480, 640, dtype=torch.bool))
MEAN, STD = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])


@stage(lambda path: PHOTO)
def load_image(path: str) -> Any:
    return Image.open(path).convert("RGB")


@stage(lambda image, boxes: (LARGE, boxes))
def resize(image: Any, boxes: Any) -> Any:
    first = image.resize((800, 600), Image.Resampling.BICUBIC).crop((80, 60, 720, 540))
    scale = 480 / first.height
    second = first.resize((960, 720), Image.Resampling.BICUBIC)
    return second.resize((640, 480), Image.Resampling.BICUBIC), boxes * scale


@stage(lambda image: TENSOR)
def to_tensor(image: Any) -> Any:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().div(255)


@stage(lambda image: TENSOR)
def normalize(image: Any) -> Any:
    return image.sub(MEAN[:, None, None]).div_(STD[:, None, None])


@stage(lambda items: (*BATCH, [boxes for _, boxes in items]))
def nested_tensor(items: Any) -> Any:
    images, mask = torch.zeros(len(items), 3, 480, 640), torch.ones(len(items), 480, 640).bool()
    for index, (image, _) in enumerate(items):
        images[index, :, : image.shape[1], : image.shape[2]].copy_(image)
        mask[index, : image.shape[1], : image.shape[2]] = False
    return images, mask, [boxes for _, boxes in items]


class CocoDetection(torch.utils.data.Dataset[Any]):
    def __init__(self) -> None:
        self.paths = photo_paths() * 4

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        image, boxes = resize(load_image(self.paths[index]), torch.rand(5, 4))
        return normalize(to_tensor(image)), boxes


def make() -> Any:
    return torch.utils.data.DataLoader(
        CocoDetection(), batch_size=4, shuffle=True, num_workers=2, collate_fn=nested_tensor
    )
