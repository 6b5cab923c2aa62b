"""`tpuctl quota`."""

from typing import Annotated

import typer

from tpuctl.cli import output
from tpuctl.cli.opening import opened
from tpuctl.cli.options import Project
from tpuctl.cloud.quotas import read_quotas
from tpuctl.reporters import quota as report

app = typer.Typer(add_completion=False)

Type = Annotated[
    str | None, typer.Argument(metavar="[TYPE]", help="A type such as v5e-8: where does it fit?")
]


@app.command()
def quota(accelerator_type: Type = None, project: Project = None) -> None:
    """Tell how many chips of which generation your project may have, zone by zone."""
    output.show(read_quotas(opened(project).api, accelerator_type), report.text)
