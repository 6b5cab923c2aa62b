"""The events of a line, decoded by the thousand: a trace of 100 MB has millions of them."""

import functools
import itertools
import re
from array import array
from collections.abc import Iterable, Sequence

from tpuctl.pipeline.trace.wire import (
    LANE_BYTES,
    LENGTH,
    SHORT_VARINT,
    VARINT,
    Damaged,
    decode_varints,
    field_at,
    fields,
    varint_bytes,
)

Span = tuple[int, int]
# Events up to this length are decoded many at a time, longer ones singly.
LONGEST_FAST = 511
CHUNK = 4096


class Columns:
    """The numbers of many events: as they were written until there are enough to decode."""

    def __init__(self) -> None:
        self.places = array("Q")
        self.raw: tuple[list[bytes], ...] = ([], [], [])
        self.decoded = (array("Q"), array("Q"), array("Q"))
        # Whether none was longer than eight bytes: as picoseconds, 20 hours.
        self.are_short = True

    def add(self, place: int, *numbers: bytes) -> None:
        """Keep the numbers of one event."""
        self.places.append(place)
        self.are_short = self.are_short and max(map(len, numbers)) <= LANE_BYTES
        for raw, number in zip(self.raw, numbers, strict=True):
            raw.append(number)

    def flush(self) -> None:
        """Decode what has come together."""
        for raw, decoded in zip(self.raw, self.decoded, strict=True):
            decoded.extend(decode_varints(raw, are_short=self.are_short))
            raw.clear()


def collect(data: bytes, span: Span, columns: Columns) -> None:
    """Walk the fields of a line and collect its events; raises Damaged where it breaks off."""
    position, stop = span
    while position < stop:
        before = position
        position = _collect_run(data, position, stop, columns)
        if position == before:
            number, kind, start, position = field_at(data, position, stop)
            if position > stop:
                raise Damaged(stop, f"{position - stop:,} bytes are missing")
            if number == 4 and kind == LENGTH:
                columns.add(before, *_times(data, (start, position)))
        if len(columns.raw[0]) >= CHUNK:
            columns.flush()


def _collect_run(data: bytes, position: int, stop: int, columns: Columns) -> int:
    """Collect up to a chunk of events that are written as all known profilers do; fast.

    Returns where the first thing begins that was not collected.
    """
    frame, heads = _patterns()
    run = frame.match(data, position, stop)
    if not run:
        return position
    found = heads.findall(data, position, run.end())
    lengths, *numbers = zip(*found, strict=True) if found else ((), ())
    *places, end = itertools.accumulate(_sizes(lengths), initial=position)
    if end != run.end():
        _collect_singly(data, position, run.end(), columns)
    else:
        columns.places.extend(places)
        for raw, more in zip(columns.raw, numbers, strict=True):
            raw.extend(more)
    return run.end()


def _sizes(lengths: Sequence[bytes]) -> Iterable[int]:
    """How long events are, tags and lengths included, from their lengths as written."""
    joined = b"".join(lengths)
    if len(joined) == len(lengths):
        return map((2).__add__, joined)
    tags_and_lengths = map((1).__add__, map(len, lengths))
    return map(int.__add__, decode_varints(lengths, are_short=True), tags_and_lengths)


def _collect_singly(data: bytes, position: int, stop: int, columns: Columns) -> None:
    """Collect a run of events of which some are written in another way."""
    _, heads = _patterns()
    while position < stop:
        *_, start, end = field_at(data, position, stop)
        match = heads.match(data, position, stop)
        columns.add(position, *(match.groups(b"")[1:] if match else _times(data, (start, end))))
        position = end


@functools.cache
def _patterns() -> tuple["re.Pattern[bytes]", "re.Pattern[bytes]"]:
    """What a run of whole events looks like, and what stands at the head of each.

    A regular expression cannot count, so there is an alternative for every length.
    """
    sizes = ((varint_bytes(size), size) for size in range(2, LONGEST_FAST + 1))
    body = b"|".join(re.escape(prefix) + b".{%d}" % size for prefix, size in sizes)
    times = rb"(?:\x08(%b))?(?:\x10(%b))?(?:\x18(%b))?" % ((SHORT_VARINT,) * 3)
    # What may follow the times: statistics, occurrences, the next event, a later field of the line.
    head = rb"([\x80-\xff]?[\x00-\x7f])%b(?:[\x22\x28\x48\x50\x5a]|\Z)" % times
    return (
        re.compile(rb"(?:\x22(?:%b)){1,%d}" % (body, CHUNK), re.DOTALL),
        re.compile(rb"\x22(?=%b)(?:%b)" % (head, body), re.DOTALL),
    )


def _times(data: bytes, span: Span) -> list[bytes]:
    """The numbers of one event whose fields may stand in any order."""
    numbers = {1: b"\0", 2: b"\0", 3: b"\0"}
    for number, kind, value, _ in fields(data, *span):
        if kind == VARINT and number in numbers:
            numbers[number] = varint_bytes(value)
    return list(numbers.values())
