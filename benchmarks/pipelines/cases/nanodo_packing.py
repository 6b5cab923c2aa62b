"""NanoDO: text tokenized and packed by Grain operations in two worker processes."""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle
import grain.python as pygrain
import numpy as np
from absl import flags

from benchmarks.pipelines.inputs import sentences, stage

SOURCE = "https://github.com/google-deepmind/nanodo/blob/main/nanodo/data.py"
NEEDS = "grain"
STAGES = {
    "py_tokenize": r"py_tokenize",
    "NoamPack": r"NoamPack",
}

# The workers cannot import a pipeline that was loaded from a file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
flags.FLAGS.mark_as_parsed()
CONTEXT = 256
LINES = Path(sentences()).read_text().splitlines()
IDS = [7] * 120


@stage(lambda text: IDS)
def py_tokenize(text: str) -> list[int]:
    ids = [2]
    for word in re.findall(r"\w+|[^\w\s]", text):
        pieces = [word[i : i + 3] for i in range(0, len(word), 3)]
        ids.extend(sum(map(ord, piece)) % 32_000 + 3 for piece in pieces)
    return [*ids, 1]


@dataclass
class NoamPack:
    context_size: int

    def __call__(self, records: Iterator[Any]) -> Iterator[Any]:
        packed: list[int] = []
        for record in records:
            start = 0
            while start < len(record.data):
                take = self.context_size - len(packed)
                packed.extend(record.data[start : start + take])
                start += take
                if len(packed) == self.context_size:
                    key = record.metadata.remove_record_key()
                    yield pygrain.Record(key, np.array(packed, "int32"))
                    packed = []


def make() -> Any:
    sampler = pygrain.IndexSampler(
        len(LINES), shuffle=True, seed=1234, shard_options=pygrain.NoSharding(), num_epochs=None
    )
    operations = [
        pygrain.MapOperation(map_function=py_tokenize),
        NoamPack(CONTEXT),
        pygrain.Batch(batch_size=32, drop_remainder=True),
    ]
    return iter(
        pygrain.DataLoader(
            data_source=LINES, operations=operations, sampler=sampler,
            worker_count=2, worker_buffer_size=2,
        )
    )  # fmt: skip
