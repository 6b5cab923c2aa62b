"""When the devices were idle, and the classes of work that the host did meanwhile."""

import functools
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tpuctl.profiling.reference import load_facts
from tpuctl.profiling.trace.devices import Device
from tpuctl.profiling.trace.intervals import (
    Interval,
    Intervals,
    clip,
    compact,
    complement,
    intersect,
    length,
    subtract,
    union,
)
from tpuctl.profiling.trace.models import Gap, IdleClass, TimelineSlice
from tpuctl.profiling.trace.xspace import PS_PER_S, Events, Line, Plane, Space

OTHER, NOTHING = "other", "none"
STEP_NUMBER = "step_num"
OTHERS_BUSY = "others_busy"
_WHAT_ELSE = {
    OTHER: "other work of the host",
    NOTHING: "no host event was recorded",
    OTHERS_BUSY: "some devices compute while others wait",
}
# What a device itself did while it was not computing is most specific; host classes follow.
ON_THE_DEVICE = {
    "infeed": "the device waits for the host to feed it",
    "outfeed": "the device waits for the host to take its results",
}
MOST_GAPS = 20
# Slices of the timeline: a report cannot show more.
MOST_MOMENTS = 400
NOTABLE = 0.05


@dataclass(frozen=True)
class HostClass:
    """A class of the host's work; earlier ones in the list are more specific."""

    code: str
    what: str
    pattern: "re.Pattern[str]"


@dataclass(frozen=True)
class HostClasses:
    """All classes in order, and the event names that are not activity."""

    classes: tuple[HostClass, ...]
    nothing: "re.Pattern[str]"

    def code_of(self, name: str) -> str:
        """The class of an event; empty if it is not activity."""
        if self.nothing.match(name):
            return ""
        return next((each.code for each in self.classes if each.pattern.match(name)), OTHER)

    def what(self, code: str) -> str:
        """Describe a class."""
        known = {each.code: each.what for each in self.classes}
        return {**_WHAT_ELSE, **known, **ON_THE_DEVICE}[code]


@functools.cache
def host_classes() -> HostClasses:
    """Read the classes from their data file."""
    document = load_facts("trace/host_classes.json")
    return HostClasses(
        tuple(
            HostClass(each["code"], each["what"], re.compile("|".join(each["names"])))
            for each in document["classes"]
        ),
        re.compile("|".join(document["not_activity"])),
    )


@dataclass
class HostActivity:
    """What the host did in some intervals, by class; and all steps that the program marked."""

    by_class: dict[str, Intervals] = field(default_factory=dict)
    steps: Intervals = field(default_factory=list)


def host_planes(space: Space) -> list[Plane]:
    """The planes with threads of the host."""
    return [plane for plane in space.planes if plane.name.startswith("/host:") and plane.lines]


def read_activity(space: Space, moments: Intervals) -> HostActivity:
    """Sort what the host did in some intervals into classes."""
    found: dict[str, Intervals] = defaultdict(list)
    steps: Intervals = []
    for plane in host_planes(space):
        codes = {key: host_classes().code_of(name) for key, name in plane.names().items()}
        for line in plane.lines:
            events = line.events()
            marker = _step_marker(line, events)
            if marker is not None:
                steps += zip(*events.spans({marker}), strict=True)
            for code, pairs in _by_class(events.rows_in(moments), codes, marker).items():
                found[code] += compact(pairs)
    inside = {code: intersect(union(pairs), moments) for code, pairs in found.items()}
    return HostActivity({code: pairs for code, pairs in inside.items() if pairs}, sorted(steps))


def _by_class(
    rows: Iterable[tuple[int, int, int]], codes: dict[int, str], marker: int | None
) -> dict[str, Intervals]:
    found: dict[str, Intervals] = defaultdict(list)
    for event_id, start, end in rows:
        if event_id != marker:
            found[codes.get(event_id, OTHER)].append((start, end))
    found.pop("", None)
    return found


def _step_marker(line: Line, events: Events) -> int | None:
    """The event type with which the program marks its steps on this thread, if it does."""
    if STEP_NUMBER not in line.plane.stat_names.values():
        return None
    first = {event_id: index for index, event_id in reversed(list(enumerate(events.ids)))}
    details = zip(first, line.detail(events, first.values()), strict=True)
    return next((event_id for event_id, event in details if STEP_NUMBER in event.stats), None)


@dataclass(frozen=True)
class Idle:
    """A window, the intervals in which all devices were idle, and the mean idle share of one."""

    window: Interval
    moments: Intervals
    fraction: float

    @property
    def window_ps(self) -> int:
        """The length of the window."""
        return self.window[1] - self.window[0]


def find_idle(devices: Sequence[Device], window: Interval | None = None) -> Idle | None:
    """Find the idle time between the first and the last operation on any device.

    All devices share one window: a chip that starts late was idle until then.
    """
    firsts = [each.first_ps for each in devices if each.first_ps is not None]
    lasts = [each.last_ps for each in devices if each.last_ps is not None]
    if not firsts or not lasts or max(lasts) <= min(firsts):
        return None
    start, end = window or (min(firsts), max(lasts))
    moments, busy_ps = [(start, end)], 0
    for device in devices:
        moments = subtract(moments, device.busy)
        busy_ps += device.busy_ps(start, end)
    return Idle((start, end), moments, 1 - busy_ps / len(devices) / (end - start))


def waits_on_devices(devices: Sequence[Device]) -> dict[str, Intervals]:
    """What the devices themselves did while they were not computing, by class."""
    codes = {code for device in devices for code in device.waits}
    return {code: union(p for d in devices for p in d.waits.get(code, [])) for code in codes}


def assign(idle: Idle, activity: dict[str, Intervals]) -> dict[str, Intervals]:
    """Divide the idle intervals among the classes, the most specific first."""
    rest, assigned = idle.moments, {}
    for code in (*ON_THE_DEVICE, *(each.code for each in host_classes().classes), OTHER):
        if mine := intersect(rest, activity.get(code, [])):
            assigned[code] = mine
            rest = subtract(rest, mine)
    if rest:
        assigned[NOTHING] = rest
    return assigned


def classes(
    idle: Idle, assigned: dict[str, Intervals], activity: dict[str, Intervals]
) -> tuple[IdleClass, ...]:
    """List the classes, the largest first; one is idle time while other devices work."""
    total_ps = idle.fraction * idle.window_ps
    if total_ps <= 0:
        return ()
    parts = {code: length(pairs) for code, pairs in assigned.items()}
    parts[OTHERS_BUSY] = max(0, round(total_ps) - sum(parts.values()))
    found = [
        IdleClass(
            code=code,
            what=host_classes().what(code),
            idle_s=part / PS_PER_S,
            share_of_idle=part / total_ps,
            active_share=length(activity.get(code, assigned.get(code, []))) / total_ps
            if code != OTHERS_BUSY
            else part / total_ps,
        )
        for code, part in parts.items()
        if part
    ]
    return tuple(sorted(found, key=lambda each: -each.idle_s))


def assigned_fraction(found: Sequence[IdleClass]) -> float | None:
    """The share of the idle time in a known class, or in which nothing was recorded."""
    if not found:
        return None
    return min(1.0, sum(each.share_of_idle for each in found if each.code != OTHER))


def gaps(idle: Idle, assigned: dict[str, Intervals]) -> tuple[Gap, ...]:
    """The longest gaps in order of time, each with the classes that fill a notable part of it."""
    longest = sorted(idle.moments, key=lambda pair: pair[0] - pair[1])[:MOST_GAPS]
    return tuple(
        Gap(start / PS_PER_S, end / PS_PER_S, _inside((start, end), assigned))
        for start, end in sorted(longest)
    )


def _inside(gap: Interval, assigned: dict[str, Intervals]) -> tuple[str, ...]:
    shares = {code: length(clip(pairs, *gap)) for code, pairs in assigned.items()}
    whole = gap[1] - gap[0]
    ranked = sorted(shares, key=lambda code: -shares[code])
    return tuple(code for code in ranked if shares[code] > NOTABLE * whole)


def timeline(idle: Idle, assigned: dict[str, Intervals]) -> tuple[TimelineSlice, ...]:
    """Divide the window into slices: busy, or the idle class that fills most of the slice."""
    start, end = idle.window
    width = max(1, -(-(end - start) // MOST_MOMENTS))
    parts = {"busy": complement(idle.moments, start, end), **assigned}
    times = {code: _in_slices(pairs, start, end, width) for code, pairs in parts.items()}
    moments: list[TimelineSlice] = []
    for index, begin in enumerate(range(start, end, width)):
        what = max(times, key=lambda code: times[code][index])
        until = min(begin + width, end)
        if moments and moments[-1].what == what:
            begin_s = moments.pop().start_s
        else:
            begin_s = begin / PS_PER_S
        moments.append(TimelineSlice(begin_s, until / PS_PER_S, what))
    return tuple(moments)


def _in_slices(pairs: Intervals, start: int, end: int, width: int) -> list[int]:
    """How much of each slice of the window the intervals cover."""
    covered = [0] * len(range(start, end, width))
    for a, b in pairs:
        a, b = max(a, start), min(b, end)
        while a < b:
            index = (a - start) // width
            until = min(b, start + (index + 1) * width)
            covered[index] += until - a
            a = until
    return covered
