"""An XSpace, the file that the TPU, JAX and TensorFlow profilers write: planes, lines, events.

https://github.com/openxla/xla/blob/main/xla/tsl/profiler/protobuf/xplane.proto. Only the structure
is read at first; a line is decoded when it is needed, and only the times of its events. Damaged
parts are skipped and reported, never guessed.
"""

import itertools
import operator
import statistics
from array import array
from bisect import bisect_right
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from tpuctl.profiling.trace.events import Columns, Span, collect, find_places
from tpuctl.profiling.trace.intervals import Intervals
from tpuctl.protobuf_wire import (
    LANE_BITS,
    LENGTH,
    VARINT,
    Damaged,
    add_lanes,
    double,
    field_at,
    fields,
    signed,
    text,
)

PS_PER_S = 10**12
# No capture is a month long; a longer one is damaged.
LONGEST_PS = 30 * 86_400 * PS_PER_S
# Timestamps below are from the start of the capture, those above from 1970, in nanoseconds.
EPOCH_NS = 10**15
# Later than any time: the end of the search when no interval is left.
NEVER_PS = 1 << 63
WHOLE_FILE = "the file"

Value = int | float | str | bytes


@dataclass(frozen=True)
class Event:
    """One event with everything that was recorded about it."""

    name: str
    start_ps: int
    duration_ps: int
    stats: dict[str, Value]

    @property
    def end_ps(self) -> int:
        """When it ended."""
        return self.start_ps + self.duration_ps


@dataclass(frozen=True)
class Events:
    """The events of a line in columns: name id, start and end of each.

    `recorded` is the position of each in the line.
    """

    ids: "array[int]"
    starts_ps: "array[int]"
    ends_ps: "array[int]"
    recorded: Sequence[int]

    def __len__(self) -> int:
        return len(self.ids)

    def rows(self) -> Iterator[tuple[int, int, int]]:
        """Every event as (name id, start, end)."""
        return zip(self.ids, self.starts_ps, self.ends_ps, strict=True)

    def rows_in(self, intervals: Intervals) -> Iterator[tuple[int, int, int]]:
        """The events that overlap any of some intervals, as in `rows`."""
        starts = [*(start for start, _ in intervals), NEVER_PS]
        ends = [end for _, end in intervals]
        # The first interval that has not ended when an event starts.
        nearest = map(bisect_right, itertools.repeat(ends), self.starts_ps)
        overlaps = map(operator.lt, map(starts.__getitem__, nearest), self.ends_ps)
        return itertools.compress(self.rows(), overlaps)

    def spans(self, wanted: Container[int] | None = None) -> tuple[list[int], list[int]]:
        """The starts and the ends of all events, or of those with these name ids."""
        if wanted is None:
            return list(self.starts_ps), list(self.ends_ps)
        chosen = list(map(wanted.__contains__, self.ids))
        starts = itertools.compress(self.starts_ps, chosen)
        return list(starts), list(itertools.compress(self.ends_ps, chosen))


@dataclass
class Line:
    """A row of a plane: the operations of a chip, a stream, a thread."""

    plane: "Plane"
    span: Span
    name: str = ""
    timestamp_ns: int = 0
    _events: Events | None = None
    _places: "array[int] | None" = None

    def events(self) -> Events:
        """Decode the times of all events, once."""
        if self._events is None:
            self._events = self.plane.space.decode(self)
        return self._events

    def detail(self, events: Events, wanted: Iterable[int]) -> Iterator[Event]:
        """Decode the events at these positions of `events` with their statistics."""
        if self._places is None:
            self._places = find_places(self.plane.space.data, self.span)
        for index in wanted:
            start, end = events.starts_ps[index], events.ends_ps[index]
            place = self._places[events.recorded[index]]
            _, _, first, last = field_at(self.plane.space.data, place, self.span[1])
            name = self.plane.name_of(events.ids[index])
            yield Event(name, start, end - start, self.plane.read_stats((first, last)))


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
        """The name of an event type; empty if it is not recorded."""
        if event_id not in self._names:
            span = self.event_spans.get(event_id, (0, 0))
            self._names[event_id] = self.space.name_in(span)
        return self._names[event_id]

    def names(self) -> dict[int, str]:
        """The names of all event types."""
        return {key: self.name_of(key) for key in self.event_spans}

    def stats(self) -> dict[str, Value]:
        """The statistics of the whole plane."""
        found: dict[str, Value] = {}
        for span in self.stat_spans:
            found.update(self._read_stat(span))
        return found

    def stats_of(self, event_id: int) -> dict[str, Value]:
        """The statistics of an event type."""
        return self.read_stats(self.event_spans.get(event_id, (0, 0)), number=5)

    def read_stats(self, span: Span, number: int = 4) -> dict[str, Value]:
        """Decode the statistics among the fields of a message."""
        found: dict[str, Value] = {}
        for each, kind, start, stop in self.space.walk(span):
            if each == number and kind == LENGTH:
                found.update(self._read_stat((start, stop)))
        return found

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
            # XStat: 3 uint64, 4 int64, 7 a reference to a name; 2 double, 5 text, 6 bytes.
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
    messages: list[str] = field(default_factory=list)
    origin_ns: int = 0
    implausible: int = 0

    def walk(self, span: Span, what: str = "") -> Iterator[tuple[int, int, int, int]]:
        """Walk the fields of a message; damage is recorded instead of raised."""
        try:
            yield from fields(self.data, *span)
        except Damaged as damaged:
            self.record_damage(f"{what}: {damaged}" if what else str(damaged))

    def name_in(self, span: Span) -> str:
        """Read the name of an event type or a statistic from its metadata; empty if missing."""
        name = ""
        for number, kind, start, stop in self.walk(span):
            if number == 2 and kind == LENGTH:
                name = text(self.data, start, stop)
        return name

    def record_damage(self, damage: str) -> None:
        """Add a damaged place to the list."""
        if damage not in self.damage:
            self.damage.append(damage)

    def decode(self, line: Line) -> Events:
        """Decode the times of all events of a line."""
        columns = Columns()
        try:
            collect(self.data, line.span, columns)
        except Damaged as damaged:
            self.record_damage(f"line {line.name!r} of {line.plane.name}: {damaged}")
        columns.flush()
        return self._timed((line.timestamp_ns - self.origin_ns) * 1000, columns)

    def _timed(self, begin: int, columns: Columns) -> Events:
        """Count times from the start of the capture, and drop events with impossible ones."""
        ids, offsets, durations = columns.ids, columns.offsets, columns.durations
        if columns.are_short and 0 <= begin < LONGEST_PS - (2 << LANE_BITS):
            starts = add_lanes(offsets, array("Q", [begin]) * len(ids))
            return Events(ids, starts, add_lanes(starts, durations), range(len(ids)))
        good = [
            index
            for index, (offset, duration) in enumerate(zip(offsets, durations, strict=True))
            if abs(begin) + offset + duration < LONGEST_PS
        ]
        self.implausible += len(ids) - len(good)
        return Events(
            array("Q", [ids[index] for index in good]),
            array("q", [begin + offsets[index] for index in good]),
            array("q", [begin + offsets[index] + durations[index] for index in good]),
            array("Q", good),
        )


def read_space(data: bytes) -> Space:
    """Read the structure of a trace. A file that is not a trace has no planes."""
    space = Space(data)
    # XSpace: 1 planes, 2 errors, 3 warnings, 4 host names.
    for number, kind, start, stop in space.walk((0, len(data)), WHOLE_FILE):
        if kind != LENGTH or number > 4:
            space.record_damage(f"{WHOLE_FILE}: unknown field {number}")
            break
        if number == 1:
            space.planes.append(_read_plane(space, (start, stop)))
        elif number == 4:
            space.hostnames.append(text(data, start, stop))
        else:
            space.messages.append(text(data, start, stop))
    space.origin_ns = _origin_ns(
        [line.timestamp_ns for each in space.planes for line in each.lines]
    )
    return space


def _origin_ns(stamps: Sequence[int]) -> int:
    """When the capture started: at the first line, except lines far from all others."""
    middle = statistics.median_low(stamps) if stamps else 0
    if middle <= EPOCH_NS:
        return 0
    return min(each for each in stamps if (middle - each) * 1000 < LONGEST_PS)


def _read_plane(space: Space, span: Span) -> Plane:
    plane = Plane(space, span)
    # XPlane: 2 name, 3 lines, 4 and 5 the metadata of events and statistics, 6 its statistics.
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
            plane.stat_names[key] = space.name_in(value)
        elif number == 6:
            plane.stat_spans.append((start, stop))
    return plane


def _read_line(plane: Plane, span: Span) -> Line:
    """Read the header of a line, which is written before its events."""
    line = Line(plane, span)
    # XLine: 2 name, 3 timestamp, 4 events. The header ends at the first event.
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
