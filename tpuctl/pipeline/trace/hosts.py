"""What the threads of the host did, in classes; above all while the devices were idle."""

import functools
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib.resources import files

from tpuctl.pipeline.trace.intervals import Intervals, compact, intersect, union
from tpuctl.pipeline.trace.xspace import Events, Line, Plane, Space

OTHER, NOTHING = "other", "none"
STEP_NUMBER = "step_num"
_WHAT_ELSE = {OTHER: "other work of the host", NOTHING: "no host event was recorded"}


@dataclass(frozen=True)
class HostClass:
    """A kind of work of the host; earlier ones in the list are the more specific."""

    code: str
    what: str
    pattern: "re.Pattern[str]"


@dataclass(frozen=True)
class HostClasses:
    """All kinds, in order, and names that are no activity."""

    classes: tuple[HostClass, ...]
    nothing: "re.Pattern[str]"

    def code_of(self, name: str) -> str:
        """The class of an event; empty for what is no activity."""
        if self.nothing.match(name):
            return ""
        return next((each.code for each in self.classes if each.pattern.match(name)), OTHER)

    def what(self, code: str) -> str:
        """Say what a class is."""
        known = {each.code: each.what for each in self.classes}
        return known.get(code) or _WHAT_ELSE[code]


@functools.cache
def host_classes() -> HostClasses:
    """Read the classes from their data file."""
    place = files("tpuctl.pipeline.trace").joinpath("host_classes.json")
    document = json.loads(place.read_text(encoding="utf-8"))
    return HostClasses(
        tuple(
            HostClass(each["code"], each["what"], re.compile("|".join(each["names"])))
            for each in document["classes"]
        ),
        re.compile("|".join(document["not_activity"])),
    )


@dataclass
class HostActivity:
    """What the host did in some moments, by class, and in any; and the steps it marked."""

    by_class: dict[str, Intervals] = field(default_factory=dict)
    steps: Intervals = field(default_factory=list)


def host_planes(space: Space) -> list[Plane]:
    """The planes that hold threads."""
    return [plane for plane in space.planes if plane.name.startswith("/host:") and plane.lines]


def read_activity(space: Space, moments: Intervals) -> HostActivity:
    """Sort what the host did in certain moments into classes."""
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
    """The kind of event with which the program marks its steps on this thread."""
    if STEP_NUMBER not in line.plane.stat_names.values():
        return None
    first = {event_id: index for index, event_id in reversed(list(enumerate(events.ids)))}
    details = zip(first, line.detail(events, first.values()), strict=True)
    return next((event_id for event_id, event in details if STEP_NUMBER in event.stats), None)


def what_is(code: str) -> str:
    """Say what a class is."""
    return host_classes().what(code)


def codes_in_order() -> Sequence[str]:
    """All classes, the most specific first."""
    return [*(each.code for each in host_classes().classes), OTHER]
