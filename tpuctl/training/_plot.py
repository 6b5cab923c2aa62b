"""Plot curves as PNG files with matplotlib."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tpuctl.errors import MissingExtraError
from tpuctl.storage.local import write_atomically


def write_curves(
    path: Path, curves: Mapping[str, Sequence[tuple[float, float]]], **options: Any
) -> Path:
    """Write the PNG of `draw_curves`; raises MissingExtraError, and WriteError."""
    png = io.BytesIO()
    draw_curves(curves, **options).savefig(png, format="png")
    write_atomically(path, png.getvalue())
    return path


def draw_curves(
    curves: Mapping[str, Sequence[tuple[float, float]]],
    *,
    x: str,
    y: str,
    logarithmic: bool = False,
    mark: tuple[float, str] | None = None,
    title: str = "",
    ticks: Sequence[float] = (),
    top: float | None = None,
) -> Any:
    """Plot named curves of (x, y) points, from y = 0 unless one is below it.

    `mark` is a position on the x axis and its label; what is above `top` is cut off.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise MissingExtraError("Plotting", extra="plot", module="matplotlib") from error
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for name, points in curves.items():
        axes.plot(*zip(*points, strict=True), label=name or None, marker="o" if name else None)
    axes.set(xlabel=x, ylabel=y, title=title, xscale="log" if logarithmic else "linear")
    lowest = min((value for points in curves.values() for _, value in points), default=0.0)
    axes.set_ylim(bottom=min(0.0, lowest), top=top)
    if ticks:
        axes.set_xticks(ticks, [f"{tick:,g}" for tick in ticks])
    axes.grid(alpha=0.3)
    if mark:
        axes.axvline(mark[0], linestyle="--", color="tab:red", label=mark[1])
    if mark or any(curves):
        axes.legend()
    return figure
