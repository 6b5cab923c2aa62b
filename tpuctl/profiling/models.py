"""What a profile is made of: raw measurements first, then what follows from them."""

from dataclasses import dataclass, field
from typing import Any, Literal

from tpuctl.errors import LimitPassedError, TpuctlError
from tpuctl.outcome import Outcome, Status
from tpuctl.profiling.deep.models import Deep, Operation, TracedNode
from tpuctl.profiling.trace.models import TraceDetail
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
    """A set of durations in a few numbers, in seconds."""

    count: int
    mean: float
    p50: float
    p95: float
    p99: float
    largest: float


@dataclass(frozen=True)
class ChainNode:
    """One transformation of a pipeline as its author wrote it."""

    op: str
    name: str
    label: str | None = None
    location: str | None = None
    runs_python: bool = False
    is_random: bool = False
    decodes_jpeg: bool = False
    inputs: tuple["ChainNode", ...] = ()


@dataclass(frozen=True)
class NodeCost:
    """What one node of the runtime's model did during a window, all its incarnations together.

    `path` leads from the output to the node; `active_s` excludes waiting for other nodes.
    """

    path: tuple[str, ...]
    active_s: float
    elements: int
    bytes_out: int
    parallelism: int | None
    ratio: float | None


@dataclass(frozen=True)
class StageCost:
    """What one function of a pipeline did during a window, on all threads and in all processes.

    `cpu_s` was read from the clocks of the threads themselves.
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


@dataclass(frozen=True)
class Slice:
    """A fraction of a window: how much CPU it took, and how far each node came."""

    wall_s: float
    cpu_s: float
    elements: tuple[int, ...]


@dataclass(frozen=True)
class Signals:
    """What the operating system and the interpreter showed during a window; None is not known."""

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
    pressure_cpu: float | None = None
    pressure_io: float | None = None
    pressure_memory: float | None = None
    gil_overshoot_p50_ms: float | None = None
    gil_overshoot_p90_ms: float | None = None
    storage_bytes_read: int | None = None
    bytes_read: int | None = None
    major_faults: int | None = None
    missing: tuple[str, ...] = ()


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
    epochs_started: int = 0
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
    """CPU time that a batch of as many bytes takes when nothing else runs."""

    path: tuple[str, ...]
    cpu_s_per_element: float


@dataclass(frozen=True)
class Input:
    """What a folder held: how much was used, what was left out and why."""

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


@dataclass(frozen=True)
class Measurement:
    """Everything that the measuring process brings home."""

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
    # How many threads or processes make examples; whether they do while the loop is busy.
    lanes: int | None = None
    runs_ahead: bool | None = None
    # The program that was watched, and its interpreter; None where the pipeline ran alone.
    program: str | None = None
    python: str | None = None
    # How a host trace was taken, where one was asked for, its files, and what they show.
    deep: Deep | None = None
    trace_files: tuple[str, ...] = ()
    traced: tuple[TracedNode, ...] = ()
    # What the stages that only copy cost alone.
    copying: tuple[CopyingStage, ...] = ()


@dataclass(frozen=True)
class Device:
    """What stood in for the accelerator; an estimated step lies between `low_ms` and `high_ms`."""

    step_ms: float
    source: str
    low_ms: float | None = None
    high_ms: float | None = None


@dataclass(frozen=True)
class Window:
    """The part of the run that the fractions are about."""

    start_s: float
    end_s: float
    what: str


@dataclass(frozen=True)
class StepTimes:
    """Milliseconds per step of the training loop."""

    mean: float
    p50: float
    p95: float


@dataclass(frozen=True)
class Stage:
    """One stage of the pipeline and what it costs.

    `cpu_ms_low` and `cpu_ms_high` span what slices of the window showed.
    """

    index: int
    name: str
    op: str
    location: str | None
    examples_per_s_alone: float | None
    cpu_ms_per_example: float
    cpu_ms_low: float
    cpu_ms_high: float
    share_of_cpu: float
    active_ms_per_example: float
    calls_in_flight: float
    parallelism: int | None
    bytes_per_example: float | None
    method: str
    is_bottleneck: bool
    runs_python: bool
    is_random: bool
    decodes_jpeg: bool
    operations: tuple[Operation, ...] = ()

    @property
    def is_notable(self) -> bool:
        """Whether it takes enough of the CPU time to be worth a word."""
        return self.share_of_cpu >= NOTABLE_SHARE


@dataclass(frozen=True)
class Vcpus:
    """How many vCPUs there are, how many the pipeline used, how many the device needs."""

    available: float | None
    used: float | None
    needed_to_saturate: float | None
    low: float | None
    high: float | None
    why_null: str | None


@dataclass(frozen=True)
class Advice:
    """One change, what it should bring, and the command or the line of code that makes it."""

    code: str
    what: str
    predicted_examples_per_s: float | None
    measured_examples_per_s: float | None
    predicted_mxu_idle_fraction: float | None
    error_fraction: float | None
    change: str
    trial: Change | None = field(default=None, compare=False, metadata={"internal": True})


@dataclass(frozen=True)
class Residual:
    """Process CPU time that belongs to no stage."""

    cpu_ms_per_example: float
    share_of_cpu: float
    what: str


@dataclass(frozen=True)
class Profile(Outcome):
    """What an input pipeline can give, what a device would take, and what stands between.

    A trace shows when things happened and not how much CPU they took: what it cannot tell is None.
    """

    kind: Kind
    target: str
    batch_size: int | None
    image_size: int | None
    steps: int
    window: Window
    step_ms: StepTimes | None
    pipeline_examples_per_s: float | None
    device_examples_per_s: float | None
    input_wait_fraction: float | None
    device_idle_fraction: float | None
    mxu_idle_fraction: float | None
    mxu_utilization: float | None
    why_no_device: str | None
    device: Device | None
    verdict: Verdict
    confidence: float
    headline: str
    evidence: tuple[str, ...]
    cpu_ms_per_example: float | None
    stages: tuple[Stage, ...]
    residual: Residual | None
    vcpus: Vcpus
    advice: tuple[Advice, ...]
    overhead_fraction: float | None
    first_batch_s: float | None
    input: Input | None
    host: Host | None
    signals: Signals | None
    device_signals: Signals | None
    settings: dict[str, Any]
    created: str
    tpuctl_version: str
    notes: tuple[str, ...] = ()
    trace: TraceDetail | None = None
    deep: Deep | None = None
    scaling: Scaling | None = None
    unmet: tuple[str, ...] = field(default=(), metadata={"internal": True})

    @property
    def reasons(self) -> tuple[str, ...]:
        """What the verdict rests on."""
        return self.evidence

    @property
    def status(self) -> Status:
        """Attention where a limit was passed, partial when a part of what was read is missing."""
        if self.unmet:
            return "attention"
        left_out = self.input is not None and self.input.left_out_count > 0
        return "partial" if left_out or self.is_damaged else "ok"

    @property
    def exit_code(self) -> int:
        """1 where a limit was passed."""
        return max((failure.exit_code for failure in self.failures), default=0)

    @property
    def failures(self) -> tuple[TpuctlError, ...]:
        """The limits that were passed."""
        return tuple(map(LimitPassedError, self.unmet))

    @property
    def is_damaged(self) -> bool:
        """Whether the trace that this was read from could not be read to its end."""
        return self.trace is not None and self.trace.is_damaged

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was left out of the input or of the measurement."""
        return self.notes
