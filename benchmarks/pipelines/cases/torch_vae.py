"""PyTorch's VAE example: digits in memory, turned into tensors one by one by torchvision."""

from typing import Any

import numpy as np
import torch
from PIL import Image

from benchmarks.pipelines.inputs import allow_torchvision, is_left_out

allow_torchvision()
from torchvision import transforms  # noqa: E402

SOURCE = "https://github.com/pytorch/examples/blob/main/vae/main.py"
NEEDS = "torchvision"
STAGES = {
    "RandomAffine": r"RandomAffine",
    "ToTensor": r"ToTensor",
}
IS_PROGRAM = True

DIGITS = np.random.default_rng(0).integers(0, 256, (4000, 28, 28), "uint8")
READY: dict[str, Any] = {
    "RandomAffine": Image.fromarray(DIGITS[0]),
    "ToTensor": torch.zeros(1, 28, 28),
}


class Digits:
    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __len__(self) -> int:
        return len(DIGITS)

    def __getitem__(self, index: int) -> Any:
        return self.transform(Image.fromarray(DIGITS[index])), index % 10


def make() -> Any:
    steps = [transforms.RandomAffine(10, (0.1, 0.1)), transforms.ToTensor()]
    for index, step in enumerate(steps):
        if is_left_out(name := type(step).__name__):
            steps[index] = lambda image, name=name: READY[name]
    data: Any = Digits(transforms.Compose(steps))
    return torch.utils.data.DataLoader(data, batch_size=128, shuffle=True)


if __name__ == "__main__":
    model = torch.nn.Sequential(torch.nn.Linear(784, 20), torch.nn.ReLU(), torch.nn.Linear(20, 784))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(1000):
        for images, _labels in make():
            optimizer.zero_grad()
            flat = images.view(-1, 784)
            loss = torch.nn.functional.binary_cross_entropy_with_logits(model(flat), flat)
            loss.backward()
            optimizer.step()
