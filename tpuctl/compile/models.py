"""What is asked of the compiler, what it answers, and what follows."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from tpuctl.compile.slices import Slice
from tpuctl.errors import InvalidInputError
from tpuctl.outcome import Outcome, Status
from tpuctl.usercode.function import Function

Dtype = Literal["bf16", "f32"]
Kind = Literal["function", "file", "template"]
Mode = Literal["training", "inference", "as given"]


@dataclass(frozen=True)
class Target:
    """What to compile: a function that gives a model or a step, a program in a file, a template."""

    kind: Kind
    text: str
    function: Function | None = None
    path: str | None = None


@dataclass(frozen=True)
class CompileRequest:
    """One compilation. `batch_size` is global; None leaves it to the target."""

    target: Target
    slice: Slice
    batch_size: int | None
    dtype: Dtype | None
    training: bool
    image_size: int | None = None
    remat: bool = False
    report: bool = True


@dataclass(frozen=True)
class Matmul:
    """A product of the matrix unit as the compiler laid it out, `times` times in a step.

    `columns` lie along the unit's columns, `contracted` along its rows, `rows` stream through.
    """

    layer: str
    rows: int
    contracted: int
    columns: int
    flops: int
    times: int = 1


@dataclass(frozen=True)
class Kernel:
    """A piece of the program: the compiler's estimate of its cycles, the HBM bytes it moves."""

    cycles: int
    bytes: int
    times: int


@dataclass(frozen=True)
class Program:
    """What one device does in one step; `repeated_flops` are products after a loop's first turn."""

    matmuls: tuple[Matmul, ...]
    kernels: tuple[Kernel, ...]
    repeated_flops: int
    collective_bytes: int
    loops_of_unknown_length: int
    custom_kernels: int

    @property
    def hbm_bytes(self) -> int:
        """All bytes between HBM and the core."""
        return sum(kernel.bytes * kernel.times for kernel in self.kernels)


@dataclass(frozen=True)
class Tensor:
    """An allocation that is alive when memory is fullest."""

    size_bytes: int
    shapes: str


@dataclass(frozen=True)
class Compilation:
    """The compiler's answer for one device. FLOPs are of one device and one step.

    `examples` is the global batch; None where nothing tells which arguments hold examples.
    `fixed_bytes` are those of the arguments that do not grow with it.
    """

    fits: bool
    flops: float
    hbm_needed_bytes: int
    hbm_available_bytes: int | None
    fixed_bytes: int
    program: Program
    tensors: tuple[Tensor, ...]
    examples: int | None
    framework: str
    notes: tuple[str, ...]
    compile_s: float
    jaxlib: str
    libtpu: str


@dataclass(frozen=True)
class Range:
    """A bound from below and one from above."""

    low: float
    high: float


@dataclass(frozen=True)
class PaddingWaste:
    """A dimension of a layer that does not fill the matrix unit."""

    layer: str
    dimension: str
    size: int
    unit: int
    better_size: int
    wasted_fraction: float
    share_of_flops: float


@dataclass(frozen=True)
class Suggestion:
    """Something to change; `fits` and `hbm_needed_bytes` are known once it has been compiled.

    `why_not` says why it could not be.
    """

    code: str
    what: str
    change: str
    fits: bool | None = None
    hbm_needed_bytes: int | None = None
    why_not: str | None = None


@dataclass(frozen=True)
class CompilerVersions:
    """The versions that answered."""

    libtpu: str
    jaxlib: str


@dataclass(frozen=True)
class Fit(Outcome):
    """Whether a program fits one type of TPU, and how fast it can be there.

    FLOPs and HBM bytes are those of a step on all devices together; memory is that of one device.
    """

    accelerator_type: str
    target: str
    framework: str
    mode: Mode
    chips: int
    devices: int
    batch_size: int | None
    per_chip_batch: float | None
    fits: bool
    hbm_needed_bytes: int
    hbm_available_bytes: int
    flops_per_step: float
    hbm_bytes_per_step: float
    compute_ms: float
    memory_ms: float
    communication_ms: float
    step_ms_estimate: Range
    bound: Literal["compute", "memory"]
    examples_per_s: Range | None
    usd_per_hour: float | None
    usd_zone: str | None
    usd_per_million_examples: Range | None
    vcpus: int | None
    mxu_padding_waste_fraction: float | None
    mxu_padding: tuple[PaddingWaste, ...]
    largest_tensors: tuple[Tensor, ...]
    advice: tuple[Suggestion, ...]
    compile_seconds: float
    max_batch: int | None
    compilations: int
    from_cache: bool
    compiler: CompilerVersions
    facts_as_of: str
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    why: tuple[str, ...] = field(default=(), metadata={"internal": True})

    @property
    def status(self) -> Status:
        """Attention when the program does not fit."""
        return "ok" if self.fits else "attention"

    @property
    def exit_code(self) -> int:
        """1 when the program does not fit."""
        return 0 if self.fits else 1

    @property
    def reasons(self) -> tuple[str, ...]:
        """Where the numbers come from."""
        return self.why


@dataclass(frozen=True)
class Comparison(Outcome):
    """The same program on several types."""

    types: tuple[Fit, ...]

    @property
    def status(self) -> Status:
        """Partial when it fits some and not others."""
        fitting = sum(fit.fits for fit in self.types)
        return "ok" if fitting == len(self.types) else "partial" if fitting else "attention"

    @property
    def exit_code(self) -> int:
        """1 when it fits none."""
        return 0 if any(fit.fits for fit in self.types) else 1

    @property
    def warnings(self) -> tuple[str, ...]:
        """Those of every type, said once."""
        return tuple(dict.fromkeys(warning for fit in self.types for warning in fit.warnings))

    @property
    def reasons(self) -> tuple[str, ...]:
        """Those of every type."""
        return tuple(f"{f.accelerator_type}: {reason}" for f in self.types for reason in f.why)


def refuse_uneven(examples: int, devices: int) -> None:
    """Raise InvalidInputError where a batch does not divide among the devices."""
    if examples % devices:
        below, above = examples // devices * devices, -(-examples // devices) * devices
        near = f"--batch {below} or --batch {above}" if below else f"--batch {above}"
        raise InvalidInputError(
            f"A batch of {examples:,} does not divide among {devices} devices.", hint=near
        )


@dataclass(frozen=True)
class LoweredProgram:
    """A lowered program: `compile` takes the compiler's options, `text` is the program itself.

    `examples` is the global batch where it is known; `fixed_bytes` are those of the arguments that
    do not grow with it, on one device. `layers` are the names that the user gave, where they are
    known apart from the program.
    """

    framework: str
    compile: Callable[[dict[str, str] | None], Any]
    text: str
    examples: int | None
    fixed_bytes: int
    notes: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()
