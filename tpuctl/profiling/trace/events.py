"""Decode the events of a line thousands at a time: a trace of 100 MB has millions of them."""

import contextlib
import functools
import itertools
import re
import struct
from array import array
from collections.abc import Sequence

from tpuctl.protobuf_wire import (
    LANE_BITS,
    LENGTH,
    SHORT_VARINT,
    VARINT,
    Damaged,
    decode_lanes,
    field_at,
    fields,
    varint_bytes,
)

Span = tuple[int, int]
# Name id, offset and duration as encoded, and the bytes after them that did not match.
Row = tuple[bytes, bytes, bytes, bytes]
# Events up to this length are decoded many at a time, longer ones one by one.
LONGEST_FAST = 511
ROWS = 4096
# Bytes matched at a time; if a match fails early, at most this much is copied in vain.
_RUN_BYTES = 1 << 14
_EVENT_TAG = 4 << 3 | LENGTH
_LAYOUT = struct.Struct("8s8s8s0s" * ROWS)
_NO_ROW: Row = (b"", b"", b"", b"")


class Columns:
    """The numbers of many events; encoded until there are enough to decode."""

    def __init__(self) -> None:
        self.ids, self.offsets, self.durations = array("Q"), array("Q"), array("Q")
        # Whether every number fits into a lane: 20 hours in picoseconds.
        self.are_short = True
        self._rows: list[Row] = []

    def extend(self, rows: Sequence[Row]) -> None:
        """Add the short numbers of some events."""
        self._rows += rows
        if len(self._rows) >= ROWS:
            self._decode(ROWS)

    def add(self, event_id: int, offset: int, duration: int) -> None:
        """Add the numbers of one event of any size."""
        if max(event_id, offset, duration) >> LANE_BITS:
            self.flush()
            self.are_short = False
            self._append((event_id,), (offset,), (duration,))
        else:
            short = (varint_bytes(event_id), varint_bytes(offset), varint_bytes(duration), b"")
            self.extend([short])

    def flush(self) -> None:
        """Decode the rest."""
        while self._rows:
            self._decode(ROWS)

    def _decode(self, count: int) -> None:
        rows, self._rows = self._rows[:count], self._rows[count:]
        padding = itertools.repeat(_NO_ROW, ROWS - len(rows))
        lanes = _LAYOUT.pack(*itertools.chain.from_iterable(itertools.chain(rows, padding)))
        numbers = decode_lanes(lanes)[: 3 * len(rows)]
        self._append(numbers[0::3], numbers[1::3], numbers[2::3])

    def _append(self, *more: Sequence[int]) -> None:
        for column, values in zip((self.ids, self.offsets, self.durations), more, strict=True):
            column.extend(values)


def collect(data: bytes, span: Span, columns: Columns) -> None:
    """Walk the fields of a line and collect its events; raises Damaged."""
    position, stop = span
    while position < stop:
        before = position
        position = _collect_run(data, position, stop, columns)
        if position == before:
            number, kind, start, position = field_at(data, position, stop)
            if position > stop:
                raise Damaged(stop, f"{position - stop:,} bytes are missing")
            if number == 4 and kind == LENGTH:
                columns.add(*_times(data, (start, position)))


def find_places(data: bytes, span: Span) -> "array[int]":
    """Walk the fields of a line again and find where each event starts."""
    places = array("Q")
    position, stop = span
    with contextlib.suppress(Damaged):
        while position < stop - 1:
            place = position
            # Nearly all are shorter than 128 bytes.
            if data[place] == _EVENT_TAG and (size := data[place + 1]) < 0x80:
                position += 2 + size
            else:
                number, kind, _, position = field_at(data, place, stop)
                if number != 4 or kind != LENGTH:
                    continue
            places.append(place)
    return places


def _collect_run(data: bytes, position: int, stop: int, columns: Columns) -> int:
    """Collect events that are encoded as all known profilers do, which is fast.

    Returns the position of the first field that was not collected.
    """
    limit = min(stop, position + _RUN_BYTES)
    rows: list[Row] = _usual_events().findall(data, position, limit)
    left = len(rows[-1][-1])
    columns.extend(rows[:-1] if left else rows)
    return limit - left


@functools.cache
def _usual_events() -> "re.Pattern[bytes]":
    """Match an event whose fields are in the usual order; else, all the rest.

    A regular expression cannot count, so there is an alternative for every length.
    """
    sizes = ((varint_bytes(size), size) for size in range(2, LONGEST_FAST + 1))
    body = b"|".join(re.escape(prefix) + b".{%d}" % size for prefix, size in sizes)
    times = rb"(?:\x08(%b)|)(?:\x10(%b)|)(?:\x18(%b)|)" % ((SHORT_VARINT,) * 3)
    # What may follow: statistics, occurrences, the next event, a later field of the line.
    head = rb"[\x80-\xff]?[\x00-\x7f]%b[\x22\x28\x48\x50\x5a]" % times
    return re.compile(rb"\x22(?=%b)(?:%b)|(.+)" % (head, body), re.DOTALL)


def _times(data: bytes, span: Span) -> list[int]:
    """The numbers of one event whose fields may be in any order."""
    numbers = {1: 0, 2: 0, 3: 0}
    for number, kind, value, _ in fields(data, *span):
        if kind == VARINT and number in numbers:
            numbers[number] = value
    return list(numbers.values())
