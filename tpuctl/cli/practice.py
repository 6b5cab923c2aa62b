"""`tpuctl demo`, `tpuctl emulator start`, `stop`, `status`."""

from pathlib import Path
from typing import Annotated

import typer

import tpuctl
from tpuctl.cli import output
from tpuctl.cli.options import Option, command, examples
from tpuctl.cli.progress import bars

emulator = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Emulate Google Cloud, Colab and Kaggle on this machine, for free.",
    epilog=examples(
        'eval "$(tpuctl emulator start --detach)"', "tpuctl emulator status", "tpuctl emulator stop"
    ),
)


def demo(
    images: Annotated[
        Path | None,
        Option(metavar="DIR", help="Folder of at least 8 images. Default: 200 generated ones."),
    ] = None,
    out: Annotated[
        Path, Option(metavar="DIR", help="Folder for shards, profiles and the report.")
    ] = Path("tpuctl-demo"),
) -> None:
    """Run everything end to end on this machine, and write a report.

    Examples:
        tpuctl demo
        tpuctl demo --images ~/photos --out demo
    """
    with bars() as on_progress:
        result = tpuctl.demo.run(images, out, log=output.STDERR, on_progress=on_progress)
    output.show(result)


@command(emulator)
def start(
    scenario: Annotated[
        Path | None, Option(metavar="FILE", help="JSON file with zones, capacity and faults.")
    ] = None,
    port: Annotated[
        int,
        Option("--port", metavar="PORT", min=0, max=65535, help="Port of the API; 0 for any."),
    ] = 0,
    detach: Annotated[
        bool, Option("--detach", help="Return when the emulator is running.")
    ] = False,
    fresh: Annotated[
        bool, Option("--fresh", help="Discard the state of the last emulator.")
    ] = False,
    allow_unauthenticated: Annotated[
        bool,
        Option(
            "--allow-unauthenticated",
            help="Require no secret: any user of this machine can then run commands as you.",
        ),
    ] = False,
) -> None:
    """Start the emulator, or resume the last one, and print the variables to export.

    With --detach, an emulator that is already running is used; it must have the same scenario.

    Examples:
        tpuctl emulator start
        eval "$(tpuctl emulator start --detach)"
        tpuctl emulator start --scenario faults.json --fresh
    """
    tpuctl.emulator.start(**locals(), on_started=output.show)


@command(emulator)
def stop() -> None:
    """Stop the emulator; its state is kept for the next start.

    Examples:
        tpuctl emulator stop
    """
    output.show(tpuctl.emulator.stop())


@command(emulator)
def status() -> None:
    """Show whether an emulator is running, and what it holds.

    Examples:
        tpuctl emulator status
        tpuctl emulator status --json
    """
    output.show(tpuctl.emulator.status())
