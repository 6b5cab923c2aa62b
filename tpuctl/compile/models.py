"""The data of `tpuctl fit`: a request to compile, its result, and the conclusions."""

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
    """What to compile: a function that returns a model or a step, an MLIR file, or a template."""

    kind: Kind
    text: str
    function: Function | None = None
    path: str | None = None


@dataclass(frozen=True)
class CompileRequest:
    """One compilation; `batch_size` is global, and None means the target's default."""

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
    """A matrix product as the compiler laid it out on the matrix unit, `times` times per step.

    `columns` lie along the unit's columns and `contracted` along its rows; `rows` stream through.
    """

    layer: str
    rows: int
    contracted: int
    columns: int
    flops: int
    times: int = 1


@dataclass(frozen=True)
class Kernel:
    """A kernel of the program: the compiler's estimate of its cycles, and its HBM traffic."""

    cycles: int
    bytes: int
    times: int


@dataclass(frozen=True)
class PallasKernel:
    """A custom kernel, and the vector memory (VMEM) of a core that it needs and may use.

    The limit is None in a program that sets none; a `Fit` has the compiler's default instead.
    """

    name: str
    vmem_needed_bytes: int
    vmem_limit_bytes: int | None


@dataclass(frozen=True)
class Program:
    """The work of one device in one step; `repeated_flops` come after a loop's first iteration."""

    matmuls: tuple[Matmul, ...]
    kernels: tuple[Kernel, ...]
    repeated_flops: int
    collective_bytes: int
    loops_of_unknown_length: int
    custom_kernels: tuple[PallasKernel, ...]

    @property
    def hbm_bytes(self) -> int:
        """The HBM traffic of a step."""
        return sum(kernel.bytes * kernel.times for kernel in self.kernels)


@dataclass(frozen=True)
class Tensor:
    """An allocation that is live at peak memory use."""

    size_bytes: int
    shapes: str


@dataclass(frozen=True)
class Compilation:
    """The compiler's result for one device; FLOPs are per device and step.

    `examples` is the global batch size, None if it is unknown which arguments hold examples.
    `fixed_bytes` is the size of the arguments that do not grow with it.
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
    compiler: "CompilerVersions"


@dataclass(frozen=True)
class Range:
    """A lower and an upper bound."""

    low: float
    high: float


@dataclass(frozen=True)
class PaddingWaste:
    """A dimension of a layer that is padded to fill the matrix unit."""

    layer: str
    dimension: str
    size: int
    unit: int
    better_size: int
    wasted_fraction: float
    share_of_flops: float


@dataclass(frozen=True)
class Suggestion:
    """A change to try; `fits` and `hbm_needed_bytes` are known once it has been compiled.

    `why_not` is the reason if it could not be compiled.
    """

    code: str
    what: str
    change: str
    fits: bool | None = None
    hbm_needed_bytes: int | None = None
    why_not: str | None = None


@dataclass(frozen=True)
class CompilerVersions:
    """The versions of the compiler, and the generations of TPUs that this libtpu knows."""

    libtpu: str
    jaxlib: str
    generations: tuple[str, ...]


@dataclass(frozen=True)
class Fit(Outcome):
    """Whether a program fits one type of TPU, and how fast it can run there.

    FLOPs and HBM bytes are per step on all devices together; memory is per device.
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
    pallas_kernels: tuple[PallasKernel, ...]
    vmem_bytes: int
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
    reasons: tuple[str, ...] = field(default=(), metadata={"internal": True})

    @property
    def status(self) -> Status:
        """`attention` if the program does not fit."""
        return "ok" if self.fits else "attention"

    @property
    def exit_code(self) -> int:
        """1 if the program does not fit."""
        return 0 if self.fits else 1


@dataclass(frozen=True)
class Rejection:
    """A type for which the compiler rejected the program, and how to fix it."""

    accelerator_type: str
    reason: str
    hint: str | None


@dataclass(frozen=True)
class Comparison(Outcome):
    """The same program on several types."""

    types: tuple[Fit, ...]
    rejected: tuple[Rejection, ...] = ()

    @property
    def status(self) -> Status:
        """`partial` if it fits only some of the types."""
        fitting = sum(fit.fits for fit in self.types)
        every = fitting == len(self.types) and not self.rejected
        return "ok" if every else "partial" if fitting else "attention"

    @property
    def exit_code(self) -> int:
        """1 if it fits none of the types."""
        return 0 if any(fit.fits for fit in self.types) else 1

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings of all types, without repetition."""
        return tuple(dict.fromkeys(warning for fit in self.types for warning in fit.warnings))

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons of all types."""
        return tuple(f"{f.accelerator_type}: {reason}" for f in self.types for reason in f.reasons)


def require_even_batch(examples: int, devices: int) -> None:
    """Raise InvalidInputError if a batch cannot be split evenly among the devices."""
    if examples % devices:
        below, above = examples // devices * devices, -(-examples // devices) * devices
        near = f"--batch {below} or --batch {above}" if below else f"--batch {above}"
        raise InvalidInputError(
            f"A batch of {examples:,} cannot be split evenly among {devices} devices.", hint=near
        )


@dataclass(frozen=True)
class LoweredProgram:
    """A program that is ready to compile; `compile` takes the compiler's options.

    `examples` is the global batch size if it is known; `fixed_bytes` is the size of the arguments
    that do not grow with it, per device. `layers` are the names of the user's layers if the
    framework knows them.
    """

    framework: str
    compile: Callable[[dict[str, str] | None], Any]
    examples: int | None
    fixed_bytes: int
    notes: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()
