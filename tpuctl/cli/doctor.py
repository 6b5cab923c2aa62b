"""`tpuctl doctor`."""

from pathlib import Path
from typing import Annotated

import typer

from tpuctl.cli import output
from tpuctl.diagnosis import examine
from tpuctl.reporters import doctor as report

app = typer.Typer(add_completion=False)


Record = Annotated[
    Path | None,
    typer.Option("--record", metavar="FILE", help="Write this machine, scrubbed, to a file."),
]
Replay = Annotated[
    Path | None,
    typer.Option("--replay", metavar="FILE", help="Diagnose a recorded machine instead."),
]


@app.command()
def doctor(record: Record = None, replay: Replay = None) -> None:
    """Say where you are, what accelerator is here, what is wrong and what mends it."""
    output.show(examine(record=record, replay=replay), report.text)
