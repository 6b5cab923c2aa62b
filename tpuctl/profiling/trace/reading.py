"""Everything that one trace file shows: devices, idle time, host activity, input pipeline."""

import functools
from dataclasses import dataclass
from pathlib import Path

from tpuctl.profiling.trace.devices import Device, Steps, count_flops, find_steps, read_devices
from tpuctl.profiling.trace.files import open_trace
from tpuctl.profiling.trace.idle import (
    Idle,
    assign,
    assigned_fraction,
    classes,
    find_idle,
    gaps,
    read_activity,
    timeline,
    waits_on_devices,
)
from tpuctl.profiling.trace.intervals import Interval, Intervals, clip, intersect, length
from tpuctl.profiling.trace.models import Chip, IdleClass, TraceDetail, TraceSteps
from tpuctl.profiling.trace.stages import MOST_EVENTS, InputPipeline, read_pipeline
from tpuctl.profiling.trace.xspace import PS_PER_S, WHOLE_FILE, Space

MXU_COUNTER = "matrix_unit_utilization_percent"
INPUT_CLASSES = ("input", "infeed")


@dataclass(frozen=True)
class Reading:
    """The trace of one host: devices, idle time, host activity, steps, input pipeline."""

    file: Path
    space: Space
    devices: tuple[Device, ...]
    idle: Idle | None
    activity: dict[str, Intervals]
    steps: Steps
    pipeline: InputPipeline | None

    @property
    def name(self) -> str:
        """The name of the host."""
        return next(iter(self.space.hostnames), self.file.name.partition(".xplane")[0])

    @property
    def session(self) -> Interval | None:
        """Start and end of the capture in nanoseconds since 1970, if recorded."""
        for plane in self.space.planes:
            stats = plane.stats()
            start, stop = stats.get("profile_start_time"), stats.get("profile_stop_time")
            if isinstance(start, int) and isinstance(stop, int) and start < stop:
                return start, stop
        return None

    @property
    def window(self) -> Interval | None:
        """The window of the fractions: that of the devices, else of steps, else of the pipeline."""
        if self.idle:
            return self.idle.window
        if self.steps.whole:
            return self.steps.whole[0][0], self.steps.whole[-1][1]
        return (self.pipeline.first_ps, self.pipeline.last_ps) if self.pipeline else None

    @functools.cached_property
    def steady(self) -> Idle | None:
        """Idle time from the first whole step to the end of the last; None without steps."""
        if not self.idle or len(self.steps.whole) < 2:
            return None
        return find_idle(self.devices, (self.steps.whole[0][0], self.steps.whole[-1][1]))

    @property
    def input_wait_fraction(self) -> float | None:
        """The share of the window spent waiting for a batch; None if unknown."""
        if self.window is None:
            return None
        span = self.window[1] - self.window[0]
        shows_input = self.pipeline or any(code in self.activity for code in INPUT_CLASSES)
        if self.idle and shows_input:
            return sum(length(self.assigned.get(code, [])) for code in INPUT_CLASSES) / span
        if not self.idle and self.pipeline and self.pipeline.root and span:
            return length(clip(self.pipeline.root, *self.window)) / span
        return None

    @functools.cached_property
    def assigned(self) -> dict[str, Intervals]:
        """The idle intervals of the window by class."""
        return assign(self.idle, self.activity) if self.idle else {}

    @property
    def mxu_utilization(self) -> float | None:
        """The value of the counter; zero means that it was not collected."""
        for plane in self.space.planes:
            percent = plane.stats().get(MXU_COUNTER)
            if isinstance(percent, float) and 0 < percent <= 100:
                return percent / 100
        return None

    def classes_of(self, idle: Idle) -> tuple[IdleClass, ...]:
        """The classes of the idle time of a window."""
        if idle is self.idle:
            return classes(idle, self.assigned, self.activity)
        activity = {c: intersect(p, idle.moments) for c, p in self.activity.items()}
        return classes(idle, assign(idle, activity), activity)


def read_trace(file: Path) -> Reading:
    """Read a trace file; raises InvalidInputError for other files."""
    space = open_trace(file)
    devices = read_devices(space)
    idle = find_idle(devices)
    activity = read_activity(space, idle.moments if idle else [])
    return Reading(
        file=file,
        space=space,
        devices=tuple(devices),
        idle=idle,
        activity={**activity.by_class, **waits_on_devices(devices)},
        steps=find_steps(devices, activity.steps),
        pipeline=read_pipeline(space),
    )


def describe(reading: Reading) -> TraceDetail:
    """Everything that only a trace can tell, except for other hosts."""
    idle = reading.idle
    found = reading.classes_of(idle) if idle else ()
    steady = reading.steady
    return TraceDetail(
        accelerator=next((each.accelerator for each in reading.devices if each.accelerator), None),
        chips=_chips(reading),
        steps=TraceSteps(
            len(reading.steps.whole),
            reading.steps.dropped,
            reading.steps.source,
            steady.fraction if steady else None,
        ),
        idle=found,
        idle_s=idle.fraction * idle.window_ps / PS_PER_S if idle else 0.0,
        assigned_idle_fraction=assigned_fraction(found),
        gaps=gaps(idle, reading.assigned) if idle else (),
        timeline=timeline(idle, reading.assigned) if idle else (),
        flops_of_peak=_flops_of_peak(reading),
        hosts=(),
        is_damaged=bool(reading.space.damage or reading.space.implausible),
    )


def _chips(reading: Reading) -> tuple[Chip, ...]:
    if not reading.idle:
        return ()
    start, end = reading.idle.window
    return tuple(
        Chip(each.name, each.operations, each.busy_ps(start, end) / (end - start))
        for each in reading.devices
    )


def _flops_of_peak(reading: Reading) -> float | None:
    """FLOPs of one device (all run the same program) over its peak in the window."""
    if not reading.idle:
        return None
    device = reading.devices[0]
    flops, peak = count_flops(device), device.peak_flops
    if not flops or not peak:
        return None
    return flops / (peak * reading.idle.window_ps / PS_PER_S)


def missing(reading: Reading) -> tuple[str, ...]:
    """Notes on what the file lacks, because it is damaged or was never recorded."""
    space, lines = reading.space, []
    if space.damage:
        # Damage to the file as a whole explains the damage inside.
        first, *rest = sorted(space.damage, key=lambda each: not each.startswith(WHOLE_FILE))
        more = f"; and {len(rest)} more such places" if rest else ""
        lines.append(f"{reading.file.name} is damaged or cut off ({first}{more}).")
    if space.implausible:
        lines.append(f"{space.implausible:,} events with impossible times were skipped.")
    if not reading.devices:
        lines.append("The trace has no active device: idle time and MXU utilization are unknown.")
    if reading.devices and not reading.activity and reading.idle and reading.idle.moments:
        lines.append("The trace has no host events: idle time cannot be explained.")
    if reading.pipeline and reading.pipeline.shortened:
        lines.append(f"Stages cover only the first {MOST_EVENTS:,} events of the input pipeline.")
    lines += [f"Message of the profiler: {message}" for message in space.messages[:3]]
    return tuple(lines)
