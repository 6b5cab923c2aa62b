"""Stories encoded by a tokenizer in the data source that Grain's threads read, one process."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grain.python as pygrain

from benchmarks.pipelines.inputs import sentences, stage

SOURCE = "https://github.com/jax-ml/jax-ai-stack/blob/main/docs/JAX_for_LLM_pretraining.ipynb"
NEEDS = "grain"
STAGES = {"encode": r"encode|__getitem__|TextDataset"}

MOST = 256
PIECES = re.compile(r"'(?:[sdmt]|ll|ve|re)| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+")
LINES = Path(sentences()).read_text().splitlines()
STORIES = [" ".join(LINES[i : i + 4]) + "<|endoftext|>" for i in range(0, len(LINES), 2)]
FOUND = sorted({piece for line in LINES for piece in PIECES.findall(line)})
RANKS = {piece: rank for rank, piece in enumerate(FOUND, 256)}
IDS = [300] * MOST


@stage(lambda text: IDS)
def encode(text: str) -> list[int]:
    ids: list[int] = []
    for piece in PIECES.findall(text):
        rank = RANKS.get(piece)
        ids.extend(piece.encode() if rank is None else (rank,))
    return ids


@dataclass
class TextDataset:
    data: list[str]
    maxlen: int

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> list[int]:
        encoding = encode(self.data[index])[: self.maxlen]
        return list(encoding + [0] * (self.maxlen - len(encoding)))


def make() -> Any:
    data = TextDataset(STORIES, MOST)
    sampler = pygrain.IndexSampler(
        len(data), shuffle=False, seed=42, shard_options=pygrain.NoSharding(), num_epochs=1
    )
    operations = [pygrain.Batch(batch_size=256, drop_remainder=True)]
    return pygrain.DataLoader(data_source=data, sampler=sampler, operations=operations)
