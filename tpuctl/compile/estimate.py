"""From a compilation to `fit`'s answer: the bounds of a step's time, its price, and advice.

Lower bound: everything overlaps perfectly, so the slower of arithmetic at the peak rate and memory
traffic at the peak rate decides (the roofline of Williams et al. 2009). Upper bound: nothing
overlaps; the kernels run one after the other, each for the longer of the compiler's estimate of its
cycles and the time of its memory traffic, and collectives use one link. Neither bound includes the
input pipeline or the host.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from tpuctl.compile.batch_search import LargestBatch
from tpuctl.compile.cache import Cache, open_cache
from tpuctl.compile.matmuls import measure_padding
from tpuctl.compile.models import (
    Compilation,
    CompileRequest,
    Fit,
    Mode,
    Range,
    Suggestion,
)
from tpuctl.compile.slices import Slice, load_facts
from tpuctl.hardware.types import AcceleratorType, describe
from tpuctl.units import format_bytes, format_count

# The program's own code takes some of the same memory.
USABLE_FRACTION = 0.98
REMAT_KERAS = "build the model in `with keras.RematScope(mode='full'):`"
# Only the author of a step can change it, so these cannot be tried with --verify.
REMAT = {
    "jax": "wrap each layer in jax.checkpoint, then run fit again",
    "tensorflow": "wrap each layer in tf.recompute_grad, then run fit again",
}


@dataclass(frozen=True)
class Roofline:
    """The times of one step on one device."""

    compute_ms: float
    memory_ms: float
    communication_ms: float
    step_ms: Range

    @property
    def bound(self) -> Literal["compute", "memory"]:
        """What limits the fastest possible step."""
        return "compute" if self.compute_ms >= self.memory_ms else "memory"


def roofline(compilation: Compilation, slice_: Slice) -> Roofline:
    """Bound the time of a step."""
    program = compilation.program
    compute_s = compilation.flops / slice_.flops_per_s
    memory_s = program.hbm_bytes / slice_.hbm_bytes_per_s
    # A ring all-reduce sends every byte twice, except for the device's own share.
    ring = 2 * (slice_.devices - 1) / slice_.devices
    communication_s = ring * program.collective_bytes / slice_.ici_bytes_per_s
    sequential_s = sum(
        kernel.times * max(kernel.cycles / slice_.clock_hz, kernel.bytes / slice_.hbm_bytes_per_s)
        for kernel in program.kernels
    )
    if not any(kernel.cycles for kernel in program.kernels):
        # The compiler estimates no cycles for a program that does not fit.
        sequential_s = compute_s + memory_s
    low_s = max(compute_s, memory_s)
    high_s = max(low_s, sequential_s) + communication_s
    return Roofline(
        compute_ms=compute_s * 1e3,
        memory_ms=memory_s * 1e3,
        communication_ms=communication_s * 1e3,
        step_ms=Range(low_s * 1e3, high_s * 1e3),
    )


def advise(request: CompileRequest, compilation: Compilation) -> Iterator[Suggestion]:
    """Suggest ways to use less memory, the cheapest first."""
    if smaller := _smaller_batch(request, compilation):
        yield Suggestion(
            "smaller-batch",
            f"a batch size of {smaller:,}, if memory grows with the batch",
            f"--batch {smaller}",
        )
    if request.dtype != "bf16" and request.target.kind == "function":
        yield Suggestion("bf16", "activations in bfloat16 take half the memory", "--dtype bf16")
    if request.training and compilation.framework != "MLIR":
        yield Suggestion(
            "remat",
            "recompute activations in the backward pass instead of storing them",
            REMAT.get(compilation.framework, REMAT_KERAS),
        )


def _smaller_batch(request: CompileRequest, compilation: Compilation) -> int | None:
    """Estimate the batch size that fits, a multiple of 8 per device if possible."""
    examples, available = compilation.examples, compilation.hbm_available_bytes
    grows = compilation.hbm_needed_bytes - compilation.fixed_bytes
    if not examples or not available or request.target.kind == "file" or grows <= 0:
        return None
    devices = request.slice.devices
    share = (USABLE_FRACTION * available - compilation.fixed_bytes) / grows
    per_device = int(examples / devices * share)
    per_device = per_device // 8 * 8 or per_device
    return per_device * devices if 0 < per_device * devices < examples else None


def warn_before_create(accelerator_type: str, cache: Cache | None = None) -> tuple[str, ...]:
    """Return a warning for every program that does not fit the type, as `fit` last found here.

    Programs that changed since are skipped, and nothing is compiled. `accelerator_type` is the
    full name.
    """
    known = (cache or open_cache()).recall(accelerator_type)
    fits = (build_fit(request, compilation, None, (), 0) for request, compilation in known)
    return tuple(_does_not_fit(fit) for fit in fits if not fit.fits)


def _does_not_fit(fit: Fit) -> str:
    batch = f" with a batch of {fit.batch_size:,}" if fit.batch_size else ""
    needed, available = format_bytes(fit.hbm_needed_bytes), format_bytes(fit.hbm_available_bytes)
    return (
        f"{fit.target} does not fit a {fit.accelerator_type}{batch}: each device needs {needed} "
        f"and has {available}. See: tpuctl fit {fit.target} "
        f"--accelerator-type {fit.accelerator_type} --verify"
    )


def build_fit(
    request: CompileRequest,
    compilation: Compilation,
    largest: LargestBatch | None,
    advice: tuple[Suggestion, ...],
    compilations: int,
) -> Fit:
    """Draw the conclusions for one type."""
    slice_, kind = request.slice, describe(request.slice.accelerator_type)
    times = roofline(compilation, slice_)
    padding = measure_padding(compilation.program.matmuls, slice_.mxu_size)
    examples = compilation.examples
    zone, usd = _cheapest(kind)
    rate = cost = None
    if examples and times.step_ms.low:
        rate = Range(examples / times.step_ms.high * 1e3, examples / times.step_ms.low * 1e3)
    if usd is not None and rate:
        cost = Range(usd / 3600 * 1e6 / rate.high, usd / 3600 * 1e6 / rate.low)
    best = largest.best.per_device * slice_.devices if largest and largest.best else None
    notes = list(compilation.notes)
    if best and largest and not largest.next_too_large:
        notes.append(f"Memory is not the limit up to a batch size of {best:,}, the largest tried.")
    if padding.wasted_fraction is None:
        notes.append("The program has no matrix products, so the matrix unit (MXU) is not used.")
    return Fit(
        accelerator_type=slice_.accelerator_type,
        target=request.target.text,
        framework=compilation.framework,
        mode=_mode(request, compilation),
        chips=slice_.chips,
        devices=slice_.devices,
        batch_size=examples,
        per_chip_batch=examples / slice_.chips if examples else None,
        fits=compilation.fits,
        hbm_needed_bytes=compilation.hbm_needed_bytes,
        hbm_available_bytes=compilation.hbm_available_bytes or slice_.hbm_available_bytes,
        pallas_kernels=tuple(
            replace(kernel, vmem_limit_bytes=kernel.vmem_limit_bytes or slice_.vmem_limit_bytes)
            for kernel in compilation.program.custom_kernels
        ),
        vmem_bytes=slice_.vmem_bytes,
        flops_per_step=compilation.flops * slice_.devices,
        hbm_bytes_per_step=float(compilation.program.hbm_bytes * slice_.devices),
        compute_ms=times.compute_ms,
        memory_ms=times.memory_ms,
        communication_ms=times.communication_ms,
        step_ms_estimate=times.step_ms,
        bound=times.bound,
        examples_per_s=rate,
        usd_per_hour=usd,
        usd_zone=zone,
        usd_per_million_examples=cost,
        vcpus=kind.vcpus_per_worker * kind.workers if kind.vcpus_per_worker else None,
        mxu_padding_waste_fraction=padding.wasted_fraction,
        mxu_padding=padding.layers,
        largest_tensors=compilation.tensors,
        advice=advice,
        compile_seconds=compilation.compile_s,
        max_batch=best,
        compilations=compilations,
        from_cache=compilations == 0,
        compiler=compilation.compiler,
        facts_as_of=load_facts("chips.json")["as_of"],
        notes=tuple(notes),
        warnings=_warnings(request, compilation),
        reasons=_reasons(slice_, compilation, largest),
    )


def _mode(request: CompileRequest, compilation: Compilation) -> Mode:
    if not compilation.framework.startswith("keras"):
        return "as given"
    return "training" if request.training else "inference"


def _cheapest(kind: AcceleratorType) -> tuple[str | None, float | None]:
    """Return the zone with the lowest on-demand list price, and that price."""
    prices = [
        (price.on_demand, zone)
        for zone, price in kind.usd_per_hour.items()
        if price.on_demand is not None
    ]
    usd, zone = min(prices, key=lambda pair: pair[0], default=(None, None))
    return zone, usd


def _warnings(request: CompileRequest, compilation: Compilation) -> tuple[str, ...]:
    program, warnings = compilation.program, []
    if not request.training and _mode(request, compilation) == "as given":
        warnings.append("--inference has no effect: it only applies to Keras models.")
    if program.loops_of_unknown_length:
        warnings.append(
            f"{program.loops_of_unknown_length} loops have an unknown number of iterations, of "
            "which one is counted: FLOPs, bytes and times are too low."
        )
    if program.custom_kernels:
        warnings.append(
            f"{format_count(len(program.custom_kernels), 'custom kernel')} (Pallas), of which only "
            "the vector memory is known: FLOPs and times are too low."
        )
    if not compilation.fits:
        warnings.append("The times are those of a program that does not fit.")
    return tuple(warnings)


def _reasons(
    slice_: Slice, compilation: Compilation, largest: LargestBatch | None
) -> tuple[str, ...]:
    facts = load_facts("chips.json")
    reasons = [
        f"{slice_.topology} is {slice_.devices} devices, each "
        f"{slice_.flops_per_s / 1e12:g} TFLOP/s and {slice_.hbm_bytes_per_s / 1e9:g} GB/s",
        f"jaxlib {compilation.compiler.jaxlib}, libtpu {compilation.compiler.libtpu}, which knows "
        f"{', '.join(compilation.compiler.generations)}; facts as of {facts['as_of']}",
        *facts["sources"],
    ]
    for trial in largest.tried if largest else ():
        reasons.append(
            f"{trial.per_device:,} per device {'fits' if trial.fits else 'does not fit'}: "
            f"{format_bytes(trial.needed_bytes)} of {format_bytes(trial.available_bytes)}"
        )
    return tuple(reasons)
