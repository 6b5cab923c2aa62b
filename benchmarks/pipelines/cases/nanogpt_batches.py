"""nanoGPT's batches: random windows of a memory map, far faster than the model."""

from typing import Any

import numpy as np

from benchmarks.pipelines.inputs import stage, tokens

SOURCE = "https://github.com/karpathy/nanoGPT/blob/master/train.py"
NEEDS = "numpy"
STAGES = {"get_batch": r"get_batch"}
CONSUMER = "slow"


BLOCK, BATCH = 1024, 12
READY = np.zeros((BATCH, BLOCK), "int64")


@stage(lambda data: (READY, READY))
def get_batch(data: Any) -> Any:
    starts = np.random.randint(len(data) - BLOCK, size=BATCH)
    x = np.stack([data[i : i + BLOCK].astype("int64") for i in starts])
    y = np.stack([data[i + 1 : i + 1 + BLOCK].astype("int64") for i in starts])
    return x, y


def make() -> Any:
    data = np.memmap(tokens(), dtype="uint16", mode="r")
    while True:
        yield get_batch(data)
