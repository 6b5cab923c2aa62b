"""Decode records in threads, two batches ahead of their consumer: decoders release the GIL."""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count, islice

import numpy as np
import numpy.typing as npt

from tpuctl.datasets.images._pixels import Pixels
from tpuctl.datasets.reading import Record

Labels = npt.NDArray[np.int32]

_AHEAD = 2


@dataclass(frozen=True)
class Batch:
    """Images (batch x height x width x 3 of uint8), labels (int32, -1: none) and their keys.

    With `planes`, images are flat I420 (batch x bytes) for `yuv420_to_rgb`.
    """

    step: int
    images: Pixels
    labels: Labels
    keys: tuple[str, ...]


def decode_ahead(
    records: Iterator[Record],
    batch_size: int,
    *,
    first_step: int,
    stride: int,
    planes: bool,
    threads: int,
) -> Iterator[Batch]:
    """Yield batches of decoded records until there are none; errors of decoding are raised.

    The first is that of step `first_step`, each other one `stride` steps after the one before.
    """
    decode = _planes_of if planes else Record.array
    waiting: deque[tuple[list[Record], list[Future[Pixels]]]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for step in count(first_step, stride):
                while len(waiting) < _AHEAD and (group := list(islice(records, batch_size))):
                    waiting.append((group, [pool.submit(decode, record) for record in group]))
                if not waiting:
                    return
                group, pictures = waiting.popleft()
                yield Batch(
                    step,
                    np.stack([picture.result() for picture in pictures]),
                    np.array([record.label for record in group], np.int32),
                    tuple(record.key for record in group),
                )
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _planes_of(record: Record) -> Pixels:
    return np.frombuffer(record.image, np.uint8)
