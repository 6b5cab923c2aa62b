"""Words hashed, masked at random and padded by Grain transforms of the user's own classes."""

from typing import Any

import grain
import numpy as np

from benchmarks.pipelines.inputs import is_left_out, sentences

SOURCE = "https://github.com/google/grain/blob/main/docs/tutorials/data_loader_tutorial.ipynb"
NEEDS = "grain"
STAGES = {
    "Hash": r"Hash",
    "Mask": r"Mask",
    "Pad": r"Pad",
}

IDS = np.ones(40, "int32")
PADDED = np.ones(96, "int32")


class Hash(grain.transforms.Map):
    def map(self, line: str) -> Any:
        if is_left_out("Hash"):
            return IDS
        return np.array([hash(word) % 1000 for word in line.split()], "int32")


class Mask(grain.transforms.RandomMap):
    def random_map(self, ids: Any, rng: np.random.Generator) -> Any:
        if is_left_out("Mask"):
            return ids
        start = 0
        ids = ids.copy()
        while start < len(ids):
            length = int(rng.geometric(0.3))
            if rng.random() < 0.15:
                ids[start : start + length] = 999
            start += length
        return ids


class Pad(grain.transforms.Map):
    def map(self, ids: Any) -> Any:
        if is_left_out("Pad"):
            return PADDED
        return np.pad(ids[:96], (0, max(0, 96 - len(ids))))


def make() -> Any:
    with open(sentences()) as file:
        lines = file.read().splitlines()
    data = grain.MapDataset.source(lines).seed(0).shuffle()
    return data.map(Hash()).random_map(Mask()).map(Pad()).batch(32).to_iter_dataset()
