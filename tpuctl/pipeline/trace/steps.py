"""The steps in a trace: marked by the device, by the program, or seen in repeated launches."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from tpuctl.pipeline.trace.devices import Device
from tpuctl.pipeline.trace.intervals import Interval, Intervals

FEWEST_LAUNCHES = 3
# A step at an edge of the capture that is this much shorter than any inside has been cut off.
CUT_OFF = 0.9


@dataclass(frozen=True)
class Steps:
    """Whole steps in picoseconds, how many were left out because the capture cuts them, source."""

    whole: tuple[Interval, ...] = ()
    dropped: int = 0
    source: str = "no steps were marked"

    @property
    def durations_ms(self) -> list[float]:
        """How long each took."""
        return [(end - start) / 1e9 for start, end in self.whole]


def find_steps(devices: Sequence[Device], marked_by_host: Intervals) -> Steps:
    """Take the steps that a device recorded, else those of the program, else repeated launches."""
    by_device = next((device for device in devices if len(device.steps) > 1), None)
    if by_device:
        whole, dropped = drop_partial(sorted(by_device.steps))
        return Steps(tuple(whole), dropped, f"marked on {by_device.name}")
    if len(marked_by_host) > 1:
        return _periods(marked_by_host, "marked by the program (step_num)")
    if devices and (launches := _most_launched(devices[0])):
        name, intervals = launches
        return _periods(intervals, f"not marked; launches of {name} on {devices[0].name} counted")
    return Steps()


def drop_partial(steps: Sequence[Interval]) -> tuple[Intervals, int]:
    """Leave out what the start and the end of the capture cut off.

    Averaging such a step in is how a run of 120 ms steps comes to be reported as 96 ± 54 ms.
    """
    whole = [step for step in steps if step[1] > step[0]]
    inner = whole[1:-1]
    if not inner:
        return whole, len(steps) - len(whole)
    shortest = CUT_OFF * min(end - start for start, end in inner)
    edges = [[step] if step[1] - step[0] >= shortest else [] for step in (whole[0], whole[-1])]
    kept = [*edges[0], *inner, *edges[1]]
    return kept, len(steps) - len(kept)


def _periods(starts: Sequence[Interval], source: str) -> Steps:
    """From the start of one step to that of the next: work may outlive the call that began it."""
    begins = sorted(start for start, _ in starts)
    pairs = [(a, b) for a, b in itertools.pairwise(begins) if a < b]
    return Steps(tuple(pairs), 1, source)


def _most_launched(device: Device) -> tuple[str, Intervals] | None:
    launches = {
        name: pairs for name, pairs in device.launches.items() if len(pairs) >= FEWEST_LAUNCHES
    }
    if not launches:
        return None
    return max(launches.items(), key=lambda item: sum(end - start for start, end in item[1]))
