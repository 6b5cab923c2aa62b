"""An XSpace, the file that the TPU, JAX and TensorFlow profilers write: planes, lines, events.

https://github.com/openxla/xla/blob/main/xla/tsl/profiler/protobuf/xplane.proto. Only the frame is
read at once; a line is decoded when it is asked for, and of its events only the times. What is
damaged is left out and told, never guessed.
"""

import functools
import itertools
import re
import statistics
from array import array
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field

from tpuctl.pipeline.trace.wire import (
    ANY_VARINT,
    LENGTH,
    VARINT,
    Damaged,
    decode_varints,
    double,
    field_at,
    fields,
    signed,
    text,
    varint_bytes,
)

PS_PER_S = 10**12
# No capture is a month long; what claims to be is damage.
LONGEST_PS = 30 * 86_400 * PS_PER_S
# Times below are counted from the start of the capture, times above from 1970, in nanoseconds.
EPOCH_NS = 10**15
# Events up to this length are decoded many at a time, longer ones singly.
LONGEST_FAST = 511
CHUNK = 4096

WHOLE_FILE = "the file"

Value = int | float | str | bytes
Span = tuple[int, int]


@dataclass(frozen=True)
class Event:
    """One event with everything that was recorded about it."""

    name: str
    start_ps: int
    duration_ps: int
    stats: dict[str, Value]

    @property
    def end_ps(self) -> int:
        """When it was over."""
        return self.start_ps + self.duration_ps


@dataclass(frozen=True)
class Events:
    """The events of a line in columns: which name each has, when it began, how long it took."""

    ids: "array[int]"
    starts_ps: "array[int]"
    durations_ps: "array[int]"
    places: "array[int]"

    def __len__(self) -> int:
        return len(self.ids)

    def rows(self) -> Iterator[tuple[int, int, int]]:
        """Every event as (name id, start, end)."""
        return zip(self.ids, self.starts_ps, self.ends_ps(), strict=True)

    def spans(self, wanted: Container[int]) -> tuple[list[int], list[int]]:
        """The starts and the ends of the events with these name ids."""
        chosen = list(map(wanted.__contains__, self.ids))
        starts = itertools.compress(self.starts_ps, chosen)
        return list(starts), list(itertools.compress(self.ends_ps(), chosen))

    def ends_ps(self) -> Iterator[int]:
        """When each was over."""
        return map(int.__add__, self.starts_ps, self.durations_ps)


@dataclass
class Line:
    """A row of a plane: the operations of a chip, a stream, a thread."""

    plane: "Plane"
    span: Span
    name: str = ""
    timestamp_ns: int = 0
    _events: Events | None = None

    def events(self) -> Events:
        """Decode the times of all events, once."""
        if self._events is None:
            self._events = self.plane.space.decode(self)
        return self._events

    def detail(self, events: Events, wanted: Iterable[int]) -> Iterator[Event]:
        """Decode whole events, statistics included, at these positions of `events`."""
        plane = self.plane
        for index in wanted:
            name = plane.name_of(events.ids[index])
            stats = plane.read_stats(self._body(events.places[index]))
            yield Event(name, events.starts_ps[index], events.durations_ps[index], stats)

    def _body(self, place: int) -> Span:
        _, _, start, stop = field_at(self.plane.space.data, place, self.span[1])
        return start, stop


@dataclass
class Plane:
    """A device, or the threads of a host."""

    space: "Space"
    span: Span
    name: str = ""
    lines: list[Line] = field(default_factory=list)
    event_spans: dict[int, Span] = field(default_factory=dict)
    stat_names: dict[int, str] = field(default_factory=dict)
    stat_spans: list[Span] = field(default_factory=list)
    _names: dict[int, str] = field(default_factory=dict)

    def name_of(self, event_id: int) -> str:
        """The name of a kind of event; empty where it is not recorded."""
        if event_id not in self._names:
            self._names[event_id] = self._read_name(event_id)
        return self._names[event_id]

    def names(self) -> dict[int, str]:
        """Every kind of event that has a name."""
        return {key: self.name_of(key) for key in self.event_spans}

    def stats(self) -> dict[str, Value]:
        """What is recorded about the plane as a whole."""
        found: dict[str, Value] = {}
        for span in self.stat_spans:
            found.update(self._read_stat(span))
        return found

    def stats_of(self, event_id: int) -> dict[str, Value]:
        """What is recorded about a kind of event."""
        return self.read_stats(self.event_spans.get(event_id, (0, 0)), number=5)

    def read_stats(self, span: Span, number: int = 4) -> dict[str, Value]:
        """Decode the statistics among the fields of a message."""
        found: dict[str, Value] = {}
        for each, kind, start, stop in self.space.walk(span):
            if each == number and kind == LENGTH:
                found.update(self._read_stat((start, stop)))
        return found

    def _read_name(self, event_id: int) -> str:
        name = ""
        for number, kind, start, stop in self.space.walk(self.event_spans.get(event_id, (0, 0))):
            if number == 2 and kind == LENGTH:
                name = text(self.space.data, start, stop)
        return name

    def _read_stat(self, span: Span) -> dict[str, Value]:
        name, value = "", None
        for number, kind, a, b in self.space.walk(span):
            if number == 1 and kind == VARINT:
                name = self.stat_names.get(a, "")
            else:
                value = self._read_value(number, kind, a, b)
        return {name: value} if name and value is not None else {}

    def _read_value(self, number: int, kind: int, a: int, b: int) -> Value | None:
        if kind == VARINT:
            return {3: a, 4: signed(a), 7: self.stat_names.get(a)}.get(number)
        if number == 2 and kind != LENGTH:
            return double(self.space.data, a)
        if kind == LENGTH and number in (5, 6):
            return text(self.space.data, a, b) if number == 5 else bytes(self.space.data[a:b])
        return None


@dataclass
class Space:
    """A whole trace of one host."""

    data: bytes
    planes: list[Plane] = field(default_factory=list)
    hostnames: list[str] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    origin_ns: int = 0
    implausible: int = 0

    def walk(self, span: Span, what: str = "") -> Iterator[tuple[int, int, int, int]]:
        """Walk the fields of a message and tell, instead of raising, where it is damaged."""
        try:
            yield from fields(self.data, *span)
        except Damaged as damaged:
            self.tell(f"{what}: {damaged}" if what else str(damaged))

    def tell(self, damage: str) -> None:
        """Remember a damage."""
        if damage not in self.damage:
            self.damage.append(damage)

    def decode(self, line: Line) -> Events:
        """Decode the times of all events of a line."""
        columns = _Columns()
        try:
            _collect(self.data, line.span, columns)
        except Damaged as damaged:
            self.tell(f"line {line.name!r} of {line.plane.name}: {damaged}")
        columns.flush()
        return self._timed((line.timestamp_ns - self.origin_ns) * 1000, columns)

    def _timed(self, begin: int, columns: "_Columns") -> Events:
        """Count times from the start of the capture and leave out what cannot be."""
        ids, offsets, durations = columns.decoded
        highest = max(offsets, default=0) + max(durations, default=0)
        if abs(begin) + highest < LONGEST_PS:
            starts = array("q", map(begin.__add__, offsets))
            return Events(ids, starts, array("q", durations), columns.places)
        good = [
            index
            for index, (offset, duration) in enumerate(zip(offsets, durations, strict=True))
            if abs(begin) + offset + duration < LONGEST_PS
        ]
        self.implausible += len(ids) - len(good)
        return Events(
            array("Q", [ids[index] for index in good]),
            array("q", [begin + offsets[index] for index in good]),
            array("q", [durations[index] for index in good]),
            array("Q", [columns.places[index] for index in good]),
        )


class _Columns:
    """The numbers of many events: as they were written until there are enough to decode."""

    def __init__(self) -> None:
        self.places = array("Q")
        self.raw: tuple[list[bytes], ...] = ([], [], [])
        self.decoded = (array("Q"), array("Q"), array("Q"))

    def add(self, place: int, *numbers: bytes) -> None:
        """Keep the numbers of one event."""
        self.places.append(place)
        for raw, number in zip(self.raw, numbers, strict=True):
            raw.append(number)

    def flush(self) -> None:
        """Decode what has come together."""
        for raw, decoded in zip(self.raw, self.decoded, strict=True):
            decoded.extend(decode_varints(raw))
            raw.clear()


def _collect(data: bytes, span: Span, columns: _Columns) -> None:
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


def _collect_run(data: bytes, position: int, stop: int, columns: _Columns) -> int:
    """Collect up to a chunk of events that are written as all known profilers do; fast.

    Returns where the first thing begins that was not collected.
    """
    frame, heads = _patterns()
    run = frame.match(data, position, stop)
    if not run:
        return position
    found = heads.findall(data, position, run.end())
    lengths = [head[0] for head in found]
    tags_and_lengths = map((1).__add__, map(len, lengths))
    sizes = map(int.__add__, decode_varints(lengths), tags_and_lengths)
    *places, end = itertools.accumulate(sizes, initial=position)
    if end != run.end():
        _collect_singly(data, position, run.end(), columns)
    else:
        columns.places.extend(places)
        _, *numbers = zip(*found, strict=True)
        for raw, more in zip(columns.raw, numbers, strict=True):
            raw.extend(more)
    return run.end()


def _collect_singly(data: bytes, position: int, stop: int, columns: _Columns) -> None:
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
    times = rb"(?:\x08(%b))?(?:\x10(%b))?(?:\x18(%b))?" % ((ANY_VARINT,) * 3)
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


def read_space(data: bytes) -> Space:
    """Read the frame of a trace. What is no trace at all has no planes."""
    space = Space(data)
    for number, kind, start, stop in space.walk((0, len(data)), WHOLE_FILE):
        if kind != LENGTH or number > 4:
            space.tell(f"{WHOLE_FILE}: there is no field {number} in a trace")
            break
        if number == 1:
            space.planes.append(_read_plane(space, (start, stop)))
        elif number == 4:
            space.hostnames.append(text(data, start, stop))
        else:
            space.said.append(text(data, start, stop))
    stamps = [line.timestamp_ns for plane in space.planes for line in plane.lines]
    middle = statistics.median_low(stamps) if stamps else 0
    space.origin_ns = middle if middle > EPOCH_NS else 0
    return space


def _read_plane(space: Space, span: Span) -> Plane:
    plane = Plane(space, span)
    for number, kind, start, stop in space.walk(span, "a plane"):
        if kind != LENGTH:
            continue
        if number == 2:
            plane.name = text(space.data, start, stop)
        elif number == 3:
            plane.lines.append(_read_line(plane, (start, stop)))
        elif number == 4:
            key, value = _entry(space, (start, stop))
            plane.event_spans[key] = value
        elif number == 5:
            key, value = _entry(space, (start, stop))
            plane.stat_names[key] = _stat_name(space, value)
        elif number == 6:
            plane.stat_spans.append((start, stop))
    return plane


def _read_line(plane: Plane, span: Span) -> Line:
    """Read the head of a line, which is written before its events."""
    line = Line(plane, span)
    for number, kind, start, stop in plane.space.walk(span, "a line"):
        if number == 2 and kind == LENGTH:
            line.name = text(plane.space.data, start, stop)
        elif number == 3 and kind == VARINT:
            line.timestamp_ns = signed(start)
        elif number == 4:
            break
    return line


def _entry(space: Space, span: Span) -> tuple[int, Span]:
    """Read an entry of a map: an integer and a message."""
    key, value = 0, (0, 0)
    for number, kind, start, stop in space.walk(span):
        if number == 1 and kind == VARINT:
            key = start
        elif number == 2 and kind == LENGTH:
            value = (start, stop)
    return key, value


def _stat_name(space: Space, span: Span) -> str:
    name = ""
    for number, kind, start, stop in space.walk(span):
        if number == 2 and kind == LENGTH:
            name = text(space.data, start, stop)
    return name
