"""Profiles as text: the verdict, the stages, the evidence, what to do next."""

from __future__ import annotations

import csv
import dataclasses
import io
from typing import TYPE_CHECKING, Any

from tpuctl.profiling.case import name_idle
from tpuctl.reporters import layout, profile_trace
from tpuctl.units import format_bytes, format_fraction, format_rate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.table import Table
    from rich.text import Text

    from tpuctl.profiling.compare import Comparison, Row
    from tpuctl.profiling.models import Advice, Profile, Stage
    from tpuctl.profiling.trace.models import Deep


def render_profile(profile: Profile) -> RenderableType:
    """Show a whole profile."""
    parts: list[RenderableType] = [_verdict(profile), "", layout.facts(figures(profile), style="")]
    if profile.stages or not profile.trace:
        parts += ["", _Stages(profile)]
    if profile.trace and profile.trace.idle:
        parts += ["", profile_trace.idle_table(profile.trace)]
        if gaps := profile_trace.gap_lines(profile.trace):
            parts += layout.bullets("Gaps", gaps)
    if inside := operation_lines(profile):
        parts += layout.bullets("Operations", inside)
    parts += layout.bullets("Evidence", profile.evidence)
    if profile.advice:
        parts += ["", layout.text("Advice", "bold"), *map(_advice, profile.advice)]
    return layout.stack(*parts)


def _verdict(profile: Profile) -> Text:
    confidence = "" if profile.verdict == "unknown" else f", confidence {profile.confidence:.2g}"
    style = "bold green" if profile.verdict == "device" else "bold"
    title = layout.text("").append(profile.headline, style)
    return title.append(f"  [{profile.verdict}{confidence}]")


def figures(profile: Profile) -> Iterator[tuple[str, str]]:
    """Yield the figures of a profile by name."""
    if profile.trace:
        yield from profile_trace.figures(profile, profile.trace)
        return
    yield "target", f"{profile.target} ({profile.kind}, batch {profile.batch_size:,})"
    cpu = f"{profile.cpu_ms_per_example:.3g} ms CPU per example"
    yield "pipeline", f"{profile.pipeline_examples_per_s:,.0f} examples/s, {cpu}"
    if profile.device and profile.device_examples_per_s is not None:
        step = f"{profile.device.step_ms:.4g} ms per step, {profile.device.source}"
        length_s = profile.window.end_s - profile.window.start_s
        window = f"{length_s:.1f} s ({profile.steps:,} steps, {profile.window.what})"
        yield "device", f"{profile.device_examples_per_s:,.0f} examples/s ({step})"
        yield "input wait", format_fraction(profile.input_wait_fraction)
        idle = f"{format_fraction(profile.mxu_idle_fraction)} of {window}"
        name = name_idle(profile.device, profile.host)
        yield name, f"{idle}; MXU utilization not collected" if "MXU" in name else idle
    else:
        yield "device", profile.why_no_device or "not measured"
    yield "vCPUs", _vcpus(profile)
    yield "own overhead", format_fraction(profile.overhead_fraction)
    if profile.deep:
        yield "host trace", deep_summary(profile.deep)


def _vcpus(profile: Profile) -> str:
    vcpus = profile.vcpus
    start = f"{vcpus.available:g} available, {vcpus.used:.2f} used"
    if vcpus.needed_to_saturate is None:
        return f"{start}; needed: {vcpus.why_null}"
    needed = f"{vcpus.needed_to_saturate:.3g} ({vcpus.low:.3g} to {vcpus.high:.3g})"
    return f"{start}, {needed} needed to keep the device busy"


def deep_summary(deep: Deep) -> str:
    """Say how long the host was traced, how much data that gave, and what it cost."""
    if deep.missing:
        return "none"
    parts = [
        f"{deep.traced_s:.1f} s, {format_bytes(deep.traced_bytes)}",
        f"{format_fraction(deep.overhead_fraction)} of the vCPUs meanwhile",
    ]
    if deep.linked_fraction is not None:
        parts.append(f"{format_fraction(deep.linked_fraction)} of the work linked to a stage")
    return "; ".join(parts)


def operation_lines(profile: Profile) -> list[str]:
    """Say which operations the stages with notable CPU time spend it in."""
    shown = [stage for stage in profile.stages if stage.operations and stage.is_notable]
    return [f"{stage.name}: {stage_operations(stage)}" for stage in shown]


def stage_operations(stage: Stage) -> str:
    """List the operations of a stage with their shares of its work."""
    return ", ".join(f"{each.name} {each.share_of_stage:.0%}" for each in stage.operations)


# How long the name of a stage may be, in terminals below and from a width of WIDE.
NAME_WIDTH, WIDE_NAME_WIDTH, WIDE = 18, 36, 98
# Title, the narrowest terminal in which the column is shown, and how it is laid out.
_COLUMNS: tuple[tuple[str, int, dict[str, Any]], ...] = (
    ("stage", 0, {}),
    ("CPU", 0, {"justify": "right", "min_width": 6}),
    ("", 72, {"min_width": 10}),
    ("ms/ex", 0, {"justify": "right", "min_width": 7}),
    ("calls", 48, {"justify": "right", "min_width": 6}),
    ("alone/s", 58, {"justify": "right", "min_width": 9}),
    ("where", 78, {"overflow": "ellipsis"}),
)


@dataclasses.dataclass(frozen=True)
class _Stages:
    """The table of stages, with the columns that the terminal has room for."""

    profile: Profile

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield _stage_table(self.profile, options.max_width)


def _stage_table(profile: Profile, width: int) -> Table:
    located = any(stage.location for stage in profile.stages)
    table = layout.table()
    chosen = []
    for index, (title, least_width, style) in enumerate(_COLUMNS):
        if width >= least_width and (located or title != "where"):
            chosen.append(index)
            # A trace has no CPU time in it, only how long work took.
            shown = "work" if profile.trace and title == "CPU" else title
            table.add_column(shown, no_wrap=True, **style)
    small = [
        stage
        for stage in profile.stages
        if stage.share_of_cpu < 0.005 and not stage.is_bottleneck and stage.location is None
    ]
    room = NAME_WIDTH if width < WIDE else WIDE_NAME_WIDTH
    rows = [_stage_cells(stage, room) for stage in profile.stages if stage not in small]
    if small:
        share = sum(stage.share_of_cpu for stage in small)
        rows.append(_rest("(others)", share, sum(stage.cpu_ms_per_example for stage in small)))
    if rest := profile.residual:
        rows.append(_rest("(no stage)", rest.share_of_cpu, rest.cpu_ms_per_example))
    for row in rows:
        table.add_row(*(row[index] for index in chosen))
    return table


def _rest(name: str, share: float, cpu_ms: float) -> list[RenderableType]:
    cells = (f"{share:.1%}", layout.bar(share), f"{cpu_ms:.3g}")
    return [layout.text(name, "dim"), *cells, "", "", ""]


def _stage_cells(stage: Stage, room: int) -> list[RenderableType]:
    style = "bold red" if stage.is_bottleneck else ""
    mark = " ◀" if stage.is_bottleneck else ""
    alone, name = stage.examples_per_s_alone, stage.name
    if len(name + mark) > room:
        name = name[: room - len(mark) - 1] + "…"
    return [
        layout.text(name + mark, style),
        layout.text(f"{stage.share_of_cpu:.1%}", style),
        layout.bar(stage.share_of_cpu, style or "cyan"),
        f"{stage.cpu_ms_per_example:.3g}",
        f"{stage.calls_in_flight:.1f}/{stage.parallelism or 1}",
        "-" if alone is None else f"{alone:,.0f}",
        layout.text("/".join((stage.location or "").split("/")[-2:])),
    ]


def prediction(advice: Advice) -> str:
    """Say what a piece of advice should bring, and what it brought; empty if unknown."""
    rate, idle = advice.predicted_examples_per_s, advice.predicted_mxu_idle_fraction
    found = advice.measured_examples_per_s
    measured = "" if found is None else f" Measured: {format_rate(found, 'examples')}."
    if rate is None:
        return measured
    device = "" if idle is None else f", device idle {idle:.0%}"
    return f" Predicted: {format_rate(rate, 'examples')}{device}.{measured}"


def _advice(advice: Advice) -> RenderableType:
    what = f": {advice.what}{prediction(advice)}"
    first = layout.text("").append(advice.code, "bold").append(what)
    change = f"→ {advice.change}"
    is_command = advice.change.startswith("tpuctl ")
    return layout.indent(
        first, layout.command(change) if is_command else layout.text(change, "cyan")
    )


def profile_csv(profile: Profile) -> str:
    """Write the stages as comma-separated values, or the idle time of a trace without stages."""
    from tpuctl.profiling.models import Stage
    from tpuctl.profiling.trace.models import IdleClass

    is_trace = profile.trace and not profile.stages
    rows: Any = profile.trace.idle if is_trace and profile.trace else profile.stages
    names = [field.name for field in dataclasses.fields(IdleClass if is_trace else Stage)]
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([_cell(row, name) for name in names] for row in rows)
    return lines.getvalue().rstrip("\n")


def _cell(row: Any, name: str) -> Any:
    return stage_operations(row) if name == "operations" else getattr(row, name)


def render_profile_diff(result: Comparison) -> RenderableType:
    """Show what changed between two profiles."""
    right = ("before", "after", "change")
    table = layout.table("", *right, right=right)
    for row in result.rows:
        style = {True: "green", False: "red", None: ""}[row.better]
        word = {True: ", better", False: ", worse", None: ""}[row.better]
        before, after = (_amount(value, row.unit) for value in (row.before, row.after))
        table.add_row(row.name, before, after, layout.text(_change(row) + word, style))
    sides = (("before", result.before), ("after", result.after))
    lines = (layout.text(f"{name}: {side.target} ({side.verdict})") for name, side in sides)
    return layout.stack(*lines, "", table)


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


_LIVE_COLUMNS = {
    "steps": 8,
    "step ms": 9,
    "examples/s": 11,
    "waits": 8,
    "vCPUs": 10,
    "verdict": 10,
    "stage": 0,
}


def live_header() -> str:
    """Return the titles above the lines of a running training."""
    return _live_line(*_LIVE_COLUMNS)


def live_row(profile: Profile) -> str:
    """Write what is known of a running training in one line."""
    vcpus = profile.vcpus
    return _live_line(
        f"{profile.steps:,}",
        f"{profile.step_ms.p50:.1f}" if profile.step_ms else "",
        f"{profile.pipeline_examples_per_s or 0:,.0f}",
        format_fraction(profile.input_wait_fraction),
        f"{vcpus.used or 0:.1f} of {vcpus.available or 0:g}",
        profile.verdict,
        next((stage.name for stage in profile.stages if stage.is_bottleneck), ""),
    )


def _live_line(*cells: str) -> str:
    padded = (c.rjust(width) for c, width in zip(cells, _LIVE_COLUMNS.values(), strict=True))
    return "  ".join(padded)[:100].rstrip()
