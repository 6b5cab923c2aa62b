"""Pieces of NumPy files in a distant store, read by ten threads and put together into batches."""

import time
from multiprocessing.pool import ThreadPool
from pathlib import Path
from threading import Semaphore
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.pipelines.inputs import _made, stage

SOURCE = "https://github.com/rom1504/embedding-reader/blob/main/embedding_reader/numpy_reader.py"
NEEDS = "pandas"
STAGES = {"read_piece": r"read_piece|open|seek"}

ROWS, DIMENSION, BATCH, PARALLEL = 1000, 512, 2500, 10
READY = np.zeros((BATCH, DIMENSION), "float32")


def write_embeddings(place: Path) -> None:
    place.mkdir()
    for index in range(16):
        values = np.random.default_rng(index).random((ROWS, DIMENSION), "float32")
        np.save(place / f"img_emb_{index:02}.npy", values)


PATHS = sorted(_made("embeddings", write_embeddings).glob("*.npy"))


def build_pieces() -> Any:
    """Every batch as parts of files: path, first row, number of rows, and where in the batch."""
    for first in range(0, len(PATHS) * ROWS - BATCH + 1, BATCH):
        row = first
        while row < first + BATCH:
            end = min(first + BATCH, (row // ROWS + 1) * ROWS)
            yield PATHS[row // ROWS], row % ROWS, end - row, row - first
            row = end


@stage(lambda path, start, length: READY[:length])
def read_piece(path: Path, start: int, length: int) -> Any:
    time.sleep(0.05)
    with path.open("rb") as file:
        file.seek(128 + start * DIMENSION * 4)
        content = file.read(length * DIMENSION * 4)
    return np.frombuffer(content, "<f4").reshape(length, DIMENSION)


def make() -> Any:
    semaphore, stopped = Semaphore(PARALLEL), False

    def piece_generator() -> Any:
        for piece in build_pieces():
            if stopped:
                break
            semaphore.acquire()
            yield piece

    batch, count = np.empty((BATCH, DIMENSION), "float32"), 0
    with ThreadPool(PARALLEL) as pool:
        try:
            read = pool.imap(lambda piece: (read_piece(*piece[:3]), piece[3]), piece_generator())
            for data, offset in read:
                batch[offset : offset + len(data)] = data
                if offset + len(data) == BATCH:
                    yield batch, pd.DataFrame(np.arange(count, count + BATCH), columns=["i"])
                    batch, count = np.empty((BATCH, DIMENSION), "float32"), count + BATCH
                semaphore.release()
        finally:
            stopped = True
            semaphore.release()
