"""The emulator's commands as text, and the demo's report as text and HTML."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.reporters import envelope, html, layout, training
from tpuctl.reporters.display import sheet_of
from tpuctl.reporters.profile_html import advice_steps, stages, time_chart, what_was_measured
from tpuctl.storage.local import write_atomically
from tpuctl.units import format_bytes, format_duration, format_fraction, format_rate

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import RenderableType

    from tpuctl.demo.demo import DemoResult
    from tpuctl.emulator.process import Started, Status, Stopped
    from tpuctl.profiling.models import Profile
    from tpuctl.training.run import Training


def render_emulator_started(result: Started) -> str:
    """Write the lines to export; the rest are shell comments, so that all of it can be pasted."""
    verb = "resumed" if result.resumed else "started"
    verb = "is running already" if result.was_running else verb
    scale = f"{result.time_scale:g} emulated seconds per real second"
    head = f"# Cloud TPU emulator {verb}: process {result.pid}, {scale}."
    return "\n".join([head, *_exports(result.exports)])


def render_emulator_stopped(result: Stopped) -> str:
    """Say what was stopped."""
    if not result.was_running:
        return "No emulator was running."
    return f"Stopped the emulator (process {result.pid}). Its state is kept."


def render_emulator_status(result: Status) -> RenderableType:
    """Show where the emulator is reached and what it holds."""
    if not result.running:
        kept = " The state of the last one is kept." if result.kept else ""
        return f"No emulator is running.{kept} To start one: tpuctl emulator start --detach"
    rows = (
        ("process", str(result.pid)),
        ("API", str(result.endpoint)),
        ("HTTP", str(result.http)),
        ("emulated time", f"{result.time} (times {result.time_scale:g})"),
        ("scenario", result.scenario or "none: every known zone and type"),
        ("requests", str(result.requests)),
        ("nodes", _by_state(result.nodes)),
        ("queued resources", _by_state(result.queued_resources)),
    )
    return layout.stack(
        layout.facts(rows, style=""), *map(layout.command, _exports(result.exports))
    )


def _by_state(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in sorted(counts.items())) or "none"


def _exports(variables: dict[str, str]) -> list[str]:
    return [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]


def render_demo(result: DemoResult) -> RenderableType:
    """Show the finding in one line, the table that proves it, and where to read on."""
    table = layout.table("", "images", "shards", right=("images", "shards"))
    for row in _before_and_after(result):
        table.add_row(*row)
    lines = result.launch.last_words
    if result.launch.result is not None:
        figures = training.training_figures(result.launch)
        lines = tuple(f"training: {name}: {value}" for name, value in figures)
    return layout.stack(
        layout.text(_finding(result), "bold"),
        layout.text(f"device: {result.device_step_source}\n", "dim"),
        table,
        layout.text(f"\npresized: {_presized(result)}"),
        layout.text("\n".join(lines)),
        layout.text(f"\ntook {format_duration(result.seconds)}"),
        layout.text(f"report: {result.report_html}\n"),
        layout.text(f"Next, on your data: {result.next_command}", "bold"),
    )


def write_demo(result: DemoResult) -> None:
    """Write `report.html` and `report.json`; raises WriteError."""
    write_atomically(Path(result.report_json), envelope.success("demo", result) + "\n")
    write_atomically(Path(result.report_html), demo_page(result))


def demo_page(result: DemoResult) -> str:
    """Write everything that the demo found as one HTML page."""
    before, after, done = result.before, result.after, result.verify
    verified = f"{done.records} records in {done.shards} shards, {len(done.damage)} damaged"
    profiles = {"images, decoded every epoch": before, "shards, presized once": after}
    return html.report(
        "demo",
        _finding(result),
        f"{what_was_measured(before)}. Took {format_duration(result.seconds)}.",
        charts=[time_chart(profiles)],
        evidence=[
            html.table(("", "images", "shards"), _before_and_after(result)),
            html.bullets(
                (
                    f"Presized: {_presized(result)}.",
                    f"Verified: {verified}.",
                    f"Device: {result.device_step_source}",
                )
            ),
            loss_chart(result.launch),
        ],
        to_do=[
            html.steps([("Next, on your data.", result.next_command)]),
            *(
                [html.paragraph("Then, for the shards:"), advice_steps(after)]
                if after.advice
                else []
            ),
        ],
        details=[
            ("This machine", "".join(_machine(result))),
            ("Images, decoded every epoch", _profile(before)),
            ("Shards, presized once", _profile(after)),
            ("The data set", sheet_of(result.show)),
            (
                "Left out",
                html.bullets(f"{bad.path}: {bad.reason}" for bad in result.presize.quarantined),
            ),
            ("Training", "".join(_training(result))),
            ("Warnings", html.bullets(result.warnings)),
        ],
    )


def _finding(result: DemoResult) -> str:
    before, after = result.before, result.after
    faster = next(row.ratio for row in result.diff.rows if row.name == "examples/s")
    times = "unknown" if faster is None else f"{faster:.3g}"
    return (
        f"After presizing, the MXU would be idle {format_fraction(after.mxu_idle_fraction)} of the "
        f"time instead of {format_fraction(before.mxu_idle_fraction)}: input {times} times as fast."
    )


def _presized(result: DemoResult) -> str:
    done = result.presize
    bad = f", {len(done.quarantined)} quarantined" if done.quarantined else ""
    return (
        f"{done.images} images ({format_bytes(done.bytes_in)}) to {done.shards} shards "
        f"({format_bytes(done.bytes_out)}) at {format_rate(done.images_per_s, 'images')}{bad}"
    )


_ROWS: tuple[tuple[str, Callable[[Profile], str]], ...] = (
    ("MXU would be idle", lambda p: format_fraction(p.mxu_idle_fraction)),
    ("examples/s, input", lambda p: f"{_input_rate(p):,.0f}"),
    ("examples/s, device", lambda p: _number(p.device_examples_per_s, 0)),
    ("CPU ms per example", lambda p: f"{p.cpu_ms_per_example:.3g}"),
    ("vCPUs to saturate", lambda p: _number(p.vcpus.needed_to_saturate, 1)),
    ("verdict", lambda p: p.verdict),
)


def _input_rate(profile: Profile) -> float:
    """The rate without a device, or the one that it was fed with: another second may be quieter."""
    fed = (profile.device_examples_per_s or 0.0) * (1 - (profile.mxu_idle_fraction or 0.0))
    return max(profile.pipeline_examples_per_s or 0.0, fed)


def _before_and_after(result: DemoResult) -> list[tuple[str, str, str]]:
    return [(name, value(result.before), value(result.after)) for name, value in _ROWS]


def _machine(result: DemoResult) -> list[str]:
    doctor = result.doctor
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


def _profile(profile: Profile) -> str:
    return html.paragraph(profile.headline) + html.bullets(profile.evidence) + stages(profile)


def _training(result: DemoResult) -> list[str]:
    command = html.code(result.launch.in_shell())
    because = html.bullets(result.launch.because)
    if result.launch.result is None:
        failed = " ".join(str(failure) for failure in result.launch.failures)
        return [
            html.paragraph(failed),
            html.code("\n".join(result.launch.last_words)),
            because,
            command,
        ]
    return [html.table(("", ""), training.training_figures(result.launch)), because, command]


def loss_chart(training: Training) -> str:
    """Draw the loss of each epoch, if the training reported it."""
    epochs = (training.result or {}).get("epochs")
    known = [each for each in epochs if "loss" in each] if isinstance(epochs, list) else []
    labels = [f"epoch {each['epoch']}" for each in known]
    losses = {"loss": [each["loss"] for each in known]}
    note = "of the training, by epoch."
    return html.chart("Loss", labels, losses, unit="loss", note=note, line=True) if known else ""


def _number(value: float | None, digits: int) -> str:
    return "unknown" if value is None else f"{value:,.{digits}f}"
