"""Byte-pair merges in Python for each sentence, batches by number of tokens."""

import itertools
from typing import Any

import numpy as np

from benchmarks.pipelines.inputs import sentences, stage

SOURCE = "https://github.com/rsennrich/subword-nmt"
NEEDS = "numpy"
STAGES = {
    "merge": r"merge",
    "collate": r"collate",
}


READY = ["abc"] * 80
PAIRS = {
    (a, b): i
    for i, (a, b) in enumerate((chr(x), chr(y)) for x in range(97, 123) for y in range(97, 123, 5))
}
BATCH = np.zeros((16, 256), "int64")


@stage(lambda line: READY)
def merge(line: str) -> Any:
    parts = []
    for word in line.split():
        pieces = list(word)
        while pairs := [p for p in itertools.pairwise(pieces) if p in PAIRS]:
            best = pieces.index(min(pairs, key=PAIRS.__getitem__)[0])
            pieces[best : best + 2] = ["".join(pieces[best : best + 2])]
        parts += pieces
    return parts


@stage(lambda parts: BATCH)
def collate(parts: Any) -> Any:
    found = np.zeros((16, 256), "int64")
    for row, each in enumerate(parts):
        found[row, : len(each[:256])] = [hash(piece) % 32_000 for piece in each[:256]]
    return found


def make() -> Any:
    with open(sentences()) as file:
        lines = file.read().splitlines()
    for start in range(0, len(lines), 16):
        yield collate([merge(line) for line in lines[start : start + 16]])
