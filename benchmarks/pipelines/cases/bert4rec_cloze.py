"""BERT4Rec: what a user saw, with items masked one by one in Python, padded from the left."""

import random
from typing import Any

import torch

from benchmarks.pipelines.inputs import stage

SOURCE = "https://github.com/jaywonchung/BERT4Rec-VAE-Pytorch/blob/master/dataloaders/bert.py"
NEEDS = "torch"
STAGES = {
    "cloze": r"cloze|__getitem__",
    "pad": r"pad",
}

ITEMS, LENGTH = 3000, 200
DRAW = random.Random(0)
SEEN = [[DRAW.randint(1, ITEMS) for _ in range(DRAW.randint(20, 300))] for _ in range(2000)]
MASKED = SEEN[0], SEEN[0]
PADDED = torch.zeros(LENGTH, dtype=torch.long), torch.zeros(LENGTH, dtype=torch.long)


@stage(lambda sequence: MASKED)
def cloze(sequence: list[int]) -> Any:
    tokens, labels = [], []
    for item in sequence:
        chance = DRAW.random()
        if chance >= 0.15:
            tokens.append(item)
            labels.append(0)
            continue
        chance /= 0.15
        other = DRAW.randint(1, ITEMS) if chance < 0.9 else item
        tokens.append(ITEMS + 1 if chance < 0.8 else other)
        labels.append(item)
    return tokens, labels


@stage(lambda tokens, labels: PADDED)
def pad(tokens: list[int], labels: list[int]) -> Any:
    tokens, labels = tokens[-LENGTH:], labels[-LENGTH:]
    zeros = [0] * (LENGTH - len(tokens))
    return torch.LongTensor(zeros + tokens), torch.LongTensor(zeros + labels)


class BertTrainDataset:
    def __len__(self) -> int:
        return len(SEEN)

    def __getitem__(self, index: int) -> Any:
        return pad(*cloze(SEEN[index]))


def make() -> Any:
    data: Any = BertTrainDataset()
    return torch.utils.data.DataLoader(data, batch_size=64, shuffle=True)
