"""Sets of moments: sorted (start, end) pairs that neither touch nor overlap."""

import itertools
from bisect import bisect_right
from collections.abc import Iterable, Sequence

Interval = tuple[int, int]
Intervals = list[Interval]


def union(pairs: Iterable[Interval]) -> Intervals:
    """Sort pairs and merge those that touch; empty and backward ones vanish."""
    merged: Intervals = []
    start = end = None
    for a, b in sorted(pairs):
        if b <= a:
            continue
        if end is None or start is None:
            start, end = a, b
        elif a <= end:
            end = max(end, b)
        else:
            merged.append((start, end))
            start, end = a, b
    if start is not None and end is not None:
        merged.append((start, end))
    return merged


def compact(pairs: Iterable[Interval]) -> Intervals:
    """Merge neighbours that overlap, so that a later union has less to sort."""
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


def intersect(a: Sequence[Interval], b: Sequence[Interval]) -> Intervals:
    """Moments that are in both."""
    both: Intervals = []
    i = j = 0
    while i < len(a) and j < len(b):
        start, end = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if start < end:
            both.append((start, end))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return both


def subtract(a: Sequence[Interval], b: Sequence[Interval]) -> Intervals:
    """Moments that are in the first and not in the second."""
    return intersect(a, complement(b, a[0][0], a[-1][1])) if a else []


def complement(a: Sequence[Interval], start: int, end: int) -> Intervals:
    """Moments between start and end that are not in `a`."""
    edges = [start, *(edge for pair in a for edge in pair), end]
    pairs = zip(edges[::2], edges[1::2], strict=True)
    return [(max(x, start), min(y, end)) for x, y in pairs if max(x, start) < min(y, end)]


def length(a: Sequence[Interval]) -> int:
    """How long all of them are together."""
    return sum(end - start for start, end in a)


class Coverage:
    """How much of any stretch of time a set of moments covers, found by bisection."""

    def __init__(self, moments: Sequence[Interval]) -> None:
        self._starts = [start for start, _ in moments]
        self._moments = moments
        self._before = list(itertools.accumulate((b - a for a, b in moments), initial=0))

    def between(self, start: int, end: int) -> int:
        """How much of it lies between two moments."""
        return self._until(end) - self._until(start)

    def _until(self, moment: int) -> int:
        index = bisect_right(self._starts, moment)
        if not index:
            return 0
        start, end = self._moments[index - 1]
        return self._before[index - 1] + min(moment, end) - start
