"""`tpuctl emulator start | stop | status`."""

from pathlib import Path
from typing import Annotated

import typer

from tpuctl.cli import output
from tpuctl.emulator import process
from tpuctl.reporters import emulator as report
from tpuctl.settings import state_dir

ScenarioFile = Annotated[
    Path | None, typer.Option("--scenario", help="A JSON file: zones, capacity, what goes wrong.")
]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port of the API; 0 is any.")]
Detach = Annotated[bool, typer.Option("--detach", help="Come back once it answers.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Forget what the last emulator held.")]

app = typer.Typer(add_completion=False, no_args_is_help=True)


@app.callback()
def emulator() -> None:
    """Practise on a Cloud TPU service of your own: real API, no TPU, no bill."""


@app.command()
def start(
    scenario: ScenarioFile = None, port: Port = 0, detach: Detach = False, fresh: Fresh = False
) -> None:
    """Start an emulator, or go on with the last one; prints what to export."""
    folder = state_dir() / "emulator"
    if detach:
        output.show(process.detach(folder, scenario, port=port, fresh=fresh), report.started)
        return
    run = process.run(folder, scenario, port=port, fresh=fresh)
    with process.stop_requested() as requested, run as started:
        output.show(started, report.started)
        requested.wait()


@app.command()
def stop() -> None:
    """Stop the emulator; what it holds is kept for the next start."""
    output.show(process.stop(state_dir() / "emulator"), report.stopped)


@app.command()
def status() -> None:
    """Say whether an emulator runs, what time it is there and what it holds."""
    output.show(process.status(state_dir() / "emulator"), report.status)
