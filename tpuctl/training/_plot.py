"""Plots in one style: a title, the machine and date, axes with units, a legend."""

import io
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpuctl.errors import MissingExtraError
from tpuctl.printable import printable
from tpuctl.storage.local import write_atomically

if TYPE_CHECKING:
    from tpuctl.training.bench import Bench

INK, SOFT, LINE = "#1c2330", "#566073", "#dde2ea"
# The colours of the HTML reports.
COLOURS = ("#1f5fbf", "#c2410c", "#0b7a70", "#7c4db0", "#8a6500", "#69748a")
# A name from data must not be rendered as a formula.
_STYLE = {
    "text.parse_math": False, "text.color": INK, "axes.labelcolor": SOFT, "xtick.color": SOFT,
    "ytick.color": INK, "axes.edgecolor": LINE, "axes.spines.top": False, "grid.color": LINE,
    "axes.spines.right": False, "legend.frameon": False, "axes.axisbelow": True,
}  # fmt: skip
_CHARACTERS = 68


def write_curves(
    path: Path, curves: Mapping[str, Sequence[tuple[float, float]]], **options: Any
) -> Path:
    """Write the PNG of `draw_curves`; raises MissingExtraError, and WriteError."""
    write_atomically(path, png_of(draw_curves(curves, **options)))
    return path


def plan_plot(bench: "Bench") -> dict[str, Any]:
    """Return the arguments for `draw_curves` of a sweep: one curve per device."""
    curves: dict[str, list[tuple[float, float]]] = {}
    for row in sorted(bench.rows, key=lambda row: row.batch_size):
        points = curves.setdefault(f"{row.device}, {row.framework}", [])
        points.append((row.batch_size, row.us_per_example))
    return {
        "curves": curves,
        "x": "global batch",
        "y": "microseconds per example",
        "title": f"{bench.template}: time per example, lower is better",
        "about": bench.place,
        "ticks": sorted({row.batch_size for row in bench.rows}),
    }


def png_of(figure: Any) -> bytes:
    """Return a figure as a PNG."""
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=150)
    return png.getvalue()


def draw_curves(
    curves: Mapping[str, Sequence[tuple[float, float]]],
    *,
    x: str,
    y: str,
    title: str,
    about: str,
    logarithmic: bool = False,
    mark: tuple[float, str] | None = None,
    ticks: Sequence[float] = (),
    top: float | None = None,
) -> Any:
    """Plot named curves of (x, y) points, from y = 0 unless one is below it.

    `mark` is a position on the x axis and its label; values above `top` are cut off.
    """
    with _matplotlib().rc_context(_STYLE):
        figure, axes = _figure(title, about, 4.2)
        for at, (name, points) in enumerate(curves.items()):
            marker = "os^Dvx"[at % 6] if len(points) < 30 else None
            line, colour = ("-", "--", ":", "-.")[at % 4], COLOURS[at % len(COLOURS)]
            xs, ys = zip(*points, strict=True)
            axes.plot(xs, ys, label=printable(name), marker=marker, ls=line, color=colour)
        axes.set(xlabel=x, ylabel=y, xscale="log" if logarithmic else "linear")
        lowest = min((value for points in curves.values() for _, value in points), default=0.0)
        axes.set_ylim(bottom=min(0.0, lowest), top=top)
        if ticks:
            axes.set_xticks(ticks, [f"{tick:,g}" for tick in ticks])
        axes.grid(axis="y")
        if mark:
            axes.axvline(mark[0], linestyle="--", color=COLOURS[1], label=mark[1])
        axes.legend()
    return figure


def draw_bars(
    rows: Mapping[str, Mapping[str, float]],
    *,
    x: str,
    unit: str,
    title: str,
    about: str,
    hot: str = "",
) -> Any:
    """Draw a horizontal bar for each row, made of its named parts; `hot` is highlighted."""
    with _matplotlib().rc_context(_STYLE):
        figure, axes = _figure(title, about, 1.9 + 0.36 * len(rows))
        names = list(dict.fromkeys(name for parts in rows.values() for name in parts))
        labels, ends = [textwrap.shorten(printable(row), 34) for row in rows], [0.0] * len(rows)
        free = iter(COLOURS[2:] * (1 + len(names)))
        for at, name in enumerate(names):
            colour = COLOURS[1] if name == hot else COLOURS[0] if not at else next(free)
            values = [parts.get(name, 0.0) for parts in rows.values()]
            axes.barh(range(len(rows)), values, left=ends, color=colour, label=printable(name))
            ends = [end + value for end, value in zip(ends, values, strict=True)]
        for at, end in enumerate(ends):
            axes.annotate(f"{end:,.3g} {unit}", (end, at), (5, 0), textcoords="offset points",
                          va="center", weight="bold")  # fmt: skip
        axes.set(xlabel=x, xlim=(0, 1.18 * max(ends, default=1.0) or 1.0))
        axes.set_yticks(range(len(rows)), labels)
        axes.invert_yaxis()
        axes.grid(axis="x")
        if len(names) > 1:
            figure.legend(loc="outside lower left", ncols=6)
    return figure


def _matplotlib() -> Any:
    try:
        import matplotlib
    except ModuleNotFoundError as error:
        raise MissingExtraError("Plotting", extra="plot", module="matplotlib") from error
    return matplotlib


def _figure(title: str, about: str, height: float) -> tuple[Any, Any]:
    """Begin a plot, with a bold title and, below it, where and when it was measured."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    lines = textwrap.wrap(printable(title), _CHARACTERS)
    below = textwrap.wrap(printable(about), _CHARACTERS + 24)
    size, layout = (7.5, height + 0.22 * len([*lines, *below])), ConstrainedLayoutEngine
    figure = Figure(figsize=size, layout=layout(w_pad=0.14, h_pad=0.1))
    figure.suptitle("\n".join(lines), x=0.02, ha="left", weight="bold", size=12)
    axes = figure.subplots()
    axes.set_title("\n".join(below), loc="left", size=9, color=SOFT, x=0)
    return figure, axes
