"""`tpuctl profile run`, `watch`, `trace`, `show`, `diff`."""

from pathlib import Path
from typing import Annotated

import typer

import tpuctl
from tpuctl.cli import output
from tpuctl.cli.options import Argument, Option, Yes, command, examples, positive_option
from tpuctl.cli.progress import bars
from tpuctl.errors import refuse_unused
from tpuctl.profiling.case import IN_TRAINING
from tpuctl.reporters import profile as report
from tpuctl.reporters.training import launch_question

profile = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Find out why the device waits for input, and how to fix it.",
    epilog=examples(
        "tpuctl profile run photos --device-step-ms 60 --seconds 3",
        "tpuctl profile run --out after.tpuprof -- python train.py",
        "tpuctl profile diff before.tpuprof after.tpuprof",
    ),
)

Target = Annotated[
    list[str],
    Argument(
        metavar="TARGET | -- CMD...",
        help="A folder of images or shards, gs://BUCKET/FOLDER of shards, path.py:function, "
        "module:function; or a program after --.",
    ),
]
Seconds = Annotated[
    float | None, positive_option("S", "Seconds to measure, from 0.5. Default: 10.", least=0.5)
]
HtmlPath = Annotated[
    Path | None, Option(metavar="FILE", help="Write the report to this HTML file.")
]
OutPath = Annotated[
    Path | None, Option(metavar="FILE", help="Write the profile to this .tpuprof file.")
]
FailIf = Annotated[
    list[str] | None,
    Option(
        metavar="LIMIT", help="Exit with 1 if this holds, such as 'stall>0.1'. Can be repeated."
    ),
]
ProfilePath = Annotated[Path, Argument(help="A .tpuprof file.")]


@command(profile)
def run(
    target: Target,
    steps: Annotated[int | None, Option(metavar="N", min=1, help="Steps to measure.")] = None,
    seconds: Seconds = None,
    batch_size: Annotated[
        int | None,
        Option(metavar="N", min=1, help="Examples per step. Default: the function's own, else 32."),
    ] = None,
    image_size: Annotated[
        int | None,
        Option(metavar="PIXELS", min=1, help="Size of images after the resize. Default: 224."),
    ] = None,
    device_step_ms: Annotated[
        float | None, positive_option("MS", "Device time per step in milliseconds.")
    ] = None,
    train: Annotated[
        bool, Option("--train", help="Measure the time of a real training step.")
    ] = False,
    fit: Annotated[
        str | None,
        Option(metavar="TYPE", help="Compile the step for an accelerator type such as v5e-8."),
    ] = None,
    model: Annotated[
        str | None,
        Option(
            metavar="TARGET", help="What --fit compiles: a target of tpuctl fit. Default: images."
        ),
    ] = None,
    verify: Annotated[
        bool, Option("--verify", help="Measure with and without each piece of advice.")
    ] = False,
    deep: Annotated[
        bool, Option("--deep", help="Also trace operations in each stage; costs up to 5 %.")
    ] = False,
    on: Annotated[
        str | None,
        Option(metavar="NAME|kaggle|colab", help="Run the program there, and fetch its profile."),
    ] = None,
    yes: Yes = False,
    out: OutPath = None,
    html: HtmlPath = None,
    fail_if: FailIf = None,
) -> None:
    """Measure an input pipeline, or a training while it runs.

    Examples:
        tpuctl profile run photos --device-step-ms 60 --seconds 3
        tpuctl profile run pipeline.py:make_dataset --seconds 3 --out before.tpuprof
        tpuctl profile run --steps 100 -- python train.py
        tpuctl profile run --on kaggle -- python train.py
    """
    options = {**locals(), "fail_if": fail_if or ()}
    del options["yes"]
    with bars() as on_progress:
        result = tpuctl.profile.run(
            **options,
            confirm=lambda plan: output.confirm(launch_question(plan), yes=yes),
            log=output.script_log(),
            on_progress=on_progress,
        )
    ran = result.device is not None and result.device.source == IN_TRAINING
    output.show(result, err=ran)


@command(profile)
def watch(
    words: Annotated[list[str], Argument(metavar="-- CMD...", help="Program to start.")],
    seconds: Annotated[
        float | None, positive_option("S", "Stop the program after S seconds.")
    ] = None,
    out: OutPath = None,
) -> None:
    """Watch a training while it runs: its steps, what it waits for, and why.

    Examples:
        tpuctl profile watch -- python train.py
        tpuctl profile watch --seconds 60 -- python train.py
    """
    titles = iter([report.live_header()])
    result = tpuctl.profile.watch(
        words,
        seconds=seconds,
        log=output.script_log(),
        out=out,
        on_profile=lambda seen: output.note("\n".join([*titles, report.live_row(seen)])),
        on_progress=output.note_message,
    )
    output.show(result, err=True)


@command(profile)
def trace(
    path: Annotated[Path, Argument(help="An .xplane.pb file, or the log folder that holds one.")],
    out: OutPath = None,
    html: HtmlPath = None,
    fail_if: FailIf = None,
) -> None:
    """Read a profiler's trace: when devices were idle, and what the host did meanwhile.

    Examples:
        tpuctl profile trace logs/
        tpuctl profile trace logs/ --html trace.html --fail-if "idle>20%"
    """
    with bars() as on_progress:
        result = tpuctl.profile.trace(
            path, out=out, html=html, fail_if=fail_if or (), on_progress=on_progress
        )
    output.show(result)


@command(profile)
def show(
    file: ProfilePath,
    html: HtmlPath = None,
    png: Annotated[
        Path | None, Option(metavar="FILE", help="Draw the profile to this PNG file.")
    ] = None,
    csv: Annotated[
        bool, Option("--csv", help="Print the stages, or a trace's idle time, as CSV.")
    ] = False,
    fail_if: FailIf = None,
) -> None:
    """Show a saved profile.

    Examples:
        tpuctl profile show before.tpuprof
        tpuctl profile show before.tpuprof --html report.html --png report.png
    """
    refuse_unused({"--csv": csv and output.as_json()}, "with --json")
    result = tpuctl.profile.show(
        file, html=html, png=png, fail_if=fail_if or (), on_progress=output.note_message
    )
    output.show(result, report.profile_csv if csv else None)


@command(profile)
def diff(before: ProfilePath, after: ProfilePath) -> None:
    """Compare two profiles.

    Examples:
        tpuctl profile diff before.tpuprof after.tpuprof
        tpuctl profile diff before.tpuprof after.tpuprof --json
    """
    output.show(tpuctl.profile.diff(before, after))
