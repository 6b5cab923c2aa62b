"""Quotas as a table: zones down, generations across, or one type in every zone."""

from tpuctl.cloud.quotas import QuotaTable, ZoneLimit
from tpuctl.reporters.columns import columns

_LEGEND = (
    "Chips: on demand / spot. 0: no request there can succeed; -: not known, as in zones not shown."
)


def text(quotas: QuotaTable) -> str:
    """Show the limits of a project."""
    if not quotas.limits:
        what = quotas.accelerator_type or "TPUs"
        return f"The project {quotas.project} has no quota for {what} that we know of."
    lines = _of_type(quotas) if quotas.accelerator_type else _of_all(quotas)
    return "\n".join([*lines, "", _LEGEND])


def _of_all(quotas: QuotaTable) -> list[str]:
    generations = list(dict.fromkeys(limit.generation for limit in quotas.limits))
    cells = {(limit.zone, limit.generation): _cell(limit) for limit in quotas.limits}
    rows = [
        (zone, *(cells.get((zone, generation), "") for generation in generations))
        for zone in sorted({limit.zone for limit in quotas.limits})
    ]
    return columns(("zone", *generations), rows)


def _of_type(quotas: QuotaTable) -> list[str]:
    titles = ("zone", f"{quotas.limits[0].generation} chips", f"one {quotas.accelerator_type} fits")
    return columns(titles, [(lim.zone, _cell(lim), _fits(lim)) for lim in quotas.limits])


def _fits(limit: ZoneLimit) -> str:
    ways = {"on demand": limit.on_demand_fits, "spot": limit.spot_fits}
    return ", ".join(way for way, fits in ways.items() if fits) or "no"


def _cell(limit: ZoneLimit) -> str:
    return f"{_chips(limit.on_demand_chips)} / {_chips(limit.spot_chips)}"


def _chips(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"
