"""The idle time of the devices, and to what it belongs. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from tpuctl.pipeline.trace.devices import Device
from tpuctl.pipeline.trace.hosts import NOTHING, OTHER, codes_in_order, what_is
from tpuctl.pipeline.trace.intervals import (
    Interval,
    Intervals,
    clip,
    complement,
    intersect,
    length,
    subtract,
    union,
)
from tpuctl.pipeline.trace.models import Gap, IdleClass, Moment
from tpuctl.pipeline.trace.xspace import PS_PER_S

OTHERS_BUSY = "others_busy"
# What a device did itself while it was not computing says most; the host's classes follow.
ON_THE_DEVICE = {
    "infeed": "the device waits for the host to feed it",
    "outfeed": "the device waits for the host to take its results",
}
MOST_GAPS = 20
MOST_MOMENTS = 400
NOTABLE = 0.05


@dataclass(frozen=True)
class Idle:
    """A window, when all devices were idle in it, and the mean share in which one was."""

    window: Interval
    moments: Intervals
    fraction: float

    @property
    def window_ps(self) -> int:
        """How long the window is."""
        return self.window[1] - self.window[0]


def find_idle(devices: Sequence[Device], window: Interval | None = None) -> Idle | None:
    """Find idle time from the first operation on any device to the last on any.

    One window for all: a chip that starts late has been idle until then.
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
    """What the devices did themselves while they were not computing, by class."""
    codes = {code for device in devices for code in device.waits}
    return {code: union(p for d in devices for p in d.waits.get(code, [])) for code in codes}


def assign(idle: Idle, activity: dict[str, Intervals]) -> dict[str, Intervals]:
    """Divide the moments without work among the classes, the more specific first."""
    rest, assigned = idle.moments, {}
    for code in (*ON_THE_DEVICE, *codes_in_order()):
        if mine := intersect(rest, activity.get(code, [])):
            assigned[code] = mine
            rest = subtract(rest, mine)
    if rest:
        assigned[NOTHING] = rest
    return assigned


def classes(
    idle: Idle, assigned: dict[str, Intervals], activity: dict[str, Intervals]
) -> tuple[IdleClass, ...]:
    """List the classes, the largest first; idle time while other chips work is one of them."""
    total_ps = idle.fraction * idle.window_ps
    if total_ps <= 0:
        return ()
    parts = {code: length(pairs) for code, pairs in assigned.items()}
    parts[OTHERS_BUSY] = max(0, round(total_ps) - sum(parts.values()))
    found = [
        IdleClass(
            code=code,
            what=_what(code),
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
    """The share of the idle time that is in a class, or in which nothing was recorded."""
    if not found:
        return None
    return min(1.0, sum(each.share_of_idle for each in found if each.code != OTHER))


def gaps(idle: Idle, assigned: dict[str, Intervals]) -> tuple[Gap, ...]:
    """The longest gaps in order of time, and the classes that fill more than a little of each."""
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


def timeline(idle: Idle, assigned: dict[str, Intervals]) -> tuple[Moment, ...]:
    """Cut the window into slices of one colour: busy, or the class that fills most of it."""
    start, end = idle.window
    width = max(1, -(-(end - start) // MOST_MOMENTS))
    parts = {"busy": complement(idle.moments, start, end), **assigned}
    times = {code: _in_slices(pairs, start, end, width) for code, pairs in parts.items()}
    moments: list[Moment] = []
    for index, begin in enumerate(range(start, end, width)):
        what = max(times, key=lambda code: times[code][index])
        until = min(begin + width, end)
        if moments and moments[-1].what == what:
            begin_s = moments.pop().start_s
        else:
            begin_s = begin / PS_PER_S
        moments.append(Moment(begin_s, until / PS_PER_S, what))
    return tuple(moments)


def _in_slices(pairs: Intervals, start: int, end: int, width: int) -> list[int]:
    """How much of each slice of the window the pairs cover."""
    covered = [0] * len(range(start, end, width))
    for a, b in pairs:
        a, b = max(a, start), min(b, end)
        while a < b:
            index = (a - start) // width
            until = min(b, start + (index + 1) * width)
            covered[index] += until - a
            a = until
    return covered


def _what(code: str) -> str:
    if code == OTHERS_BUSY:
        return "some devices compute while others wait"
    return ON_THE_DEVICE.get(code) or what_is(code)
