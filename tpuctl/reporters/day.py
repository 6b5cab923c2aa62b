"""The whole day as text, as one HTML file and as JSON."""

import base64
from collections.abc import Iterable
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tpuctl.demo.demo import Day
from tpuctl.profiling import Profile, diff
from tpuctl.reporters import envelope, html, launch
from tpuctl.storage.local import write_atomically
from tpuctl.units import format_bytes, format_duration, format_fraction, format_rate

Row = tuple[str, str, str]


def text(day: Day) -> RenderableType:
    """The finding in one line, the table that proves it, and where to read on."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("", "photographs", "shards"):
        table.add_column(column, justify="left" if not column else "right")
    for row in comparison_rows(day):
        table.add_row(*row)
    training = [Text(line, style="dim") for line in day.launch.last_words]
    if day.launch.result is not None:
        figures = launch.figures(day.launch)
        training = [Text(f"training: {name}: {value}") for name, value in figures]
    return Group(
        Text(headline(day), style="bold"),
        Text(f"device: {day.device_step_source}\n", style="dim"),
        table,
        Text(f"\npresized: {presize_sentence(day)}"),
        *training,
        Text(f"\nthe whole day: {format_duration(day.seconds)}"),
        Text(f"report: {day.report_html}"),
    )


def write(day: Day) -> None:
    """Write `report.html` and `report.json`; raises WriteError."""
    write_atomically(Path(day.report_json), envelope.success("demo", day) + "\n")
    write_atomically(Path(day.report_html), render_html(day, _read_base64(Path(day.sheet))))


def headline(day: Day) -> str:
    """The finding, in one sentence."""
    before, after = day.before, day.after
    faster = next(row.ratio for row in diff(before, after).rows if row.name == "examples/s")
    times = "unknown" if faster is None else f"{faster:.3g}"
    return (
        f"Presizing once takes the MXU from {format_fraction(before.mxu_idle_fraction)} idle to "
        f"{format_fraction(after.mxu_idle_fraction)} idle: input {times} times as fast."
    )


def presize_sentence(day: Day) -> str:
    """What presizing did, in one sentence."""
    done = day.presize
    bad = f", {len(done.quarantined)} quarantined" if done.quarantined else ""
    return (
        f"{done.images} photographs ({format_bytes(done.bytes_in)}) to {done.shards} shards "
        f"({format_bytes(done.bytes_out)}) at {format_rate(done.images_per_s, 'images')}{bad}"
    )


def comparison_rows(day: Day) -> list[Row]:
    """Before and after, the figures a user cares about."""
    pair = (day.before, day.after)

    def row(name: str, values: Iterable[str]) -> Row:
        before, after = values
        return name, before, after

    return [
        row("MXU idle", (format_fraction(p.mxu_idle_fraction) for p in pair)),
        row("input wait", (format_fraction(p.input_wait_fraction) for p in pair)),
        row("examples/s, input", (f"{p.pipeline_examples_per_s:,.0f}" for p in pair)),
        row("examples/s, device", (_number(p.device_examples_per_s, 0) for p in pair)),
        row("CPU ms per example", (f"{p.cpu_ms_per_example:.3g}" for p in pair)),
        row("vCPUs to saturate", (_number(p.vcpus.needed_to_saturate, 1) for p in pair)),
        row("verdict", (p.verdict for p in pair)),
    ]


def render_html(day: Day, sheet_base64: str) -> str:
    """One self-contained page with everything the day found."""
    return html.page(
        "tpuctl demo",
        html.title(headline(day)),
        html.paragraph(f"Device: {day.device_step_source}", css="soft"),
        html.figures(_figures(day)),
        html.section("This machine", *_machine(day)),
        html.section(
            "Before and after", html.table(("", "photographs", "shards"), comparison_rows(day))
        ),
        _profile("Photographs, decoded every epoch", day.before),
        _profile("Shards, presized once", day.after),
        html.section(
            "The data set",
            html.paragraph(f"{presize_sentence(day)}."),
            html.paragraph(
                f"Verified: {day.verify.records} records in {day.verify.shards} shards, "
                f"{len(day.verify.damage)} damaged."
            ),
            html.bullets(f"{bad.path}: {bad.reason}" for bad in day.presize.quarantined),
            html.image(sheet_base64, "A contact sheet of the data set"),
        ),
        html.section("Training", *_training(day)),
        html.section("Remarks", html.bullets(day.warnings)) if day.warnings else "",
    )


def _figures(day: Day) -> list[tuple[str, str]]:
    before, after = day.before, day.after
    return [
        ("MXU idle before", format_fraction(before.mxu_idle_fraction)),
        ("MXU idle after", format_fraction(after.mxu_idle_fraction)),
        ("input wait before", format_fraction(before.input_wait_fraction)),
        ("input wait after", format_fraction(after.input_wait_fraction)),
        ("the whole day", format_duration(day.seconds)),
    ]


def _machine(day: Day) -> list[str]:
    doctor = day.doctor
    rows = [
        ("runtime", doctor.runtime),
        ("accelerator", f"{doctor.accelerator} {doctor.generation or ''}".strip()),
        ("vCPUs", str(doctor.host.vcpus)),
        ("memory", format_bytes(doctor.host.memory_bytes or 0)),
        ("recommended", f"{doctor.recommended.framework}, {doctor.recommended.strategy}"),
    ]
    problems = (f"{p.code} {p.summary} {p.fix}" for p in doctor.problems)
    return [
        html.table(("", ""), rows),
        html.bullets(problems),
        html.code(doctor.recommended.snippet),
    ]


def _profile(heading: str, profile: Profile) -> str:
    stages = (
        (stage.name, stage.share_of_cpu, f"{stage.cpu_ms_per_example:.3g} ms", stage.is_bottleneck)
        for stage in profile.stages
    )
    return html.section(
        heading,
        html.paragraph(profile.headline, css="verdict"),
        html.bars(stages),
        html.paragraph("CPU time per example and stage.", css="soft"),
        html.bullets(profile.evidence),
        *(html.advice(advice.what, advice.change) for advice in profile.advice),
    )


def _training(day: Day) -> list[str]:
    command = html.code(launch.command_line(day.launch))
    because = html.bullets(day.launch.because)
    if day.launch.result is None:
        failed = " ".join(str(failure) for failure in day.launch.failures)
        return [
            html.paragraph(failed),
            html.code("\n".join(day.launch.last_words)),
            because,
            command,
        ]
    return [html.table(("", ""), launch.figures(day.launch)), because, command]


def _number(value: float | None, digits: int) -> str:
    return "unknown" if value is None else f"{value:,.{digits}f}"


def _read_base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
