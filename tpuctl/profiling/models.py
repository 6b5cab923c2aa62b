"""The data of a profile: raw measurements first, then the conclusions."""

from dataclasses import dataclass, field
from typing import Any, Literal

from tpuctl.errors import LimitPassedError, TpuctlError
from tpuctl.outcome import Outcome, Status
from tpuctl.profiling.trace.models import Deep, Operation, TraceDetail, TracedNode
from tpuctl.profiling.whatif import Change, Scaling

Kind = Literal["photos", "shards", "tf.data", "torch", "grain", "iterable", "trace"]
Verdict = Literal[
    "device",
    "vcpu",
    "stolen",
    "throttled",
    "gil",
    "io",
    "threadpool",
    "serial",
    "transfer",
    "bursty",
    "startup",
    "unknown",
]

NOTABLE_SHARE = 0.1


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
class ChainNode:
    """One transformation of a pipeline as written; `only_calls` if it only calls Python."""

    op: str
    name: str
    label: str | None = None
    location: str | None = None
    runs_python: bool = False
    is_random: bool = False
    decodes_jpeg: bool = False
    calls: tuple[str, ...] = ()
    only_calls: bool = False
    inputs: tuple["ChainNode", ...] = ()


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


@dataclass(frozen=True)
class Input:
    """The data that was read: what was used, what was skipped and why."""

    files: int
    examples: int | None
    bytes: int
    left_out: tuple[tuple[str, str], ...] = ()
    left_out_count: int = 0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Host:
    """The machine that was measured."""

    name: str
    vcpus: int
    memory_bytes: int
    memory_available_bytes: int
    cpu_model: str
    python: str
    tensorflow: str
    has_tpu: bool = False


@dataclass(frozen=True)
class Measurement:
    """Everything that the measuring process returns."""

    kind: Kind
    batch_size: int
    chain: ChainNode
    phases: tuple[Phase, ...]
    isolated: tuple[IsolatedStage, ...]
    first_batch_s: float
    threadpool_size: int
    host: Host
    input: Input
    settings: dict[str, Any] = field(default_factory=dict)
    # Threads or processes that produce examples, and whether they do so while the loop is busy.
    lanes: int | None = None
    runs_ahead: bool | None = None
    # The program that was profiled, and its interpreter; None if the pipeline ran alone.
    program: str | None = None
    python: str | None = None
    # With --deep: how the host trace was taken, its files, and their content.
    deep: Deep | None = None
    trace_files: tuple[str, ...] = ()
    traced: tuple[TracedNode, ...] = ()
    # The cost of stages that only copy, measured alone.
    copying: tuple[CopyingStage, ...] = ()


@dataclass(frozen=True)
class Device:
    """The accelerator's step time; an estimated one lies between `low_ms` and `high_ms`."""

    step_ms: float
    source: str
    low_ms: float | None = None
    high_ms: float | None = None


@dataclass(frozen=True)
class Window:
    """The part of the run to which the fractions refer."""

    start_s: float
    end_s: float
    what: str


@dataclass(frozen=True)
class StepTimes:
    """Milliseconds per step of the training loop."""

    mean: float
    p50: float
    p95: float


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage of the pipeline and what it costs.

    `cpu_ms_low` and `cpu_ms_high` span the slices of the window. A Python function that is part of
    a transformation has that one's place, or name, as `caller`.
    """

    index: int
    name: str
    op: str
    location: str | None = None
    examples_per_s_alone: float | None = None
    cpu_ms_per_example: float
    cpu_ms_low: float
    cpu_ms_high: float
    share_of_cpu: float
    active_ms_per_example: float
    calls_in_flight: float
    parallelism: int | None
    bytes_per_example: float | None = None
    method: str
    is_bottleneck: bool = False
    runs_python: bool = False
    is_random: bool = False
    decodes_jpeg: bool = False
    caller: str | None = None
    operations: tuple[Operation, ...] = ()

    @property
    def is_notable(self) -> bool:
        """Whether it takes enough of the CPU time to be mentioned."""
        return self.share_of_cpu >= NOTABLE_SHARE


@dataclass(frozen=True)
class Vcpus:
    """How many vCPUs there are, how many the pipeline used, how many the device needs."""

    available: float | None
    used: float | None = None
    needed_to_saturate: float | None = None
    low: float | None = None
    high: float | None = None
    why_null: str | None = None


@dataclass(frozen=True, kw_only=True)
class Advice:
    """One change, its predicted effect, and the command or line of code that makes it."""

    code: str
    what: str
    predicted_examples_per_s: float | None = None
    measured_examples_per_s: float | None = None
    predicted_mxu_idle_fraction: float | None = None
    error_fraction: float | None = None
    change: str
    trial: Change | None = field(default=None, compare=False, metadata={"internal": True})


@dataclass(frozen=True)
class Residual:
    """Process CPU time outside the stages."""

    cpu_ms_per_example: float
    share_of_cpu: float
    what: str


@dataclass(frozen=True, kw_only=True)
class Profile(Outcome):
    """The rate of an input pipeline, the rate of the device, and the bottleneck between them.

    A trace has elapsed times but no CPU times, so fields that need those are None.
    """

    kind: Kind
    target: str
    batch_size: int | None
    image_size: int | None = None
    steps: int
    window: Window
    step_ms: StepTimes | None
    pipeline_examples_per_s: float | None
    device_examples_per_s: float | None = None
    input_wait_fraction: float | None
    device_idle_fraction: float | None
    mxu_idle_fraction: float | None
    mxu_utilization: float | None = None
    why_no_device: str | None
    device: Device | None = None
    verdict: Verdict
    confidence: float
    headline: str
    evidence: tuple[str, ...]
    cpu_ms_per_example: float | None = None
    stages: tuple[Stage, ...]
    residual: Residual | None = None
    vcpus: Vcpus
    advice: tuple[Advice, ...]
    overhead_fraction: float | None = None
    first_batch_s: float | None = None
    input: Input | None = None
    host: Host | None = None
    signals: Signals | None = None
    device_signals: Signals | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    created: str
    tpuctl_version: str
    notes: tuple[str, ...] = ()
    trace: TraceDetail | None = None
    deep: Deep | None = None
    scaling: Scaling | None = None
    unmet: tuple[str, ...] = field(default=(), metadata={"internal": True})
    program_code: int = field(default=0, metadata={"internal": True})

    @property
    def reasons(self) -> tuple[str, ...]:
        """The evidence for the verdict."""
        return self.evidence

    @property
    def status(self) -> Status:
        """Attention if a limit was exceeded, partial if some of the input was skipped."""
        if self.unmet:
            return "attention"
        left_out = self.input is not None and self.input.left_out_count > 0
        return "partial" if left_out or self.is_damaged else "ok"

    @property
    def exit_code(self) -> int:
        """The exit code of a failed program, or 1 if a limit was exceeded."""
        return self.program_code or super().exit_code

    @property
    def failures(self) -> tuple[TpuctlError, ...]:
        """The limits that were exceeded."""
        return tuple(map(LimitPassedError, self.unmet))

    @property
    def is_damaged(self) -> bool:
        """Whether the trace could not be read to its end."""
        return self.trace is not None and self.trace.is_damaged

    @property
    def warnings(self) -> tuple[str, ...]:
        """Input that was skipped, and figures that could not be measured."""
        return self.notes
