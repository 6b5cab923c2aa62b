"""Chunks of token ids from memory-mapped shards in an IterableDataset, no workers, endless."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.pipelines.inputs import _made, is_left_out, stage, tokens

SOURCE = "https://github.com/karpathy/llama2.c/blob/master/tinystories.py"
NEEDS = "torch"
STAGES = {
    "read_chunk": r"read_chunk|__iter__|PretokDataset",
    "collate": r"collate",
}
CONSUMER = "slow"

LENGTH = 256
CHUNK = torch.zeros(LENGTH + 1, dtype=torch.int64)
READY = (torch.zeros((128, LENGTH), dtype=torch.int64),) * 2


def write_shards(place: Path) -> None:
    place.mkdir()
    for index, ids in enumerate(np.array_split(np.fromfile(tokens(), "uint16"), 5)):
        ids.tofile(place / f"data{index:02}.bin")


SHARDS = sorted(map(str, _made("pretok", write_shards).glob("*.bin")))


@stage(lambda ids, index: CHUNK)
def read_chunk(ids: Any, index: int) -> Any:
    start = index * LENGTH
    return torch.from_numpy(ids[start : start + LENGTH + 1].astype(np.int64))


class PretokDataset(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Any:
        worker = torch.utils.data.get_worker_info()
        rng = random.Random(42 + (worker.id if worker else 0))
        shards = SHARDS[1:]
        while True:
            rng.shuffle(shards)
            for shard in shards:
                ids = np.memmap(shard, dtype=np.uint16, mode="r")
                order = list(range(len(ids) // LENGTH - 1))
                rng.shuffle(order)
                for index in order:
                    chunk = read_chunk(ids, index)
                    yield chunk[:-1], chunk[1:]


def make() -> Any:
    collate = (lambda batch: READY) if is_left_out("collate") else None
    return torch.utils.data.DataLoader(
        PretokDataset(), batch_size=128, num_workers=0, collate_fn=collate
    )
