"""What was counted in one window of a measurement. Pure."""

from dataclasses import dataclass
from typing import Literal

SLICE_S = 1.0
RELATIVE_SPREAD = 0.1


@dataclass(frozen=True)
class Spread:
    """Summary statistics of a set of durations, in seconds."""

    count: int
    mean: float
    p50: float
    p95: float
    p99: float
    largest: float


@dataclass(frozen=True)
class NodeCost:
    """The work of one node of the runtime's model during a window, over all epochs.

    `path` leads from the output to the node; `active_s` excludes waiting for other nodes.
    """

    path: tuple[str, ...]
    active_s: float
    elements: int
    bytes_out: int
    parallelism: int | None
    ratio: float | None

    @property
    def op(self) -> str:
        """The operation's name, without its position among its siblings."""
        return self.path[-1].partition("#")[0].rstrip("*")


@dataclass(frozen=True)
class StageCost:
    """The work of one function of a pipeline during a window, on all threads and in all
    processes.

    `cpu_s` comes from the clocks of those threads. `caller` is the function that a library called.
    """

    name: str
    op: str
    location: str | None
    calls: int
    wall_s: float
    cpu_s: float
    parallelism: int
    method: str
    is_random: bool = False
    caller: str | None = None


@dataclass(frozen=True)
class Slice:
    """Part of a window: its CPU time, and how many elements each node produced."""

    wall_s: float
    cpu_s: float
    elements: tuple[int, ...]


@dataclass(frozen=True)
class Signals:
    """Counters of the operating system and the interpreter for a window; None is unknown."""

    wall_s: float
    cpu_s: float
    tool_cpu_s: float
    consumer_cpu_s: float
    vcpus_visible: int
    vcpus_usable: float
    run_delay_s: float | None = None
    busiest_thread: float | None = None
    second_thread: float | None = None
    other_cpu_s: float | None = None
    steal_s: float | None = None
    throttled_s: float | None = None
    gil_overshoot_p50_ms: float | None = None
    gil_overshoot_p90_ms: float | None = None
    missing: tuple[str, ...] = ()

    @property
    def delayed_s(self) -> float | None:
        """Seconds in which threads were ready to run and did not.

        They had no vCPU, or the host ran another machine on theirs.
        """
        if self.run_delay_s is None:
            return None
        ours = self.cpu_s / ((self.cpu_s + (self.other_cpu_s or 0.0)) or 1.0)
        return self.run_delay_s + ours * (self.steal_s or 0.0)

    @property
    def taken_s(self) -> float:
        """CPU seconds that other processes and other virtual machines took."""
        return (self.other_cpu_s or 0.0) + (self.steal_s or 0.0)


@dataclass(frozen=True)
class Phase:
    """One measured window: the pipeline running free, or feeding a device."""

    name: Literal["free", "device"]
    start_s: float
    end_s: float
    steps: int
    elements: int
    examples: int
    waits: Spread
    step_times: Spread
    device_busy_s: float
    signals: Signals
    nodes: tuple[NodeCost, ...]
    slices: tuple[Slice, ...]
    nodes_vanished: bool
    warming_up: bool = False
    costs: tuple[StageCost, ...] = ()
    unevenness: float | None = None

    @property
    def wall_s(self) -> float:
        """How long the window was."""
        return self.end_s - self.start_s


@dataclass(frozen=True)
class IsolatedStage:
    """CPU time per example of the pipeline up to and including one transformation."""

    depth: int
    cpu_s_per_example: float


@dataclass(frozen=True)
class CopyingStage:
    """CPU time of copying a batch of the same size, measured alone."""

    path: tuple[str, ...]
    cpu_s_per_element: float


def slice_costs(phase: Phase, position: int) -> list[float]:
    """CPU seconds per element of one node, in slices of at least a second."""
    costs: list[float] = []
    wall = cpu = elements = 0.0
    for piece in phase.slices:
        wall += piece.wall_s
        cpu += piece.cpu_s
        elements += piece.elements[position] if position < len(piece.elements) else 0
        if wall >= SLICE_S and elements >= 8 and cpu > 0:
            costs.append(cpu / elements)
            wall = cpu = elements = 0.0
    return costs


def relative_spread(phase: Phase) -> float:
    """How far the CPU use of slices of the window is from their mean, without outliers."""
    rates = sorted(piece.cpu_s / piece.wall_s for piece in phase.slices if piece.wall_s > 0)
    mean, cut = sum(rates) / max(1, len(rates)), len(rates) // 10
    if len(rates) < 5 or not mean:
        return RELATIVE_SPREAD
    return min(0.3, max(mean - rates[cut], rates[-1 - cut] - mean) / mean)
