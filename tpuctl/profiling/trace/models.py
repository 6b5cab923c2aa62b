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


# A trace has an operation's time from beginning to end, also while a neighbour has its vCPU: with
# neighbours at 70 % of them, shares were wrong by up to 0.20, and the runtime's model by 0.12.
MOST_OTHERS = 0.25


@dataclass(frozen=True)
class Operation:
    """A kind of operation inside a stage and its share of the stage's work."""

    name: str
    share_of_stage: float


@dataclass(frozen=True)
class TracedNode:
    """One transformation in a trace: how long the work that it caused took, on any thread.

    `path` leads from the output to it; `operations` are pairs of a kind and its seconds.
    """

    path: tuple[str, ...]
    work_s: float
    elements: int
    operations: tuple[tuple[str, float], ...] = ()
    parallelism: int | None = None


@dataclass(frozen=True)
class Deep:
    """How the host trace was taken.

    `overhead_fraction` is the share of the vCPUs that recording and collecting took while it was
    traced, `others_fraction` what other programs had of them meanwhile. `slowdown` is CPU time per
    element beside a trace over that without one, minus 1, in windows side by side, with its
    interval; with it, `run_overhead_fraction` is the share of the vCPUs that tracing took in all
    the `profiled_s` that the pipeline was measured, and `run_overhead_most` the upper end of that.
    `ended` says why there is less than was meant to be, or nothing, and `missing` that there
    cannot be any.
    """

    captures: int = 0
    traced_s: float = 0.0
    traced_bytes: int = 0
    profiled_s: float | None = None
    overhead_fraction: float | None = None
    run_overhead_fraction: float | None = None
    run_overhead_most: float | None = None
    others_fraction: float | None = None
    slowdown: float | None = None
    slowdown_low: float | None = None
    slowdown_high: float | None = None
    linked_fraction: float | None = None
    ended: str | None = None
    missing: str | None = None

    @property
    def is_crowded(self) -> bool:
        """Whether neighbours make the times in it too long to divide the work by."""
        return (self.others_fraction or 0.0) > MOST_OTHERS

    @property
    def note(self) -> str | None:
        """What the reader has to know where it is not what was asked for."""
        if self.missing:
            return f"No host trace: {self.missing}"
        if self.ended:
            return f"The host trace stopped itself: {self.ended}"
        if self.is_crowded:
            return (
                f"Other programs had {self.others_fraction:.0%} of the vCPUs while the host was "
                "traced, which stretches the times in a trace: where the runtime has a model of "
                "the pipeline, shares are from that."
            )
        return None
