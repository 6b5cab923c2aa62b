"""Profiles as text: a verdict, the stages, the evidence, what to do next."""

import csv as csv_module
import dataclasses
import io

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tpuctl.pipeline.compare import Comparison, Row
from tpuctl.pipeline.models import Advice, Profile, Stage
from tpuctl.units import format_fraction, format_rate

BAR_WIDTH = 20
EIGHTHS = " ▏▎▍▌▋▊▉"


def text(profile: Profile) -> RenderableType:
    """Show a whole profile."""
    parts: list[RenderableType] = [_verdict(profile), "", _figures(profile), "", _stages(profile)]
    parts += ["", Text("Evidence", "bold"), *map(_item, profile.evidence)]
    if profile.advice:
        parts += ["", Text("Advice", "bold"), *map(_advice, profile.advice)]
    return Group(*parts)


def csv(profile: Profile) -> RenderableType:
    """Write the stages as comma-separated values with a header."""
    names = [field.name for field in dataclasses.fields(Stage)]
    lines = io.StringIO()
    writer = csv_module.writer(lines, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([getattr(stage, name) for name in names] for stage in profile.stages)
    return Text(lines.getvalue().rstrip("\n"), no_wrap=True, overflow="ignore")


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


def _stages(profile: Profile) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("stage")
    table.add_column("share of CPU")
    table.add_column("CPU ms/example", justify="right")
    table.add_column("calls", justify="right")
    table.add_column("alone, ex/s", justify="right")
    if any(stage.location for stage in profile.stages):
        table.add_column("where", overflow="fold")
    small = [stage for stage in profile.stages if _is_small(stage)]
    for stage in profile.stages:
        if stage not in small:
            table.add_row(*_stage_cells(profile, stage))
    if small:
        cpu_ms = sum(stage.cpu_ms_per_example for stage in small)
        share = sum(stage.share_of_cpu for stage in small)
        names = ", ".join(stage.name for stage in small)
        table.add_row(Text(f"({names})", "dim"), _bar(share, ""), f"{cpu_ms:.3g}")
    rest = profile.residual
    cells = (
        Text("(not in a stage)", "dim"),
        _bar(rest.share_of_cpu, ""),
        f"{rest.cpu_ms_per_example:.3g}",
    )
    table.add_row(*cells)
    return table


def _is_small(stage: Stage) -> bool:
    return stage.share_of_cpu < 0.005 and not stage.is_bottleneck and stage.location is None


def _stage_cells(profile: Profile, stage: Stage) -> list[RenderableType]:
    style = "bold red" if stage.is_bottleneck else ""
    mark = " ◀" if stage.is_bottleneck else ""
    alone = stage.examples_per_s_alone
    cells: list[RenderableType] = [
        Text(stage.name + mark, style),
        _bar(stage.share_of_cpu, style),
        f"{stage.cpu_ms_per_example:.3g}",
        f"{stage.calls_in_flight:.1f}/{stage.parallelism or 1}",
        "-" if alone is None else f"{alone:,.0f}",
    ]
    if any(each.location for each in profile.stages):
        cells.append(Text(_short(stage.location)))
    return cells


def _short(location: str | None) -> str:
    return "/".join((location or "").split("/")[-2:])


def _bar(share: float, style: str) -> Text:
    eighths = round(max(0.0, min(1.0, share)) * BAR_WIDTH * 8)
    full, part = divmod(eighths, 8)
    bar = ("█" * full + EIGHTHS[part].strip()).ljust(BAR_WIDTH)
    return Text.assemble((bar, style or "cyan"), f"{share:6.1%}")


def _item(line: str) -> RenderableType:
    return Padding(Text(f"- {line}"), (0, 0, 0, 2))


def _advice(advice: Advice) -> RenderableType:
    gain = ""
    if advice.predicted_examples_per_s is not None:
        gain = f" Predicted: {format_rate(advice.predicted_examples_per_s, 'examples')}"
        if advice.predicted_mxu_idle_fraction is not None:
            gain += f", MXU idle {advice.predicted_mxu_idle_fraction:.0%}"
        gain += "."
    first = Text.assemble((advice.code, "bold"), f": {advice.what}{gain}")
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
