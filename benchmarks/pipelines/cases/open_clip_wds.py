"""open_clip's pairs from tar shards: images and captions made ready in two loader workers."""

from typing import Any

import torch
import webdataset
from PIL import Image

from benchmarks.pipelines.inputs import (
    allow_torchvision,
    caption_shards,
    is_left_out,
    photograph,
    stage,
)

allow_torchvision()
from torchvision import transforms  # noqa: E402

SOURCE = "https://github.com/mlfoundations/open_clip/blob/main/src/open_clip_train/data.py"
NEEDS = "webdataset"
STAGES = {
    "decode": r"decode|imagehandler",
    "RandomResizedCrop": r"RandomResizedCrop",
    "ToTensor": r"ToTensor",
    "Normalize": r"Normalize",
    "tokenize": r"tokenize",
}


PHOTO = Image.fromarray(photograph(0, 768, 1024))
TENSOR = torch.zeros(3, 336, 336)
READY = {"RandomResizedCrop": PHOTO.resize((336, 336)), "ToTensor": TENSOR, "Normalize": TENSOR}
TEXT = torch.zeros(77, dtype=torch.long)


@stage(lambda text: TEXT)
def tokenize(text: str) -> Any:
    ids = [49406]
    for word in text.lower().strip().split():
        ids += [hash(word[i : i + 4]) % 49_000 for i in range(0, len(word), 4)]
    found = torch.zeros(77, dtype=torch.long)
    found[: len(ids[:77])] = torch.tensor(ids[:77])
    return found


def make() -> Any:
    steps = [
        transforms.RandomResizedCrop(336, (0.9, 1.0), interpolation=Image.Resampling.BICUBIC),
        transforms.ToTensor(),
        transforms.Normalize((0.481, 0.458, 0.408), (0.269, 0.261, 0.276)),
    ]
    for index, each in enumerate(steps):
        if is_left_out(name := type(each).__name__):
            steps[index] = lambda image, name=name: READY[name]
    data = webdataset.WebDataset(caption_shards(), shardshuffle=False, empty_check=False)
    data = data.repeat().shuffle(16)
    if is_left_out("decode"):
        data = data.map(lambda found: {**found, "jpg": PHOTO, "txt": found["txt"].decode()})
    else:
        data = data.decode("pilrgb")
    data = data.to_tuple("jpg", "txt").map_tuple(transforms.Compose(steps), tokenize).batched(8)
    return webdataset.WebLoader(data, batch_size=None, num_workers=2)
