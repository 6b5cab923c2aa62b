"""Texts turned into counts of word pairs in a Keras PyDataset with three workers."""

import re
from typing import Any

import keras
import numpy as np

from benchmarks.pipelines.inputs import sentences, stage

SOURCE = "https://keras.io/examples/nlp/multi_label_classification/"
NEEDS = "keras"
STAGES = {
    "tokenize": r"tokenize",
    "count_pairs": r"count_pairs",
}
IS_PROGRAM = True

WORDS = ["abc"] * 40
COUNTS = np.zeros(2048, "float32")


@stage(lambda text: WORDS)
def tokenize(text: str) -> Any:
    return re.findall(r"[a-z]+", text.lower())


@stage(lambda words: COUNTS)
def count_pairs(words: Any) -> Any:
    counts = np.zeros(2048, "float32")
    for size in (1, 2, 3):
        for start in range(len(words) - size + 1):
            counts[hash(tuple(words[start : start + size])) % 2048] += 1
    return counts


class Texts(keras.utils.PyDataset):
    def __init__(self, lines: list[str]) -> None:
        super().__init__(workers=3)
        self.lines = lines

    def __len__(self) -> int:
        return len(self.lines) // 64

    def __getitem__(self, index: int) -> Any:
        lines = self.lines[64 * index : 64 * index + 64]
        return np.stack([count_pairs(tokenize(line)) for line in lines]), np.zeros(64)


def make() -> Any:
    with open(sentences()) as file:
        return Texts(file.read().splitlines())


if __name__ == "__main__":
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(make(), epochs=1000, verbose=0)
