"""Skip-grams with negative samples made in a thread that fills a queue."""

import queue
import threading
from typing import Any

import numpy as np

from benchmarks.pipelines.inputs import sentences, stage

SOURCE = "https://github.com/theeluwin/pytorch-sgns"
NEEDS = "numpy"
STAGES = {
    "subsample": r"subsample",
    "pairs": r"pairs",
    "negatives": r"negatives",
}

WORDS = list(range(30))
PAIRS = [(1, 2)] * 270
WEIGHTS = np.random.default_rng(0).random(20_000)
WEIGHTS /= WEIGHTS.sum()
NEGATIVES = np.zeros((270, 5), "int64")


@stage(lambda line: WORDS)
def subsample(line: str) -> Any:
    ids = [hash(word) % 20_000 for word in line.split()]
    return [each for each, draw in zip(ids, np.random.random(len(ids)), strict=True) if draw < 0.8]


@stage(lambda words: PAIRS)
def pairs(words: Any) -> Any:
    found = []
    for place, word in enumerate(words):
        for other in words[max(0, place - 5) : place + 6]:
            if other != word:
                found.append((word, other))
    return found


@stage(lambda count: NEGATIVES)
def negatives(count: int) -> Any:
    return np.random.choice(20_000, (count, 5), p=WEIGHTS)


def make() -> Any:
    ready: Any = queue.Queue(16)
    with open(sentences()) as file:
        lines = file.read().splitlines()

    def work() -> None:
        while True:
            for line in lines:
                found = pairs(subsample(line))
                ready.put((np.array(found), negatives(len(found))))

    threading.Thread(target=work, daemon=True).start()
    while True:
        yield ready.get()
