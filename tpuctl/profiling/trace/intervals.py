"""Sets of time intervals: sorted (start, end) pairs that neither touch nor overlap."""

import itertools
import operator
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

Interval = tuple[int, int]
Intervals = list[Interval]
# If the other set is this many times larger, look up each interval instead of merging.
FEW = 32
_START, _END = operator.itemgetter(0), operator.itemgetter(1)


def union(pairs: Iterable[Interval]) -> Intervals:
    """Sort pairs and merge those that touch; empty and reversed ones are dropped."""
    return compact(sorted(pairs))


def compact(pairs: Iterable[Interval]) -> Intervals:
    """Merge neighbours that touch, so that a later union has less to sort."""
    merged: Intervals = []
    start = end = 0
    for a, b in pairs:
        if start <= a <= end:
            if b > end:
                end = b
        else:
            if end > start:
                merged.append((start, end))
            start, end = a, b
    if end > start:
        merged.append((start, end))
    return merged


def merge_columns(starts: Sequence[int], ends: Sequence[int]) -> Intervals:
    """Merge intervals given as columns; fast if they are sorted and apart already."""
    in_order = all(map(operator.le, ends, itertools.islice(starts, 1, None)))
    if in_order and all(map(operator.lt, starts, ends)):
        return list(zip(starts, ends, strict=True))
    return union(compact(zip(starts, ends, strict=True)))


def intersect(a: Sequence[Interval], b: Sequence[Interval]) -> Intervals:
    """The parts that are in both sets."""
    both: Intervals = []
    if not a or not b:
        return both
    left, right = iter(a), iter(b)
    (start, end), (other_start, other_end) = next(left), next(right)
    try:
        while True:
            if end <= other_start:
                start, end = next(left)
            elif other_end <= start:
                other_start, other_end = next(right)
            else:
                low = start if start > other_start else other_start
                if end <= other_end:
                    both.append((low, end))
                    start, end = next(left)
                else:
                    both.append((low, other_end))
                    other_start, other_end = next(right)
    except StopIteration:
        return both


def clip(a: Intervals, start: int, end: int) -> Intervals:
    """The parts of a set between two times, found by bisection."""
    first = bisect_right(a, start, key=_END)
    inside = a[first : bisect_left(a, end, lo=first, key=_START)]
    if inside:
        inside[0] = max(start, inside[0][0]), inside[0][1]
        inside[-1] = inside[-1][0], min(end, inside[-1][1])
    return inside


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """The parts of the first set that are not in the second."""
    if len(a) * FEW < len(b):
        return [rest for moment in a for rest in complement(b, *moment)]
    return intersect(a, complement(b, a[0][0], a[-1][1])) if a else []


def complement(a: Intervals, start: int, end: int) -> Intervals:
    """The parts between start and end that are not in `a`."""
    inside = clip(a, start, end)
    begins, ends = [start, *map(_END, inside)], [*map(_START, inside), end]
    # Intervals of a set never touch, so only the first and the last gap can be empty.
    first, last = begins[0] >= ends[0], begins[-1] >= ends[-1]
    return list(zip(begins, ends, strict=True))[first : len(ends) - last]


def length(a: Sequence[Interval]) -> int:
    """The total length."""
    whole: int = sum(map(_END, a)) - sum(map(_START, a))
    return whole


class Coverage:
    """How much of any time span a set of intervals covers, found by bisection."""

    def __init__(self, moments: Sequence[Interval]) -> None:
        self._starts = [start for start, _ in moments]
        self._moments = moments
        self._before = list(itertools.accumulate((b - a for a, b in moments), initial=0))

    def between(self, start: int, end: int) -> int:
        """The covered time between two times."""
        return self._until(end) - self._until(start)

    def _until(self, moment: int) -> int:
        index = bisect_right(self._starts, moment)
        if not index:
            return 0
        start, end = self._moments[index - 1]
        return self._before[index - 1] + min(moment, end) - start
