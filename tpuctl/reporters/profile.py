"""Profiles as text: a verdict, the stages, the evidence, what to do next."""

import csv as csv_module
import dataclasses
import io
from collections.abc import Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tpuctl.profiling.compare import Comparison, Row
from tpuctl.profiling.models import Advice, Profile, Stage
from tpuctl.profiling.trace.models import IdleClass
from tpuctl.reporters import profile_deep, profile_trace
from tpuctl.reporters.bars import BAR_WIDTH, bar
from tpuctl.units import format_fraction, format_rate


@dataclasses.dataclass(frozen=True)
class _Column:
    """A column of the table of stages, and how wide a terminal must be to show it."""

    title: str
    least_terminal: int
    layout: dict[str, Any]


COLUMNS = (
    _Column("stage", 0, {"overflow": "ellipsis", "max_width": 18}),
    _Column("CPU", 0, {"justify": "right", "min_width": 6}),
    _Column("", 72, {"min_width": BAR_WIDTH}),
    _Column("ms/ex", 0, {"justify": "right", "min_width": 7}),
    _Column("calls", 48, {"justify": "right", "min_width": 6}),
    _Column("alone/s", 58, {"justify": "right", "min_width": 9}),
    _Column("where", 78, {"overflow": "ellipsis"}),
)


# A trace has no CPU time in it, only how long work took.
SHARE, WORK = 1, "work"


def text(profile: Profile) -> RenderableType:
    """Show a whole profile."""
    parts: list[RenderableType] = [_verdict(profile), "", _figures(profile)]
    if profile.stages or not profile.trace:
        parts += ["", _Stages(profile)]
    if profile.trace and profile.trace.idle:
        parts += ["", profile_trace.idle(profile.trace)]
        if gaps := profile_trace.gaps(profile.trace):
            parts += ["", Text("Gaps", "bold"), *map(_item, gaps)]
    if inside := profile_deep.inside(profile):
        parts += ["", Text("Inside", "bold"), *map(_item, inside)]
    parts += ["", Text("Evidence", "bold"), *map(_item, profile.evidence)]
    if profile.advice:
        parts += ["", Text("Advice", "bold"), *map(_advice, profile.advice)]
    return Group(*parts)


def csv(profile: Profile) -> str:
    """Write the stages as comma-separated values; for a trace without any, its idle time."""
    if profile.trace and not profile.stages:
        return _csv(IdleClass, profile.trace.idle)
    return _csv(Stage, profile.stages)


def _csv(kind: type, rows: Sequence[Any]) -> str:
    names = [field.name for field in dataclasses.fields(kind)]
    lines = io.StringIO()
    writer = csv_module.writer(lines, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([_cell(row, name) for name in names] for row in rows)
    return lines.getvalue().rstrip("\n")


def _cell(row: Any, name: str) -> Any:
    return profile_deep.operations(row) if name == "operations" else getattr(row, name)


def comparison(result: Comparison) -> RenderableType:
    """Show what changed between two profiles."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    for column in ("before", "after", "change"):
        table.add_column(column, justify="right")
    for row in result.rows:
        style = {True: "green", False: "red", None: ""}[row.better]
        before, after = (_amount(value, row.unit) for value in (row.before, row.after))
        table.add_row(row.name, before, after, Text(_change(row), style))
    sides = (("before", result.before), ("after", result.after))
    lines = (Text(f"{name}: {side.target} ({side.verdict})") for name, side in sides)
    return Group(*lines, "", table)


def _verdict(profile: Profile) -> Text:
    sure = "" if profile.verdict == "unknown" else f", confidence {profile.confidence:.2g}"
    style = "bold green" if profile.verdict == "device" else "bold"
    return Text.assemble((profile.headline, style), f"  [{profile.verdict}{sure}]")


def _figures(profile: Profile) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column()
    if profile.trace:
        for name, value in profile_trace.figures(profile, profile.trace):
            table.add_row(name, Text(value))
        return table
    table.add_row(
        "target", Text(f"{profile.target} ({profile.kind}, batch {profile.batch_size:,})")
    )
    rate = f"{profile.pipeline_examples_per_s:,.0f} examples/s"
    table.add_row("pipeline gives", f"{rate}, {profile.cpu_ms_per_example:.3g} ms CPU per example")
    if profile.device and profile.device_examples_per_s is not None:
        table.add_row(
            "device takes",
            Text(
                f"{profile.device_examples_per_s:,.0f} examples/s "
                f"({profile.device.step_ms:.4g} ms per step, {profile.device.source})"
            ),
        )
        table.add_row("input wait", format_fraction(profile.input_wait_fraction))
        table.add_row(
            "MXU idle",
            f"{format_fraction(profile.mxu_idle_fraction)} of {_window(profile)}; "
            "MXU utilization not collected",
        )
    else:
        table.add_row("device", Text(profile.why_no_device or "not measured"))
    table.add_row("vCPUs", _vcpus(profile))
    table.add_row("own overhead", format_fraction(profile.overhead_fraction))
    if profile.deep:
        table.add_row("host trace", profile_deep.taken(profile.deep))
    return table


def _window(profile: Profile) -> str:
    length_s = profile.window.end_s - profile.window.start_s
    return f"{length_s:.1f} s ({profile.steps:,} steps, {profile.window.what})"


def _vcpus(profile: Profile) -> str:
    vcpus = profile.vcpus
    start = f"{vcpus.available:g} available, {vcpus.used:.2f} used"
    if vcpus.needed_to_saturate is None:
        return f"{start}; needed: {vcpus.why_null}"
    needed = f"{vcpus.needed_to_saturate:.3g} ({vcpus.low:.3g} to {vcpus.high:.3g})"
    return f"{start}, {needed} needed to keep the device busy"


@dataclasses.dataclass(frozen=True)
class _Stages:
    """The table of stages, with those columns that the terminal has room for."""

    profile: Profile

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield _stages(self.profile, options.max_width)


def _stages(profile: Profile, width: int) -> Table:
    located = any(stage.location for stage in profile.stages)
    chosen = [
        index
        for index, column in enumerate(COLUMNS)
        if width >= column.least_terminal and (located or column.title != "where")
    ]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index in chosen:
        title = WORK if profile.trace and index == SHARE else COLUMNS[index].title
        table.add_column(title, no_wrap=True, **COLUMNS[index].layout)
    small = [stage for stage in profile.stages if _is_small(stage)]
    rows = [_stage_cells(stage) for stage in profile.stages if stage not in small]
    if small:
        rows.append(_rest("(others)", _sum(small)))
    if rest := profile.residual:
        rows.append(_rest("(no stage)", (rest.share_of_cpu, rest.cpu_ms_per_example)))
    for row in rows:
        table.add_row(*(row[index] for index in chosen))
    return table


def _sum(stages: list[Stage]) -> tuple[float, float]:
    share = sum(stage.share_of_cpu for stage in stages)
    return share, sum(stage.cpu_ms_per_example for stage in stages)


def _rest(name: str, share_and_ms: tuple[float, float]) -> list[RenderableType]:
    share, cpu_ms = share_and_ms
    return [Text(name, "dim"), f"{share:.1%}", bar(share, ""), f"{cpu_ms:.3g}", "", "", ""]


def _is_small(stage: Stage) -> bool:
    return stage.share_of_cpu < 0.005 and not stage.is_bottleneck and stage.location is None


def _stage_cells(stage: Stage) -> list[RenderableType]:
    style = "bold red" if stage.is_bottleneck else ""
    mark = " ◀" if stage.is_bottleneck else ""
    alone = stage.examples_per_s_alone
    return [
        Text(stage.name + mark, style),
        Text(f"{stage.share_of_cpu:.1%}", style),
        bar(stage.share_of_cpu, style),
        f"{stage.cpu_ms_per_example:.3g}",
        f"{stage.calls_in_flight:.1f}/{stage.parallelism or 1}",
        "-" if alone is None else f"{alone:,.0f}",
        Text(_short(stage.location)),
    ]


def _short(location: str | None) -> str:
    return "/".join((location or "").split("/")[-2:])


def _item(line: str) -> RenderableType:
    return Padding(Text(f"- {line}"), (0, 0, 0, 2))


def predicted(advice: Advice) -> str:
    """Say what a piece of advice should bring, and brought; empty where nobody can tell."""
    rate, idle = advice.predicted_examples_per_s, advice.predicted_mxu_idle_fraction
    found = advice.measured_examples_per_s
    brought = "" if found is None else f" Measured: {format_rate(found, 'examples')}."
    if rate is None:
        return brought
    device = "" if idle is None else f", MXU idle {idle:.0%}"
    return f" Predicted: {format_rate(rate, 'examples')}{device}.{brought}"


def _advice(advice: Advice) -> RenderableType:
    first = Text.assemble((advice.code, "bold"), f": {advice.what}{predicted(advice)}")
    return Padding(Group(first, Text(f"→ {advice.change}", "cyan")), (0, 0, 0, 2))


def _amount(value: float | None, unit: str) -> str:
    if value is None:
        return "unknown"
    if unit == "fraction":
        return format_fraction(value)
    return format_rate(value, "examples") if unit == "examples/s" else f"{value:.3g} {unit}"


def _change(row: Row) -> str:
    if row.before is None or row.after is None:
        return ""
    if row.unit == "fraction":
        return f"{(row.after - row.before) * 100:+.3g} points"
    return "" if row.ratio is None else f"x{row.ratio:.3g}"
