"""What a trace tells beyond a measured profile: chips, idle time and the host's work in it."""

from dataclasses import dataclass

# A trace has an operation's time from start to end, even while another program has its vCPU: with
# others using 70 % of the vCPUs, shares were wrong by up to 0.20, those of the runtime's model by
# up to 0.12.
MOST_OTHERS = 0.25


@dataclass(frozen=True)
class Chip:
    """One device of the trace, and the fraction of the window in which it was busy."""

    name: str
    operations: int
    busy_fraction: float


@dataclass(frozen=True)
class IdleClass:
    """Idle time of the devices during one class of host activity.

    Shares of idle time add up to 1: if several things happened at once, the most specific one
    counts. `active_share` is the share of the idle time in which this went on, alone or not.
    """

    code: str
    what: str
    idle_s: float
    share_of_idle: float
    active_share: float


@dataclass(frozen=True)
class Gap:
    """An interval in which all devices were idle, and the classes that filled most of it."""

    start_s: float
    end_s: float
    classes: tuple[str, ...]


@dataclass(frozen=True)
class TimelineSlice:
    """An interval of the timeline, in seconds of the capture, and what happened in it."""

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
    """One of several hosts of a capture."""

    name: str
    file: str
    device_idle_fraction: float | None


@dataclass(frozen=True)
class TraceDetail:
    """Everything that only a trace can tell.

    `assigned_idle_fraction` is the share of idle time that belongs to a class of host events or in
    which no host event was recorded at all. `flops_of_peak` is null if the trace lacks FLOPs or the
    peak; the utilization of the matrix unit cannot be higher.
    """

    accelerator: str | None
    chips: tuple[Chip, ...]
    steps: TraceSteps
    idle: tuple[IdleClass, ...]
    idle_s: float
    assigned_idle_fraction: float | None
    gaps: tuple[Gap, ...]
    timeline: tuple[TimelineSlice, ...]
    flops_of_peak: float | None
    hosts: tuple[HostTrace, ...]
    is_damaged: bool


@dataclass(frozen=True)
class Operation:
    """A type of operation inside a stage, and its share of the stage's work."""

    name: str
    share_of_stage: float


@dataclass(frozen=True)
class TracedNode:
    """One transformation in a trace, and the time of the work that it caused on any thread.

    `path` leads from the output to it; `operations` are pairs of a type and its seconds.
    """

    path: tuple[str, ...]
    work_s: float
    elements: int
    operations: tuple[tuple[str, float], ...] = ()
    parallelism: int | None = None


@dataclass(frozen=True)
class Deep:
    """How the host trace was taken.

    `overhead_fraction` is the share of the vCPUs that recording and collecting used during tracing,
    `others_fraction` the share that other programs used meanwhile, `linked_fraction` the share of
    the work that a stage caused. `ended` says why tracing stopped early, `missing` why there is no
    trace.
    """

    captures: int = 0
    traced_s: float = 0.0
    traced_bytes: int = 0
    overhead_fraction: float | None = None
    others_fraction: float | None = None
    linked_fraction: float | None = None
    ended: str | None = None
    missing: str | None = None

    @property
    def is_crowded(self) -> bool:
        """Whether other programs stretch the times in it too much to divide the work by them."""
        return (self.others_fraction or 0.0) > MOST_OTHERS

    @property
    def note(self) -> str | None:
        """What the reader has to know if there is no full trace."""
        if self.missing:
            return f"No host trace: {self.missing}"
        if self.ended:
            return f"The host trace was stopped early: {self.ended}"
        if self.is_crowded:
            return (
                f"Other programs used {self.others_fraction:.0%} of the vCPUs during the host "
                "trace, which stretches its times: shares are from the runtime's model if there is "
                "one."
            )
        return None
