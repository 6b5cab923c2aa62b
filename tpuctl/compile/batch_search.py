"""The largest batch that fits, in few compilations. Pure.

Memory does not grow evenly with the batch: close to the limit the compiler computes things again to
save it. So sizes go up in powers of two, the first guess aimed by what two small ones take, and
the last stretch is halved. The result is a multiple that suits the chip: of 8, the sublanes of a
register, and of more where the batch is large, to about 3 %.
"""

from collections.abc import Callable
from dataclasses import dataclass

SUBLANES = 8
SECOND = 64
LARGEST = 1 << 20
# A stretch between two powers of two is divided into as many parts.
PARTS = 32


@dataclass(frozen=True)
class BatchTrial:
    """A batch for each device, and the memory that it takes of what there is."""

    per_device: int
    fits: bool
    needed_bytes: int
    available_bytes: int


@dataclass(frozen=True)
class LargestBatch:
    """The largest batch that fits each device, the next that does not, and all that was tried."""

    best: BatchTrial | None
    next_too_large: BatchTrial | None
    tried: tuple[BatchTrial, ...]


def find_largest(compile_for: Callable[[int], BatchTrial], *, limit: int = LARGEST) -> LargestBatch:
    """Find the largest batch for each device; `limit` is a power of two.

    Without a batch that fits, `best` is None; where all fit, `next_too_large` is.
    """
    tried: dict[int, BatchTrial] = {}

    def attempt(size: int) -> BatchTrial:
        if size not in tried:
            tried[size] = compile_for(size)
        return tried[size]

    low, high = _bracket(attempt, limit)
    if low and high:
        step = max(low // PARTS, SUBLANES if low >= SUBLANES else 1)
        while high - low > step:
            middle = low + (high - low) // (2 * step) * step
            if attempt(middle).fits:
                low = middle
            else:
                high = middle
    return LargestBatch(
        tried[low] if low else None, tried[high] if high else None, tuple(tried.values())
    )


def _bracket(attempt: Callable[[int], BatchTrial], limit: int) -> tuple[int, int]:
    """A power of two that fits and its double that does not; 0 stands for none."""
    if not attempt(SUBLANES).fits:
        low, high = 0, SUBLANES
        while high > 1 and not low:
            low, high = (high // 2, high) if attempt(high // 2).fits else (0, high // 2)
        return low, high
    low, high, size = SUBLANES, 0, SECOND
    while not high or high > 2 * low:
        if attempt(size).fits:
            if size == limit:
                return limit, 0
            low, before = size, low
            size = _aim(attempt(before), attempt(low))
        else:
            high = size
        if high:
            size = 1 << (low.bit_length() + high.bit_length() - 2) // 2
        size = min(max(size, 2 * low), limit)
    return low, high


def _aim(before: BatchTrial, last: BatchTrial) -> int:
    """The largest power of two that should fit, were memory to grow as it just did."""
    grown = last.needed_bytes - before.needed_bytes
    if grown <= 0:
        return last.per_device * SUBLANES
    per_byte = (last.per_device - before.per_device) / grown
    room = last.available_bytes - last.needed_bytes
    size = last.per_device + int(max(0, room) * per_byte)
    return 1 << size.bit_length() - 1
