"""Photographs from S3, the items of a batch fetched by eight threads in each of two workers."""

import io
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from benchmarks.pipelines.inputs import allow_torchvision, photo_paths, photograph, stage

allow_torchvision()
from torchvision import transforms  # noqa: E402

SOURCE = "https://github.com/iarai/concurrent-dataloader"
NEEDS = "torchvision"
STAGES = {
    "download_fileobj": r"download_fileobj|fetch|yield_item|__getitem",
    "transform": r"transform|decode|Resize|ToTensor|Normalize",
}

CONTENT = Path(photo_paths()[0]).read_bytes()
COMPOSED = transforms.Compose([
    transforms.Resize(256), transforms.CenterCrop(224), transforms.ToTensor(),
    transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
])  # fmt: skip
PIXELS = COMPOSED(Image.fromarray(photograph()))


@stage(lambda key, into: into.write(CONTENT))
def download_fileobj(key: str, into: Any) -> None:
    time.sleep(0.2)
    into.write(Path(key).read_bytes())


@stage(lambda content: PIXELS)
def transform(content: Any) -> Any:
    return COMPOSED(Image.open(content).convert("RGB"))


class S3Dataset(torch.utils.data.Dataset[Any]):
    def __init__(self) -> None:
        self.image_paths = photo_paths() * 20

    def __len__(self) -> int:
        return len(self.image_paths)

    def __getitem__(self, index: int) -> Any:
        download_fileobj(self.image_paths[index], content := io.BytesIO())
        return transform(content), index % 4

    def fetch_item(self, item: int, index: int) -> Any:
        return index, self[item]

    def yield_item(self, items: list[int]) -> Any:
        with ThreadPoolExecutor(max_workers=8) as executor:
            waiting = [executor.submit(self.fetch_item, item, i) for i, item in enumerate(items)]
            for future in as_completed(waiting):
                yield future.result()

    def __getitems__(self, items: list[int]) -> list[Any]:
        return [each for _, each in sorted(self.yield_item(items), key=lambda pair: pair[0])]


def make() -> Any:
    return torch.utils.data.DataLoader(
        S3Dataset(), batch_size=32, shuffle=True, num_workers=2, prefetch_factor=4
    )
