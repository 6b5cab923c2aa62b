"""Whether a program fits a TPU, as text: the answer first, then the numbers, then what to do."""

import math
from collections.abc import Callable

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tpuctl.compile.models import Comparison, Fit, Range, Suggestion
from tpuctl.units import format_bytes, format_duration, format_fraction, format_usd


def text(result: Fit | Comparison) -> RenderableType:
    """Show one type, or several side by side."""
    return _comparison(result) if isinstance(result, Comparison) else _one(result)


def _one(fit: Fit) -> RenderableType:
    parts: list[RenderableType] = [_answer(fit), "", _figures(fit)]
    if fit.mxu_padding:
        parts += ["", _padding(fit)]
    if fit.largest_tensors:
        parts += ["", Text("Largest when memory is fullest, on each device", "bold")]
        parts += [_item(f"{format_bytes(t.size_bytes)}: {t.shapes}") for t in fit.largest_tensors]
    if fit.advice:
        parts += ["", Text("Try", "bold"), *map(_advice, fit.advice)]
    parts += [Text(note, "dim") for note in fit.notes]
    return Group(*parts)


def _answer(fit: Fit) -> Text:
    batch = f" with a batch of {fit.batch_size:,}" if fit.batch_size else ""
    memory = f"{format_bytes(fit.hbm_needed_bytes)} of {format_bytes(fit.hbm_available_bytes)}"
    if not fit.fits:
        words = f"{fit.target} does not fit a {fit.accelerator_type}{batch}: it needs {memory}."
        return Text(words, "bold red")
    if fit.max_batch:
        left = format_bytes(fit.hbm_available_bytes - fit.hbm_needed_bytes)
        words = f"The largest batch of {fit.target} on a {fit.accelerator_type}: {fit.max_batch:,}."
        return Text.assemble((words, "bold green"), f"  {memory}, {left} left.")
    words = f"{fit.target} fits a {fit.accelerator_type}{batch}."
    return Text.assemble((words, "bold green"), f"  {memory}.")


def _figures(fit: Fit) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column()
    for name, value in _rows(fit):
        table.add_row(name, Text(value))
    return table


def _rows(fit: Fit) -> list[tuple[str, str]]:
    mode = "" if fit.mode == "as given" else f"{fit.mode}, "
    rows = [
        (
            "program",
            f"{mode}{fit.framework}, on {_count(fit.chips, 'chip')} "
            f"({_count(fit.devices, 'device')})",
        ),
        ("memory", _memory(fit)),
        (
            "step",
            f"{_range_ms(fit.step_ms_estimate)} ({fit.bound}-bound: arithmetic "
            f"{_ms(fit.compute_ms)}, memory {_ms(fit.memory_ms)}, exchange "
            f"{_ms(fit.communication_ms)})",
        ),
        (
            "work",
            f"{_flop(fit.flops_per_step)} and {format_bytes(fit.hbm_bytes_per_step)} of memory "
            "traffic per step",
        ),
    ]
    if fit.mxu_padding_waste_fraction is not None:
        waste = format_fraction(fit.mxu_padding_waste_fraction)
        rows.append(("MXU padding", f"{waste} of its FLOPs are waste"))
    if fit.batch_size and fit.per_chip_batch:
        rows.insert(1, ("batch", f"{fit.batch_size:,}, {fit.per_chip_batch:,.10g} on each chip"))
    if fit.examples_per_s and fit.fits:
        rows.append(("to feed it", _feed(fit, fit.examples_per_s)))
    if fit.usd_per_million_examples and fit.usd_per_hour and fit.fits:
        cost = _range(fit.usd_per_million_examples, _dollars)
        rows.append(
            (
                "price",
                f"{cost} per million examples ({format_usd(fit.usd_per_hour)} an hour in "
                f"{fit.usd_zone}, on demand)",
            )
        )
    rows.append(("compiled", _compiled(fit)))
    return rows


def _memory(fit: Fit) -> str:
    share = fit.hbm_needed_bytes / fit.hbm_available_bytes
    if not fit.fits:
        return f"{share:,.3g} times what each device has"
    return f"{format_fraction(max(0.0, 1 - share))} of each device's HBM stays free"


def _compiled(fit: Fit) -> str:
    how = f"in {format_duration(fit.compile_seconds)}"
    if fit.from_cache:
        how = "before, from the cache"
    elif fit.compilations > 1:
        how = f"{fit.compilations} times, the last in {format_duration(fit.compile_seconds)}"
    return f"{how} (libtpu {fit.compiler.libtpu}, jaxlib {fit.compiler.jaxlib})"


def _feed(fit: Fit, rate: Range) -> str:
    vcpus = Range(rate.low / 1e3, rate.high / 1e3)
    there = f"; its hosts have {fit.vcpus:,}" if fit.vcpus else ""
    return (
        f"{_range(rate, _whole)} examples/s: {_range(vcpus, _short)} vCPUs for every millisecond "
        f"of CPU that an example costs{there}"
    )


def _padding(fit: Fit) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("layer", overflow="fold")
    for title in ("dimension", "better", "waste there", "of all FLOPs"):
        table.add_column(title, justify="right")
    for waste in fit.mxu_padding:
        table.add_row(
            Text(waste.layer),
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
    first = Text.assemble((one.code, "bold"), f": {one.what}.{outcome}")
    return Padding(Group(first, Text(f"→ {one.change}", "cyan")), (0, 0, 0, 2))


def _comparison(result: Comparison) -> RenderableType:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("type", no_wrap=True)
    for title in ("batch", "fits", "HBM", "step", "MXU waste", "$ per million"):
        table.add_column(title, justify="right")
    for fit in result.types:
        cost = fit.usd_per_million_examples
        table.add_row(
            fit.accelerator_type,
            f"{fit.batch_size:,}" if fit.batch_size else "-",
            Text("yes", "green") if fit.fits else Text("no", "bold red"),
            format_fraction(fit.hbm_needed_bytes / fit.hbm_available_bytes),
            _range_ms(fit.step_ms_estimate),
            format_fraction(fit.mxu_padding_waste_fraction),
            _range(cost, _dollars) if cost and fit.fits else "-",
        )
    target = result.types[0].target
    prices = "$ for a million examples, on demand, in the cheapest zone of each type."
    return Group(Text(target, "bold"), "", table, "", Text(prices, "dim"))


def _range_ms(value: Range) -> str:
    return _range(value, _ms)


def _range(value: Range, write: Callable[[float], str], between: str = " to ") -> str:
    low, high = write(value.low), write(value.high)
    for unit in (" ms", " s"):
        if low.endswith(unit) and high.endswith(unit) and low != high:
            low = low.removesuffix(unit)
    return low if low == high else f"{low}{between}{high}"


def _ms(milliseconds: float) -> str:
    return format_duration(milliseconds / 1e3) if milliseconds >= 1 else f"{milliseconds:.3g} ms"


def _whole(number: float) -> str:
    return f"{number:,.0f}"


def _short(number: float) -> str:
    return f"{number:,.3g}" if number < 1000 else f"{number:,.0f}"


def _dollars(amount: float) -> str:
    if amount >= 1 or not amount:
        return f"${amount:,.2f}"
    # Two digits, without an exponent.
    return f"${amount:.{1 - math.floor(math.log10(amount))}f}"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def _flop(number: float) -> str:
    for factor, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if number >= factor:
            return f"{number / factor:,.4g} {unit}FLOP"
    return f"{number:,.0f} FLOP"


def _item(line: str) -> RenderableType:
    return Padding(Text(f"- {line}"), (0, 0, 0, 2))
