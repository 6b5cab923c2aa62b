"""A curve as a PNG, through matplotlib."""

from collections.abc import Sequence
from pathlib import Path

from tpuctl.errors import MissingExtraError
from tpuctl.storage.local import translated_write_errors


def write_plot(
    path: Path,
    across: Sequence[float],
    up: Sequence[float],
    *,
    x: str,
    y: str,
    logarithmic: bool = False,
    mark: tuple[float, str] | None = None,
) -> Path:
    """Draw one curve; `mark` is a place on the x axis and what to say of it.

    Raises MissingExtraError where matplotlib is not installed, WriteError where the file finds no
    place.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise MissingExtraError("A plot", extra="plot", module="matplotlib") from error
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(across, up)
    axes.set(xlabel=x, ylabel=y, xscale="log" if logarithmic else "linear")
    axes.grid(alpha=0.3)
    if mark:
        axes.axvline(mark[0], linestyle="--", color="tab:red", label=mark[1])
        axes.legend()
    with translated_write_errors(path):
        figure.savefig(path, format="png")
    return path
