"""How fast a step can be, from below and from above. Pure.

From below: everything overlaps perfectly, so the slower of arithmetic at the peak rate and memory
traffic at the peak rate decides (Williams et al. 2009). From above: nothing overlaps; the pieces of
the program run one after the other, each in the compiler's own estimate of its cycles or the time
of its memory traffic, whichever is longer, and exchanges between devices go round one link. Neither
knows the input pipeline or the host.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tpuctl.compile.batch_search import LargestBatch
from tpuctl.compile.cache import Cache, open_cache
from tpuctl.compile.matmuls import Padding, measure_padding
from tpuctl.compile.models import (
    Compilation,
    CompileRequest,
    CompilerVersions,
    Fit,
    Mode,
    Range,
    Suggestion,
)
from tpuctl.compile.slices import Slice, load_facts
from tpuctl.hardware.types import AcceleratorType, describe
from tpuctl.units import format_bytes


@dataclass(frozen=True)
class Roofline:
    """The times of one step on one device, which all run at the same time."""

    compute_ms: float
    memory_ms: float
    communication_ms: float
    step_ms: Range

    @property
    def bound(self) -> Literal["compute", "memory"]:
        """What the fastest possible step waits for."""
        return "compute" if self.compute_ms >= self.memory_ms else "memory"


def roofline(compilation: Compilation, slice_: Slice) -> Roofline:
    """Bound the time of a step."""
    program = compilation.program
    compute_s = compilation.flops / slice_.flops_per_s
    memory_s = program.hbm_bytes / slice_.hbm_bytes_per_s
    # A ring passes every byte twice, but for the share of the device itself.
    ring = 2 * (slice_.devices - 1) / slice_.devices
    communication_s = ring * program.collective_bytes / slice_.ici_bytes_per_s
    one_by_one_s = sum(
        kernel.times * max(kernel.cycles / slice_.clock_hz, kernel.bytes / slice_.hbm_bytes_per_s)
        for kernel in program.kernels
    )
    if not any(kernel.cycles for kernel in program.kernels):
        # Of a program that does not fit the compiler estimates no cycles.
        one_by_one_s = compute_s + memory_s
    low_s = max(compute_s, memory_s)
    high_s = max(low_s, one_by_one_s) + communication_s
    return Roofline(
        compute_ms=compute_s * 1e3,
        memory_ms=memory_s * 1e3,
        communication_ms=communication_s * 1e3,
        step_ms=Range(low_s * 1e3, high_s * 1e3),
    )


# The program itself lies in the same memory.
KEEP_FREE = 0.98
REMAT_KERAS = "build the model in `with keras.RematScope(mode='full'):`"
# In a step of the user's own nobody but them can do it.
REMAT = {
    "jax": "wrap each layer in jax.checkpoint, and ask again",
    "tensorflow": "wrap each layer in tf.recompute_grad, and ask again",
}


def advise(question: CompileRequest, compilation: Compilation) -> Iterator[Suggestion]:
    """Ways to need less memory, the cheapest first."""
    smaller = _smaller_batch(question, compilation)
    if smaller:
        yield Suggestion(
            "smaller-batch",
            f"a batch of {smaller:,}, if memory grows with the batch",
            f"--batch {smaller}",
        )
    if question.dtype != "bf16" and question.target.kind == "function":
        yield Suggestion("bf16", "activations in bfloat16 take half the memory", "--dtype bf16")
    if question.training and compilation.framework != "MLIR":
        yield Suggestion(
            "remat",
            "compute activations again in the backward pass instead of keeping them",
            REMAT.get(compilation.framework, REMAT_KERAS),
        )


def _smaller_batch(question: CompileRequest, compilation: Compilation) -> int | None:
    """The batch at which memory should suffice, a multiple of 8 for each device where possible."""
    examples, available = compilation.examples, compilation.hbm_available_bytes
    grows = compilation.hbm_needed_bytes - compilation.fixed_bytes
    if not examples or not available or question.target.kind == "file" or grows <= 0:
        return None
    devices = question.slice.devices
    share = (KEEP_FREE * available - compilation.fixed_bytes) / grows
    per_device = int(examples / devices * share)
    per_device = per_device // 8 * 8 or per_device
    return per_device * devices if 0 < per_device * devices < examples else None


def warn_before_create(accelerator_type: str, cache: Cache | None = None) -> tuple[str, ...]:
    """A sentence for every program that cannot fit the type, as `fit` last said in this folder.

    A program that has changed since is not spoken of; nothing is compiled. `accelerator_type` is
    the full name.
    """
    answers = (cache or open_cache()).recall(accelerator_type)
    fits = (build_fit(question, found, None, (), 0) for question, found in answers)
    return tuple(_say(fit) for fit in fits if not fit.fits)


def _say(fit: Fit) -> str:
    batch = f" with a batch of {fit.batch_size:,}" if fit.batch_size else ""
    needed, there = format_bytes(fit.hbm_needed_bytes), format_bytes(fit.hbm_available_bytes)
    return (
        f"{fit.target} does not fit a {fit.accelerator_type}{batch}: each device needs {needed} "
        f"and has {there}. See: tpuctl fit {fit.target} --type {fit.accelerator_type} --verify"
    )


PER_MILLION = 1e6


def build_fit(
    question: CompileRequest,
    compilation: Compilation,
    found: LargestBatch | None,
    tries: tuple[Suggestion, ...],
    compilations: int,
) -> Fit:
    """Draw the conclusions for one type."""
    slice_, kind = question.slice, describe(question.slice.accelerator_type)
    line = roofline(compilation, slice_)
    padding = measure_padding(compilation.program.matmuls, slice_.mxu_size)
    examples = compilation.examples
    zone, usd = _cheapest(kind)
    per_s = _examples_per_s(examples, line)
    return Fit(
        accelerator_type=slice_.accelerator_type,
        target=question.target.text,
        framework=compilation.framework,
        mode=_mode(question, compilation),
        chips=slice_.chips,
        devices=slice_.devices,
        batch_size=examples,
        per_chip_batch=examples / slice_.chips if examples else None,
        fits=compilation.fits,
        hbm_needed_bytes=compilation.hbm_needed_bytes,
        hbm_available_bytes=compilation.hbm_available_bytes or slice_.hbm_available_bytes,
        flops_per_step=compilation.flops * slice_.devices,
        hbm_bytes_per_step=float(compilation.program.hbm_bytes * slice_.devices),
        compute_ms=line.compute_ms,
        memory_ms=line.memory_ms,
        communication_ms=line.communication_ms,
        step_ms_estimate=line.step_ms,
        bound=line.bound,
        examples_per_s=per_s,
        usd_per_hour=usd,
        usd_zone=zone,
        usd_per_million_examples=_usd_per_million(usd, per_s),
        vcpus=kind.vcpus_per_worker * kind.workers if kind.vcpus_per_worker else None,
        mxu_padding_waste_fraction=padding.wasted_fraction,
        mxu_padding=padding.layers,
        largest_tensors=compilation.tensors,
        advice=tries,
        compile_seconds=compilation.compile_s,
        max_batch=_max_batch(found, slice_.devices),
        compilations=compilations,
        from_cache=compilations == 0,
        compiler=CompilerVersions(libtpu=compilation.libtpu, jaxlib=compilation.jaxlib),
        facts_as_of=load_facts("chips.json")["as_of"],
        notes=_notes(compilation, padding, found, slice_.devices),
        warnings=_warnings(question, compilation),
        why=_why(question, compilation, found),
    )


def _mode(question: CompileRequest, compilation: Compilation) -> Mode:
    if not compilation.framework.startswith("keras"):
        return "as given"
    return "training" if question.training else "inference"


def _cheapest(kind: AcceleratorType) -> tuple[str | None, float | None]:
    """The zone with the lowest list price on demand."""
    prices = {
        zone: price.on_demand
        for zone, price in kind.usd_per_hour.items()
        if price.on_demand is not None
    }
    if not prices:
        return None, None
    zone = min(prices, key=lambda name: prices[name])
    return zone, prices[zone]


def _examples_per_s(examples: int | None, line: Roofline) -> Range | None:
    if not examples or not line.step_ms.low:
        return None
    return Range(examples / line.step_ms.high * 1e3, examples / line.step_ms.low * 1e3)


def _usd_per_million(usd: float | None, per_s: Range | None) -> Range | None:
    if usd is None or per_s is None:
        return None
    return Range(*(usd / 3600 * PER_MILLION / rate for rate in (per_s.high, per_s.low)))


def _max_batch(found: LargestBatch | None, devices: int) -> int | None:
    return found.best.per_device * devices if found and found.best else None


def _notes(
    compilation: Compilation, padding: Padding, found: LargestBatch | None, devices: int
) -> tuple[str, ...]:
    notes = list(compilation.notes)
    if found and found.best and not found.next_too_large:
        most = found.best.per_device * devices
        notes.append(f"Memory sets no limit up to a batch of {most:,}; more was not tried.")
    if padding.wasted_fraction is None:
        notes.append("No matrix products were found: the matrix unit (MXU) has nothing to do.")
    return tuple(notes)


def _warnings(question: CompileRequest, compilation: Compilation) -> tuple[str, ...]:
    program, warnings = compilation.program, []
    if not question.training and _mode(question, compilation) == "as given":
        warnings.append(
            "--inference changes nothing: only of a Keras model is there more than one program."
        )
    if program.loops_of_unknown_length:
        count = program.loops_of_unknown_length
        warnings.append(
            f"{count} loops end on a condition: one turn of each is counted, so that FLOPs, bytes "
            "and times are too low."
        )
    if program.custom_kernels:
        warnings.append(
            f"{program.custom_kernels} kernels of your own (Pallas) are not looked into: FLOPs "
            "and times are too low."
        )
    if not compilation.fits:
        warnings.append("Times are those of a program that does not fit.")
    return tuple(warnings)


def _why(
    question: CompileRequest, compilation: Compilation, found: LargestBatch | None
) -> tuple[str, ...]:
    slice_ = question.slice
    why = [
        f"{slice_.topology} is {slice_.devices} devices, each "
        f"{slice_.flops_per_s / 1e12:g} TFLOP/s and {slice_.hbm_bytes_per_s / 1e9:g} GB/s",
        f"jaxlib {compilation.jaxlib}, libtpu {compilation.libtpu}; "
        f"facts as of {load_facts('chips.json')['as_of']}",
        *load_facts("chips.json")["sources"],
    ]
    for tried in found.tried if found else ():
        outcome = "fits" if tried.fits else "does not fit"
        why.append(
            f"{tried.per_device:,} for each device {outcome}: {format_bytes(tried.needed_bytes)} "
            f"of {format_bytes(tried.available_bytes)}"
        )
    return tuple(why)
