"""Plot curves as PNG files with matplotlib."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from tpuctl.errors import MissingExtraError
from tpuctl.storage.local import write_atomically


def write_curves(
    path: Path,
    curves: Mapping[str, Sequence[tuple[float, float]]],
    *,
    x: str,
    y: str,
    logarithmic: bool = False,
    mark: tuple[float, str] | None = None,
) -> Path:
    """Plot named curves of (x, y) points; `mark` is a position on the x axis and its label.

    Raises MissingExtraError without matplotlib, and WriteError.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise MissingExtraError("Plotting", extra="plot", module="matplotlib") from error
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for name, points in curves.items():
        axes.plot(*zip(*points, strict=True), label=name or None, marker="o" if name else None)
    axes.set(xlabel=x, ylabel=y, xscale="log" if logarithmic else "linear")
    axes.grid(alpha=0.3)
    if mark:
        axes.axvline(mark[0], linestyle="--", color="tab:red", label=mark[1])
    if mark or any(curves):
        axes.legend()
    png = io.BytesIO()
    figure.savefig(png, format="png")
    write_atomically(path, png.getvalue())
    return path
