"""The data of a profile: raw measurements first, then the conclusions."""

from dataclasses import dataclass, field
from typing import Any, Literal

from tpuctl.errors import LimitPassedError, TpuctlError
from tpuctl.outcome import Outcome, Status
from tpuctl.profiling.trace.models import Deep, Operation, TraceDetail, TracedNode
from tpuctl.profiling.whatif import Change, Scaling
from tpuctl.profiling.windows import CopyingStage, IsolatedStage, Phase, Signals

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
    # The same on half of the vCPUs, if its elements are so small that handing them on may count.
    halved: Phase | None = None


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
