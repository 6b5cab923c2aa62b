"""Quotas as a table: zones down, generations across, or one type in every zone."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tpuctl.cloud.quotas import QuotaTable, ZoneLimit

_LEGEND = "Chips: on demand / spot. 0: no request there can succeed; -: not known."


def text(quotas: QuotaTable) -> RenderableType:
    """Show the limits of a project."""
    if not quotas.limits:
        return Text(f"The project {quotas.project} has no quota of TPUs that we know of.")
    table = _of_type(quotas) if quotas.accelerator_type else _of_all(quotas)
    return Group(table, "", Text(_LEGEND))


def _of_all(quotas: QuotaTable) -> Table:
    generations = list(dict.fromkeys(limit.generation for limit in quotas.limits))
    cells = {(limit.zone, limit.generation): _cell(limit) for limit in quotas.limits}
    table = _table("zone", *generations)
    for zone in sorted({limit.zone for limit in quotas.limits}):
        table.add_row(zone, *(cells.get((zone, generation), "") for generation in generations))
    return table


def _of_type(quotas: QuotaTable) -> Table:
    table = _table(
        "zone", f"{quotas.limits[0].generation} chips", f"{quotas.accelerator_type} fits"
    )
    for limit in quotas.limits:
        fits = [
            name
            for name, does in (("on demand", limit.on_demand_fits), ("spot", limit.spot_fits))
            if does
        ]
        unknown = limit.on_demand_chips is None and limit.spot_chips is None
        table.add_row(limit.zone, _cell(limit), ", ".join(fits) or ("unknown" if unknown else "no"))
    return table


def _cell(limit: ZoneLimit) -> str:
    return f"{_chips(limit.on_demand_chips)} / {_chips(limit.spot_chips)}"


def _chips(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column)
    return table
