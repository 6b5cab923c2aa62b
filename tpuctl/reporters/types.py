"""Accelerator types and quotas as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.reporters import layout
from tpuctl.units import format_count, format_usd

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from tpuctl.cloud.quotas import QuotaTable, ZoneLimit
    from tpuctl.hardware.types import AcceleratorType, TypeTable


def render_types(result: AcceleratorType | TypeTable) -> RenderableType:
    """Show one accelerator type, or the table of all generations."""
    from tpuctl.hardware.types import TypeTable

    return _all_types(result) if isinstance(result, TypeTable) else _one_type(result)


def _one_type(kind: AcceleratorType) -> RenderableType:
    prices = layout.table("zone", "on demand, per hour", "spot, per hour")
    for zone in kind.zones:
        price = kind.usd_per_hour.get(zone)
        on_demand, spot = (price.on_demand, price.spot) if price else (None, None)
        prices.add_row(zone, format_usd(on_demand), format_usd(spot))
    title = layout.text(f"{kind.accelerator_type}: {kind.in_words}.", "bold")
    dated = f"Zones and machines as of {kind.facts_as_of}, prices read on {kind.prices_as_of}."
    notes = [layout.text(kind.note)] if kind.note else []
    facts = layout.facts(_type_rows(kind))
    return layout.stack(title, "", facts, "", prices, "", *notes, layout.text(dated))


def _type_rows(kind: AcceleratorType) -> Iterator[tuple[str, str]]:
    units = "unknown"
    if kind.mxu_size:
        units = f"{kind.mxus_per_core or '?'} of {kind.mxu_size}x{kind.mxu_size} per core"
    hosts = _known(kind.vcpus_per_worker, "vCPUs"), _known(kind.memory_gb_per_worker, "GB")
    yield "generation", kind.generation
    yield "chips", f"{kind.chips} ({kind.cores} TensorCores, {kind.devices} devices)"
    yield "counting", kind.counting
    yield (
        "workers",
        f"{kind.workers}, {format_count(kind.chips_per_worker, 'chip')}, "
        f"{format_count(kind.devices_per_worker, 'device')} each",
    )
    yield "topology", kind.topology or "unknown"
    yield "matrix units", units
    yield "memory", f"{_known(kind.hbm_gib_per_chip, 'GiB')} HBM per chip"
    yield "bandwidth", f"{_known(kind.hbm_gb_per_s_per_chip, 'GB/s')} per chip"
    yield "peak", f"{_known(kind.peak_bf16_tflops_per_chip, 'TFLOP/s')} per chip in bfloat16"
    yield "machine", kind.machine_type or "unknown"
    yield "per worker", ", ".join(hosts)
    yield "runtime version", kind.runtime_version or "unknown"


def _all_types(table: TypeTable) -> RenderableType:
    if table.gpus:
        return _beside_gpus(table)
    grid = layout.table("generation", "types", "N counts", "HBM GiB", "GB/s", "bf16 TFLOP/s", "MXU")
    for line in table.families:
        numbers = (
            line.hbm_gib_per_chip,
            line.hbm_gb_per_s_per_chip,
            line.peak_bf16_tflops_per_chip,
            line.mxu_size,
        )
        cells = ("unknown" if n is None else f"{n:g}" for n in numbers)
        grid.add_row(line.generation, line.types or "-", line.counts or "-", *cells)
    notes = [layout.text(f"{f.generation}: {f.note}") for f in table.families if f.note]
    dated = f"Per chip, as of {table.facts_as_of}. Details of one type: tpuctl types v5e-8"
    gpus = layout.text("With GPUs: tpuctl types gpus")
    return layout.stack(grid, "", *notes, "", layout.text(dated), gpus)


def _beside_gpus(table: TypeTable) -> RenderableType:
    numbers = ("memory GiB", "GB/s", "16-bit TFLOP/s", "US$/h on demand", "spot")
    grid = layout.table("chip", *numbers, right=numbers)
    for tpu in table.families:
        facts = (tpu.hbm_gib_per_chip, tpu.hbm_gb_per_s_per_chip, tpu.peak_bf16_tflops_per_chip)
        if tpu.lowest_usd_per_chip_hour:
            price = format_usd(tpu.lowest_usd_per_chip_hour)
            cells = ("-" if fact is None else f"{fact:g}" for fact in facts)
            grid.add_row(f"TPU {tpu.generation}", *cells, price, "")
    for gpu in table.gpus:
        facts = (gpu.memory_gib, gpu.gb_per_s, gpu.peak_16_bit_tflops)
        prices = format_usd(gpu.on_demand), format_usd(gpu.spot)
        grid.add_row(f"GPU {gpu.name}", *(f"{fact:g}" for fact in facts), *prices)
    days = ", ".join(f"{gpu.name}: {gpu.spot_as_of}" for gpu in table.gpus if gpu.spot_as_of)
    notes = (
        f"A TPU chip in its cheapest zone (read on {table.prices_as_of}) includes its host; a "
        f"GPU (read on {table.gpus_as_of}) does not, and its price is that of one zone in the USA. "
        f"Spot prices change daily; one is shown if its day is known ({days}).",
        "Peaks are without sparsity, in bfloat16; those of P100, V100 and T4 are in float16.",
    )
    return layout.stack(grid, "", *map(layout.text, notes))


def _known(value: float | None, unit: str) -> str:
    return f"unknown {unit}" if value is None else f"{value:g} {unit}"


_LEGEND = "Chips, on demand / spot. 0: requests there always fail; -: unknown, as in other zones."


def render_quotas(quotas: QuotaTable) -> str:
    """Show the limits of a project: all generations, or one type in every zone."""
    if not quotas.limits:
        what = quotas.accelerator_type or "TPUs"
        return f"No known quota for {what} in the project {quotas.project}."
    lines = _quota_of_type(quotas) if quotas.accelerator_type else _all_quotas(quotas)
    return "\n".join([*lines, "", _LEGEND])


def _all_quotas(quotas: QuotaTable) -> list[str]:
    generations = list(dict.fromkeys(limit.generation for limit in quotas.limits))
    cells = {(each.provider, each.zone, each.generation): _chips(each) for each in quotas.limits}
    places = sorted({(limit.provider, limit.zone) for limit in quotas.limits})
    rows = [
        (*place, *(cells.get((*place, generation), "") for generation in generations))
        for place in places
    ]
    return layout.plain_table(("provider", "zone", *generations), rows)


def _quota_of_type(quotas: QuotaTable) -> list[str]:
    kind = quotas.accelerator_type
    chips, room = f"{quotas.limits[0].generation} chips", f"room for one {kind}"
    titles = ("provider", "zone", chips, room, "binding limit")
    rows = [
        (
            limit.provider,
            limit.zone,
            _chips(limit),
            _fits(limit),
            _binding(limit),
        )
        for limit in quotas.limits
    ]
    return layout.plain_table(titles, rows)


def _binding(limit: ZoneLimit) -> str:
    """Name the quotas to have raised."""
    pairs = ((limit.on_demand_fits, limit.on_demand_quota), (limit.spot_fits, limit.spot_quota))
    return ", ".join(str(quota) for fits, quota in pairs if fits is False)


def _fits(limit: ZoneLimit) -> str:
    ways = {"on demand": limit.on_demand_fits, "spot": limit.spot_fits}
    return ", ".join(way for way, fits in ways.items() if fits) or "no"


def _chips(limit: ZoneLimit) -> str:
    pair = (limit.on_demand_chips, limit.spot_chips)
    return " / ".join("-" if chips is None else f"{chips:,}" for chips in pair)
