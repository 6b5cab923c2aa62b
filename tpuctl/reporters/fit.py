"""Whether a program fits a TPU, as text: the answer, the numbers, what to try."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tpuctl.reporters import layout
from tpuctl.units import format_bytes, format_count, format_duration, format_fraction, format_usd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

    from tpuctl.compile.models import Comparison, Fit, Range, Suggestion


def render_fit(result: Fit | Comparison) -> RenderableType:
    """Show one type, or several side by side."""
    from tpuctl.compile.models import Comparison

    return _comparison(result) if isinstance(result, Comparison) else _one(result)


def _one(fit: Fit) -> RenderableType:
    parts: list[RenderableType] = [_answer(fit), "", layout.facts(_rows(fit), style="")]
    if fit.mxu_padding:
        parts += ["", _padding(fit)]
    if fit.largest_tensors:
        tensors = (f"{format_bytes(t.size_bytes)}: {t.shapes}" for t in fit.largest_tensors)
        parts += layout.bullets("Largest tensors at peak memory, on each device", tensors)
    if fit.advice:
        parts += ["", layout.text("Try", "bold"), *map(_advice, fit.advice)]
    parts += [layout.text(note, "dim") for note in fit.notes]
    return layout.stack(*parts)


def _answer(fit: Fit) -> Text:
    batch = f" with a batch of {fit.batch_size:,}" if fit.batch_size else ""
    memory = f"{format_bytes(fit.hbm_needed_bytes)} of {format_bytes(fit.hbm_available_bytes)}"
    if not fit.fits:
        words = f"{fit.target} does not fit a {fit.accelerator_type}{batch}: it needs {memory}."
        return layout.text(words, "bold red")
    words = f"{fit.target} fits a {fit.accelerator_type}{batch}."
    if fit.max_batch:
        words = f"The largest batch of {fit.target} on a {fit.accelerator_type}: {fit.max_batch:,}."
        memory += f", {format_bytes(fit.hbm_available_bytes - fit.hbm_needed_bytes)} left"
    return layout.text("").append(words, "bold green").append(f"  {memory}.")


def _rows(fit: Fit) -> Iterator[tuple[str, str]]:
    mode = "" if fit.mode == "as given" else f"{fit.mode}, "
    chips, devices = format_count(fit.chips, "chip"), format_count(fit.devices, "device")
    yield "program", f"{mode}{fit.framework}, on {chips} ({devices})"
    if fit.batch_size and fit.per_chip_batch:
        yield "batch", f"{fit.batch_size:,}, {fit.per_chip_batch:,.10g} per chip"
    share = fit.hbm_needed_bytes / fit.hbm_available_bytes
    free = f"{format_fraction(max(0.0, 1 - share))} of each device's HBM stays free"
    yield "memory", free if fit.fits else f"{share:,.3g} times what each device has"
    yield (
        "step",
        f"{_range(fit.step_ms_estimate, _ms)} ({fit.bound}-bound: arithmetic "
        f"{_ms(fit.compute_ms)}, memory {_ms(fit.memory_ms)}, exchange "
        f"{_ms(fit.communication_ms)})",
    )
    traffic = format_bytes(fit.hbm_bytes_per_step)
    yield "work", f"{_flop(fit.flops_per_step)} and {traffic} of memory traffic per step"
    for kernel in fit.pallas_kernels:
        needed, limit = kernel.vmem_needed_bytes, kernel.vmem_limit_bytes or fit.vmem_bytes
        sizes = f"needs {format_bytes(needed)} and may use {format_bytes(limit)}"
        yield (
            "Pallas VMEM",
            f"{kernel.name} {sizes} of the {format_bytes(fit.vmem_bytes)} of a core",
        )
    if fit.mxu_padding_waste_fraction is not None:
        waste = format_fraction(fit.mxu_padding_waste_fraction)
        yield "MXU padding", f"{waste} of its FLOPs are wasted"
    if fit.examples_per_s and fit.fits:
        yield "to feed it", _feed(fit, fit.examples_per_s)
    if fit.usd_per_million_examples and fit.usd_per_hour and fit.fits:
        cost = _range(fit.usd_per_million_examples, _dollars)
        price = f"{format_usd(fit.usd_per_hour)} per hour in {fit.usd_zone}, on demand"
        yield "price", f"{cost} per million examples ({price})"
    yield "compiled", _compiled(fit)


def _compiled(fit: Fit) -> str:
    how = f"in {format_duration(fit.compile_seconds)}"
    if fit.from_cache:
        how = "earlier, read from the cache"
    elif fit.compilations > 1:
        how = f"{fit.compilations} times, the last in {format_duration(fit.compile_seconds)}"
    return f"{how} (libtpu {fit.compiler.libtpu}, jaxlib {fit.compiler.jaxlib})"


def _feed(fit: Fit, rate: Range) -> str:
    low, high = (_short(end / 1e3) for end in (rate.low, rate.high))
    vcpus = low if low == high else f"{low} to {high}"
    hosts = f"; its hosts have {fit.vcpus:,}" if fit.vcpus else ""
    examples = _range(rate, "{:,.0f}".format)
    return f"{examples} examples/s: {vcpus} vCPUs per millisecond of CPU time per example{hosts}"


def _padding(fit: Fit) -> Table:
    right = ("dimension", "better", "waste there", "of all FLOPs")
    table = layout.table("layer", *right, right=right)
    for waste in fit.mxu_padding:
        table.add_row(
            layout.text(waste.layer),
            f"{waste.size:,} ({waste.dimension})",
            f"{waste.better_size:,}",
            format_fraction(waste.wasted_fraction),
            format_fraction(waste.share_of_flops),
        )
    return table


def _advice(one: Suggestion) -> RenderableType:
    outcome = ""
    if one.fits is not None and one.hbm_needed_bytes is not None:
        verdict = "fits" if one.fits else "does not fit either"
        outcome = f" Compiled: {verdict}, {format_bytes(one.hbm_needed_bytes)}."
    elif one.why_not:
        outcome = f" Not compiled: {one.why_not.rstrip('.')}."
    first = layout.text(one.code, "bold").append(f": {one.what}.{outcome}", "not bold")
    return layout.indent(first, layout.text(f"→ {one.change}", "cyan"))


def _comparison(result: Comparison) -> RenderableType:
    right = ("batch", "fits", "HBM", "VMEM", "step", "MXU waste", "$ per million")
    table = layout.table("type", *right, right=right)
    for fit in result.types:
        cost = fit.usd_per_million_examples
        shares = [k.vmem_needed_bytes / (k.vmem_limit_bytes or 1) for k in fit.pallas_kernels]
        table.add_row(
            fit.accelerator_type,
            f"{fit.batch_size:,}" if fit.batch_size else "-",
            layout.text("yes", "green") if fit.fits else layout.text("no", "bold red"),
            format_fraction(fit.hbm_needed_bytes / fit.hbm_available_bytes),
            format_fraction(max(shares)) if shares else "-",
            _range(fit.step_ms_estimate, _ms),
            format_fraction(fit.mxu_padding_waste_fraction),
            _range(cost, _dollars) if cost and fit.fits else "-",
        )
    for one in result.rejected:
        table.add_row(one.accelerator_type, "-", layout.text("no", "bold red"), *["-"] * 5)
    why: list[RenderableType] = []
    for one in result.rejected:
        hint = [layout.text(f"→ {one.hint}", "cyan")] if one.hint else []
        why += [layout.indent(layout.text(one.reason), *hint), ""]
    prices = "$ per million examples, on demand, in the cheapest zone of each type."
    title = layout.text(result.types[0].target, "bold")
    return layout.stack(title, "", table, "", *why, layout.text(prices, "dim"))


def _range(value: Range, write: Callable[[float], str]) -> str:
    low, high = write(value.low), write(value.high)
    for unit in (" ms", " s"):
        if low.endswith(unit) and high.endswith(unit) and low != high:
            low = low.removesuffix(unit)
    return low if low == high else f"{low} to {high}"


def _ms(milliseconds: float) -> str:
    return format_duration(milliseconds / 1e3) if milliseconds >= 1 else f"{milliseconds:.3g} ms"


def _short(number: float) -> str:
    return f"{number:,.3g}" if number < 1000 else f"{number:,.0f}"


def _dollars(amount: float) -> str:
    if amount >= 1 or not amount:
        return f"${amount:,.2f}"
    # Two significant digits, without an exponent.
    return f"${amount:.{1 - math.floor(math.log10(amount))}f}"


def _flop(number: float) -> str:
    for factor, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if number >= factor:
            return f"{number / factor:,.4g} {unit}FLOP"
    return f"{number:,.0f} FLOP"
