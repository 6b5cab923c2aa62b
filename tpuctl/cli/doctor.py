"""`tpuctl doctor`."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from tpuctl.cli import output
from tpuctl.diagnosis.diagnose import examine
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


Deep = Annotated[bool, typer.Option("--deep", help="Use the accelerator once, in a child process.")]
Numerics = Annotated[
    bool, typer.Option("--numerics", help="Measure its arithmetic against float64.")
]
Fix = Annotated[bool, typer.Option("--fix", help="Mend what is safe to mend; asks before.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


@app.command()
def doctor(
    deep: Deep = False,
    numerics: Numerics = False,
    fix: Fix = False,
    yes: Yes = False,
    record: Record = None,
    replay: Replay = None,
) -> None:
    """Say where you are, what accelerator is here, what is wrong and what mends it."""
    approve = partial(_approve, yes=yes) if fix else None
    diagnosis = examine(record=record, replay=replay, deep=deep, numerics=numerics, approve=approve)
    output.show(diagnosis, report.text)


def _approve(question: str, *, yes: bool) -> None:
    """Show a repair before it happens, and ask unless `--yes` has answered."""
    if yes:
        output.note(question)
    output.confirm(question, yes=yes)
