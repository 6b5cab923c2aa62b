"""`tpuctl types`."""

from typing import Annotated

import typer

from tpuctl.cli import output
from tpuctl.hardware.types import all_types, describe
from tpuctl.reporters import types as report

app = typer.Typer(add_completion=False)

Name = Annotated[
    str | None, typer.Argument(metavar="[TYPE]", help="A type such as v5e-8, v4-32 or tpu7x-8.")
]


@app.command()
def types(name: Name = None) -> None:
    """Explain accelerator types: chips, workers, memory, zones and prices."""
    output.show(describe(name) if name else all_types(), report.text)
