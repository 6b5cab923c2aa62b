"""From the compiler's answer to ours: roofline, padding, prices, vCPUs. Pure."""

from tpuctl.compile.models import Compilation, Compiler, Fit, Mode, Question, Range, Try
from tpuctl.compile.mxu import Padding, measure_padding
from tpuctl.compile.roofline import Roofline, roofline
from tpuctl.compile.search import Largest
from tpuctl.compile.slices import load_facts
from tpuctl.hardware.types import AcceleratorType, describe
from tpuctl.units import format_bytes

PER_MILLION = 1e6


def build_fit(
    question: Question,
    compilation: Compilation,
    found: Largest | None,
    tries: tuple[Try, ...],
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
        compiler=Compiler(libtpu=compilation.libtpu, jaxlib=compilation.jaxlib),
        facts_as_of=load_facts("chips.json")["as_of"],
        notes=_notes(compilation, padding, found, slice_.devices),
        warnings=_warnings(question, compilation),
        why=_why(question, compilation, found),
    )


def _mode(question: Question, compilation: Compilation) -> Mode:
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


def _max_batch(found: Largest | None, devices: int) -> int | None:
    return found.best.per_device * devices if found and found.best else None


def _notes(
    compilation: Compilation, padding: Padding, found: Largest | None, devices: int
) -> tuple[str, ...]:
    notes = list(compilation.notes)
    if found and found.best and not found.next_too_large:
        most = found.best.per_device * devices
        notes.append(f"Memory sets no limit up to a batch of {most:,}; more was not tried.")
    if padding.wasted_fraction is None:
        notes.append("No matrix products were found: the matrix unit (MXU) has nothing to do.")
    return tuple(notes)


def _warnings(question: Question, compilation: Compilation) -> tuple[str, ...]:
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


def _why(question: Question, compilation: Compilation, found: Largest | None) -> tuple[str, ...]:
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
