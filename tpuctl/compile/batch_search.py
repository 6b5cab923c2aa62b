"""Find the largest batch size that fits, in few compilations. Pure.

Memory does not grow evenly with the batch: close to the limit the compiler recomputes values to
save it. So sizes grow in powers of two, the first one predicted from two small ones, and the last
interval is bisected. The result is a multiple of 8, the sublanes of a register, and for large
batches it is exact to about 3 %.
"""

from collections.abc import Callable
from dataclasses import dataclass

SUBLANES = 8
SECOND_SIZE = 64
LARGEST_SIZE = 1 << 20  # a power of two, as all sizes between the first two and the bisection
# The bisection stops at 1/32, about 3 %, of the size that fits.
PARTS = 32


@dataclass(frozen=True)
class BatchTrial:
    """A batch size per device, and the memory that it needs of what is available."""

    per_device: int
    fits: bool
    needed_bytes: int
    available_bytes: int


@dataclass(frozen=True)
class LargestBatch:
    """The largest batch per device that fits, the next one that does not, and all trials.

    `best` is None if nothing fits, `next_too_large` is None if everything does.
    """

    best: BatchTrial | None
    next_too_large: BatchTrial | None
    tried: tuple[BatchTrial, ...]


def find_largest(compile_for: Callable[[int], BatchTrial]) -> LargestBatch:
    """Find the largest batch per device."""
    tried: dict[int, BatchTrial] = {}

    def attempt(size: int) -> BatchTrial:
        if size not in tried:
            tried[size] = compile_for(size)
        return tried[size]

    low, high = _bracket(attempt)
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


def _bracket(attempt: Callable[[int], BatchTrial]) -> tuple[int, int]:
    """Find a power of two that fits and its double that does not; 0 means there is none."""
    if not attempt(SUBLANES).fits:
        low, high = 0, SUBLANES
        while high > 1 and not low:
            low, high = (high // 2, high) if attempt(high // 2).fits else (0, high // 2)
        return low, high
    low, high, size = SUBLANES, 0, SECOND_SIZE
    while not high or high > 2 * low:
        if attempt(size).fits:
            if size == LARGEST_SIZE:
                return size, 0
            low, before = size, low
            size = _predict(attempt(before), attempt(low))
        else:
            high = size
        if high:
            size = 1 << (low.bit_length() + high.bit_length() - 2) // 2
        size = min(max(size, 2 * low), LARGEST_SIZE)
    return low, high


def _predict(before: BatchTrial, last: BatchTrial) -> int:
    """Predict the largest power of two that fits if memory keeps growing at the same rate."""
    grown = last.needed_bytes - before.needed_bytes
    if grown <= 0:
        return last.per_device * SUBLANES
    per_byte = (last.per_device - before.per_device) / grown
    room = last.available_bytes - last.needed_bytes
    size = last.per_device + int(max(0, room) * per_byte)
    return 1 << size.bit_length() - 1
