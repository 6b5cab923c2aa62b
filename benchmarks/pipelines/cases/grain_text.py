"""Grain's data loader over lines of text, words counted in Python, finite."""

from typing import Any

import grain
import numpy as np

from benchmarks.pipelines.inputs import sentences, stage

SOURCE = "https://google-grain.readthedocs.io/en/latest/data_loader/transformations.html"
NEEDS = "grain"
STAGES = {
    "count_words": r"count_words",
    "hash_words": r"hash_words",
}


HASHES = [1] * 40
COUNTS = np.zeros(1000, "int32")


@stage(lambda line: HASHES)
def hash_words(line: str) -> Any:
    return [sum(31**i * ord(c) for i, c in enumerate(word)) % 1000 for word in line.split()]


@stage(lambda hashes: COUNTS)
def count_words(hashes: Any) -> Any:
    counts = np.zeros(1000, "int32")
    np.add.at(counts, hashes, 1)
    return counts


def make() -> Any:
    with open(sentences()) as file:
        lines = file.read().splitlines()
    return (
        grain.MapDataset.source(lines).map(hash_words).map(count_words).batch(32).to_iter_dataset()
    )
