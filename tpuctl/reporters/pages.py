"""Results as files: every report as one HTML page, with charts where a picture says more."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tpuctl
from tpuctl.errors import UsageError
from tpuctl.printable import printable_result
from tpuctl.reporters import display, envelope, html
from tpuctl.reporters.practice import demo_page, loss_chart
from tpuctl.reporters.profile_html import profile_page
from tpuctl.storage.local import write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tpuctl.outcome import Outcome

_MOST_BARS = 20
_NEXT = "Next: "
_GIB, _MIB = 2**30, 2**20


def save(result: Outcome, path: str | Path) -> Path:
    """Write a result as JSON, as HTML (.html), or a profile as .tpuprof."""
    from tpuctl.profiling.models import Profile
    from tpuctl.profiling.tpuprof import save as save_profile

    place, kind = Path(path), Path(path).suffix.lower()
    if kind == ".tpuprof" and isinstance(result, Profile):
        save_profile(result, place)
    elif kind == ".html":
        write_atomically(place, page(result))
    elif kind == ".json":
        command, _ = display.command_and_report(result)
        write_atomically(place, envelope.success(command, result) + "\n")
    else:
        kinds = ".json or .html" + (", or .tpuprof" if isinstance(result, Profile) else "")
        raise UsageError(f"Could not save to {path}: its name must end in {kinds}.")
    return place


def page(result: Outcome) -> str:
    """Write a result as one HTML page: the answer, a chart, the evidence, what to do."""
    from tpuctl.compile.models import Comparison as FitComparison
    from tpuctl.datasets.models import Description
    from tpuctl.demo.demo import DemoResult
    from tpuctl.profiling.compare import Comparison
    from tpuctl.profiling.models import Profile

    result = printable_result(result)
    if isinstance(result, Profile):
        return profile_page(result)
    if isinstance(result, DemoResult):
        return demo_page(result)
    command, report = display.command_and_report(result)
    answer, parts = display.answer_of(result), [part for part in display.flat(report) if part != ""]
    if isinstance(result, FitComparison):
        names = [one.accelerator_type for one in result.types if one.fits]
        answer = f"{result.types[0].target} fits {', '.join(names) or 'none of the types'}."
    elif isinstance(result, Comparison):
        answer = _difference(result)
    elif not answer and parts and display.is_line(parts[0]):
        answer, *rest = str(parts.pop(0)).strip().splitlines()
        parts[:0] = ["\n".join(rest)] if rest else []
    evidence, to_do, details = _sorted(parts)
    if isinstance(result, Description):
        # Its charts have told most of it.
        details.append(("Counts", "".join(evidence)))
        evidence = []
    return html.report(
        command,
        answer.strip(),
        f"{getattr(result, 'date', '') or datetime.date.today()}, tpuctl {tpuctl.__version__}",
        charts=_charts(result),
        evidence=evidence,
        to_do=to_do,
        details=details,
    )


def _sorted(parts: list[Any]) -> tuple[list[str], list[str], list[tuple[str, str]]]:
    """Divide the parts of a report into evidence, what to do, and details with their titles."""
    evidence, to_do, details = [], [], []
    while parts:
        part = parts.pop(0)
        inside = []
        while display.is_line(part) and parts and isinstance(parts[0], list):
            inside.append([str(line) for line in parts.pop(0)])
        if not inside and str(part).startswith(_NEXT):
            to_do.append(html.steps([("Next:", str(part).removeprefix(_NEXT))]))
        elif not inside:
            evidence.append(_block(part))
        elif str(part) in display.OPEN:
            to_do.append(html.steps((one[0], "\n".join(one[1:]).lstrip("→ ")) for one in inside))
        else:
            lines = html.bullets(line.removeprefix("- ") for one in inside for line in one)
            details.append((str(part), lines))
    return evidence, to_do, details


def _block(part: Any) -> str:
    if isinstance(part, list):
        return "".join(map(_block, part))
    if hasattr(part, "columns"):
        titles = [str(column.header) for column in part.columns if part.show_header]
        cells = [[str(cell) for cell in column._cells] for column in part.columns]
        # Bars of characters are for terminals.
        kept = [at for at, each in enumerate(cells) if set("".join(each)) - set(display.BLOCKS)]
        titles = titles or [""] * len(cells)
        rows = zip(*(cells[at] for at in kept), strict=True)
        return html.table([titles[at] for at in kept], list(rows), name=titles[0] or "Figures")
    if getattr(part, "no_wrap", False):
        return html.code(str(part))
    return "".join(map(html.paragraph, str(part).strip().splitlines()))


def _charts(result: Any) -> list[str]:
    """Draw what a result has to compare."""
    from tpuctl.compile.models import Comparison as FitComparison
    from tpuctl.compile.models import Fit
    from tpuctl.datasets.models import Description, PresizeResult
    from tpuctl.profiling.compare import Comparison
    from tpuctl.training import bench
    from tpuctl.training.run import Training

    match result:
        case Training():
            return [loss_chart(result)]
        case bench.Bench():
            named = [(f"{row.device}, {row.framework} {row.strategy}", row) for row in result.rows]
            return [_sweeps(named, f"{result.template} on {result.machine}.")]
        case bench.Comparison():
            named = [
                (f"{each.machine}: {each.device}, {each.framework} {each.strategy}", row)
                for each in result.columns
                for row in each.rows
            ]
            return [_sweeps(named, f"{result.template}.")]
        case Comparison():
            note = "examples per second; more is better."
            rates = _rates(result)
            return [_bars("Input pipeline", rates, "examples/s", note)] if rates else []
        case Fit():
            return _fit(result)
        case FitComparison():
            used = {
                fit.accelerator_type: 100 * fit.hbm_needed_bytes / fit.hbm_available_bytes
                for fit in result.types
            }
            note = "of each device; more than 100 % does not fit."
            return [_bars("Memory needed", used, "%", note)]
        case Description():
            return _data_set(result)
        case PresizeResult():
            sizes = {"originals": result.bytes_in / _MIB, "shards": result.bytes_out / _MIB}
            return [_bars("Size", sizes, "MiB", "before and after.")]
    return []


def _bars(title: str, values: dict[str, float], unit: str, note: str = "") -> str:
    return html.chart(title, list(values), {"": list(values.values())}, unit=unit, note=note)


def _sweeps(named: Iterable[tuple[str, Any]], note: str) -> str:
    """Draw a line for each name: time per example against batch size."""
    curves: dict[str, dict[int, float]] = {}
    for name, row in named:
        curves.setdefault(name, {})[row.batch_size] = row.us_per_example
    sizes = sorted({size for curve in curves.values() for size in curve})
    series = {name: [curve.get(size) for size in sizes] for name, curve in curves.items()}
    title, note = "Time per example", f"in microseconds, by batch size; less is better. {note}"
    labels = [f"{size:,}" for size in sizes]
    return html.chart(title, labels, series, unit="µs", note=note, line=True) if sizes else ""


def _rates(result: Any) -> dict[str, float]:
    rows = (row for row in result.rows if row.name == "examples/s" and row.before and row.after)
    return {"before": row.before, "after": row.after} if (row := next(rows, None)) else {}


def _difference(result: Any) -> str:
    if not (rates := _rates(result)):
        return f"{result.before.target} and {result.after.target}"
    times = rates["after"] / rates["before"]
    return f"The input is {times:.3g} times as fast as before."


def _fit(fit: Any) -> list[str]:
    memory = {
        "needed": fit.hbm_needed_bytes / _GIB,
        f"a {fit.accelerator_type} has": fit.hbm_available_bytes / _GIB,
    }
    times = {
        "arithmetic": fit.compute_ms, "memory": fit.memory_ms, "exchange": fit.communication_ms,
    }  # fmt: skip
    return [
        _bars("Memory of each device", memory, "GiB", f"with a batch of {fit.batch_size or 1:,}."),
        _bars("Lower bounds of the step time", times, "ms", "The longest one decides."),
    ]


def _data_set(description: Any) -> list[str]:
    counts = sorted(description.labels, key=lambda count: -count.records)
    labels = {one.name or str(one.label): one.records for one in counts[:_MOST_BARS]}
    if rest := sum(one.records for one in counts[_MOST_BARS:]):
        labels[f"{len(counts) - _MOST_BARS} others"] = rest
    sizes = {
        f"{one.from_megapixels:g}–{one.to_megapixels or '':g}" if one.to_megapixels
        else f"over {one.from_megapixels:g}": one.records
        for one in description.sizes
    }  # fmt: skip
    charts = {"Labels": labels, "Sizes of the originals in megapixels": sizes}
    drawn = (_bars(title, counts, "records") for title, counts in charts.items() if counts)
    return [*drawn, display.sheet_of(description)]
