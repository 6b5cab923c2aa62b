"""What a trace tells beyond a measured profile: chips, idle time and what the host did in it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Chip:
    """One device of the trace; its busy fraction is of the window."""

    name: str
    operations: int
    busy_fraction: float


@dataclass(frozen=True)
class IdleClass:
    """Idle time of the devices by what the host did meanwhile.

    Shares of idle time add up to 1: where several things happened at once, the more specific one
    has it. `active_share` is the share of the idle time in which this went on, alone or not.
    """

    code: str
    what: str
    idle_s: float
    share_of_idle: float
    active_share: float


@dataclass(frozen=True)
class Gap:
    """A stretch in which all devices were idle, and the classes that filled most of it."""

    start_s: float
    end_s: float
    classes: tuple[str, ...]


@dataclass(frozen=True)
class Moment:
    """A piece of the timeline: what happened in it, in seconds of the capture."""

    start_s: float
    end_s: float
    what: str


@dataclass(frozen=True)
class TraceSteps:
    """The steps in a trace, where they were found, and how many were cut off by its ends."""

    count: int
    dropped: int
    source: str
    device_idle_fraction: float | None


@dataclass(frozen=True)
class HostTrace:
    """One host of a capture with several."""

    name: str
    file: str
    device_idle_fraction: float | None


@dataclass(frozen=True)
class TraceDetail:
    """Everything that only a trace can tell.

    `assigned_idle_fraction` is the share of idle time that belongs to a class of host events or in
    which no host event was recorded at all. `flops_of_peak` is null where the trace lacks FLOPs or
    the peak; the use of the matrix unit cannot be above it.
    """

    accelerator: str | None
    chips: tuple[Chip, ...]
    steps: TraceSteps
    idle: tuple[IdleClass, ...]
    idle_s: float
    assigned_idle_fraction: float | None
    gaps: tuple[Gap, ...]
    timeline: tuple[Moment, ...]
    flops_of_peak: float | None
    hosts: tuple[HostTrace, ...]
    is_damaged: bool
