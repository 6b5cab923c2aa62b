"""`tpuctl profile run`, `watch`, `trace`, `show`, `diff`."""

from pathlib import Path
from typing import Annotated

import typer

from tpuctl.cli import output, progress
from tpuctl.profiling.compare import check, parse_limits
from tpuctl.profiling.compare import diff as compare
from tpuctl.profiling.models import Profile
from tpuctl.profiling.profile import profile_target
from tpuctl.profiling.program.run import (
    follow,
    is_program,
    last_of,
    profile_program,
    refuse_for_programs,
)
from tpuctl.profiling.tpuprof import check_place, load, save
from tpuctl.profiling.trace.profile import profile_trace
from tpuctl.reporters import profile as report
from tpuctl.reporters import profile_html, profile_live, profile_png
from tpuctl.storage.local import write_atomically

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Find the stage of an input pipeline that keeps the device waiting.",
)


Words = Annotated[
    list[str],
    typer.Argument(
        metavar="TARGET | -- CMD...",
        help="A folder of photographs or shards, gs://BUCKET/FOLDER of shards, module:function, "
        "path.py:function, or a program.",
    ),
]
HtmlPath = Annotated[Path | None, typer.Option(help="Write the report here as one HTML file.")]
PngPath = Annotated[Path | None, typer.Option(help="Draw it here as a PNG.")]
OutPath = Annotated[Path | None, typer.Option(help="Write the profile here (.tpuprof).")]
TracePath = Annotated[
    Path,
    typer.Argument(help="An .xplane.pb of TPU, GPU or CPU, or the log folder it was written to."),
]
FailIf = Annotated[
    list[str] | None,
    typer.Option(help="Exit with 1 where this holds, for CI: 'stall>0.1'. May be repeated."),
]
ProfilePath = Annotated[Path, typer.Argument(help="A file that profile run --out wrote.")]


@app.command()
def run(
    target: Words,
    steps: int | None = typer.Option(None, min=1, help="Steps to measure."),
    seconds: float | None = typer.Option(
        None, min=0.5, help="How long to measure (10); bounds the wait for a batch too."
    ),
    batch_size: int = typer.Option(32, min=1, help="Examples per step."),
    image_size: int = typer.Option(224, min=1, help="Width and height after the resize."),
    device_step_ms: float | None = typer.Option(None, help="How long the device takes per step."),
    train: bool = typer.Option(False, "--train", help="Measure a real training step first."),
    fit: str | None = typer.Option(None, help="Compile the step for a TPU such as v5e-8."),
    model: str = typer.Option("images", help="What --fit compiles: a target of tpuctl fit."),
    verify: bool = typer.Option(
        False, "--verify", help="Try the advice: with and without it, in turns."
    ),
    deep: bool = typer.Option(
        False, "--deep", help="Trace the operations too, within 5 % of the vCPUs."
    ),
    out: OutPath = None,
    html: HtmlPath = None,
    fail_if: FailIf = None,
) -> None:
    """Measure an input pipeline, or a training as it runs: `tpuctl profile run -- CMD`."""
    _check_places(out, html)
    limits = parse_limits(fail_if)
    if is_program(target):
        refuse_for_programs(
            {
                "--device-step-ms": device_step_ms,
                "--fit": fit,
                "--train": train or None,
                "--verify": verify or None,
                "--deep": deep or None,
            }
        )
        profile = profile_program(target, steps=steps, seconds=seconds)
        _write(profile, out, html)
        output.show(check(profile, limits), report.text)
        return
    with progress.bars() as on_progress:
        profile = profile_target(
            target[0],
            steps=steps,
            seconds=seconds,
            batch_size=batch_size,
            image_size=image_size,
            device_step_ms=device_step_ms,
            train=train,
            fit=fit,
            model=model,
            verify=verify,
            deep=deep,
            on_progress=on_progress,
        )
    _write(profile, out, html)
    output.show(check(profile, limits), report.text)


@app.command()
def watch(
    words: Annotated[
        list[str],
        typer.Argument(metavar="PID | -- CMD...", help="A program that is profiled, or to start."),
    ],
    seconds: float | None = typer.Option(None, min=0.5, help="End the program after so long."),
    out: OutPath = None,
) -> None:
    """Show a training once a second as it runs: its steps, what it waits for, and why."""
    _check_places(out)
    rows = profile_live.Rows()

    def look(profile: Profile) -> None:
        output.note(rows.next(profile))

    if len(words) == 1 and words[0].isdigit():
        profile = last_of(follow(int(words[0])), look)
    else:
        profile = profile_program(words, seconds=seconds, on_look=look)
    _write(profile, out, None)
    output.show(profile, report.text)


@app.command()
def trace(
    path: TracePath,
    out: OutPath = None,
    html: HtmlPath = None,
    fail_if: FailIf = None,
) -> None:
    """Read a profiler's trace: when the devices were idle, and what the host did meanwhile."""
    _check_places(out, html)
    limits = parse_limits(fail_if)
    with progress.bars() as on_progress:
        profile = profile_trace(path, on_progress=on_progress)
    _write(profile, out, html)
    output.show(check(profile, limits), report.text)


@app.command()
def show(
    file: ProfilePath,
    html: HtmlPath = None,
    png: PngPath = None,
    csv: bool = typer.Option(
        False, "--csv", help="Print the stages, or a trace's idle time, as CSV."
    ),
    fail_if: FailIf = None,
) -> None:
    """Show a profile again."""
    _check_places(html, png)
    profile = check(load(file), parse_limits(fail_if))
    _write(profile, None, html)
    if png:
        write_atomically(png, profile_png.picture(profile))
        output.note(f"Picture written to {png}")
    output.show(profile, report.csv if csv else report.text)


@app.command()
def diff(before: ProfilePath, after: ProfilePath) -> None:
    """Compare two profiles: what a change brought."""
    output.show(compare(load(before), load(after)), report.comparison)


def _check_places(*places: Path | None) -> None:
    """Fail before the measurement, not after it, where a result cannot be written."""
    for place in filter(None, places):
        check_place(place)


def _write(profile: Profile, out: Path | None, html: Path | None) -> None:
    if out:
        save(profile, out)
        output.note(f"Profile written to {out}; see it again: tpuctl profile show {out}")
    if html:
        write_atomically(html, profile_html.page(profile))
        output.note(f"Report written to {html}")
