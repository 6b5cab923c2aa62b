"""Accelerator types in words and tables."""

from typing import Any

from tpuctl.hardware.types import AcceleratorType, Price, TypeTable
from tpuctl.units import format_usd


def text(result: AcceleratorType | TypeTable) -> Any:
    """Show one type, or the table of all generations."""
    return _one(result) if isinstance(result, AcceleratorType) else _all(result)


def _one(kind: AcceleratorType) -> Any:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    facts = Table(box=None, pad_edge=False, show_header=False)
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column(overflow="fold")
    for name, value in _rows(kind):
        facts.add_row(name, value)
    prices = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("zone", "on demand, an hour", "spot, an hour"):
        prices.add_column(column)
    for zone in kind.zones:
        price = kind.usd_per_hour.get(zone, Price(None, None))
        prices.add_row(zone, _usd(price.on_demand), _usd(price.spot))
    words = f"{kind.accelerator_type}: {kind.in_words}."
    dated = f"Zones and machines as of {kind.facts_as_of}, prices as of {kind.prices_as_of}."
    notes = [Text(kind.note)] if kind.note else []
    return Group(Text(words, style="bold"), "", facts, "", prices, "", *notes, Text(dated))


def _rows(kind: AcceleratorType) -> tuple[tuple[str, str], ...]:
    unit = "unknown"
    if kind.mxu_size:
        unit = f"{kind.mxus_per_core or '?'} of {kind.mxu_size}x{kind.mxu_size} in each core"
    each = f"{kind.chips_per_worker} chips, {kind.devices_per_worker} devices each"
    memory = _known(kind.memory_gb_per_worker, "GB")
    return (
        ("generation", kind.generation),
        ("chips", f"{kind.chips} ({kind.cores} TensorCores, {kind.devices} devices)"),
        ("counting", kind.counting),
        ("workers", f"{kind.workers}, {each}"),
        ("topology", kind.topology or "unknown"),
        ("matrix units", unit),
        ("memory", f"{_known(kind.hbm_gib_per_chip, 'GiB')} of HBM in each chip"),
        ("bandwidth", f"{_known(kind.hbm_gb_per_s_per_chip, 'GB/s')} in each chip"),
        ("peak", f"{_known(kind.peak_bf16_tflops_per_chip, 'TFLOP/s')} in bfloat16, each chip"),
        ("machine", kind.machine_type or "unknown"),
        ("its host", f"{_known(kind.vcpus_per_worker, 'vCPUs')}, {memory}"),
        ("runtime version", kind.runtime_version or "unknown"),
    )


def _all(table: TypeTable) -> Any:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("generation", "types", "N counts", "HBM GiB", "GB/s", "bf16 TFLOP/s", "MXU"):
        grid.add_column(column, overflow="fold")
    for line in table.families:
        numbers = (
            line.hbm_gib_per_chip,
            line.hbm_gb_per_s_per_chip,
            line.peak_bf16_tflops_per_chip,
            line.mxu_size,
        )
        cells = ("unknown" if n is None else f"{n:g}" for n in numbers)
        grid.add_row(line.generation, line.types or "-", line.counts or "-", *cells)
    notes = [Text(f"{f.generation}: {f.note}") for f in table.families if f.note]
    dated = f"Per chip. As of {table.facts_as_of}. One type: tpuctl types v5e-8"
    return Group(grid, "", *notes, "", Text(dated))


def _known(value: float | None, unit: str) -> str:
    return f"unknown {unit}" if value is None else f"{value:g} {unit}"


def _usd(value: float | None) -> str:
    return "unknown" if value is None else format_usd(value)
