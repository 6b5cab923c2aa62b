"""nanochat's loader: texts from Parquet, byte pairs in Python, rows filled by best fit."""

import itertools
from typing import Any

import pyarrow.parquet
import torch

from benchmarks.pipelines.inputs import documents, stage

SOURCE = "https://github.com/karpathy/nanochat/blob/master/nanochat/dataloader.py"
NEEDS = "pyarrow"
STAGES = {
    "read_row_group": r"read_row_group|document_batches",
    "encode": r"encode",
    "best_fit_row": r"best_fit_row",
}


LENGTH = 1025
DOCUMENT = list(range(1200))
ROW = torch.zeros(LENGTH, dtype=torch.long)
TEXTS = pyarrow.parquet.ParquetFile(documents()[0]).read_row_group(0).column("text").to_pylist()
RANKS = {
    pair: rank
    for rank, pair in enumerate(itertools.product(range(97, 123), range(97, 123, 4)), 256)
}


@stage(lambda path, group: TEXTS)
def read_row_group(path: str, group: int) -> Any:
    return pyarrow.parquet.ParquetFile(path).read_row_group(group).column("text").to_pylist()


@stage(lambda text: DOCUMENT)
def encode(text: str) -> Any:
    ids = []
    for word in text.split():
        pieces = list(word.encode())
        while pair := min(
            (each for each in itertools.pairwise(pieces) if each in RANKS),
            key=RANKS.__getitem__,
            default=None,
        ):
            place = list(itertools.pairwise(pieces)).index(pair)
            pieces[place : place + 2] = [RANKS[pair]]
        ids += pieces
    return ids


@stage(lambda buffer: (buffer.pop(), ROW)[1])
def best_fit_row(buffer: Any) -> Any:
    row, filled = torch.zeros(LENGTH, dtype=torch.long), 0
    while filled < LENGTH:
        fitting = [i for i, each in enumerate(buffer) if len(each) <= LENGTH - filled]
        chosen = max(fitting, key=lambda i: len(buffer[i]), default=0)
        ids = torch.tensor(buffer.pop(chosen)[: LENGTH - filled], dtype=torch.long)
        row[filled : filled + len(ids)] = ids
        filled += len(ids)
    return row


def document_batches() -> Any:
    for path in itertools.cycle(documents()):
        for group in range(pyarrow.parquet.ParquetFile(path).num_row_groups):
            yield read_row_group(path, group)


def make() -> Any:
    texts, buffer = document_batches(), []
    while True:
        rows = []
        while len(rows) < 8:
            while len(buffer) < 64:
                buffer += map(encode, next(texts))
            rows.append(best_fit_row(buffer))
        batch = torch.stack(rows)
        yield batch[:, :-1], batch[:, 1:]
