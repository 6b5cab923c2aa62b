"""`tpuctl list`."""

from typing import Annotated

import typer

from tpuctl.cli import output
from tpuctl.cli.opening import opened
from tpuctl.cli.options import Project, Zone
from tpuctl.cloud.connect import chosen_zone
from tpuctl.cloud.list import list_tpus
from tpuctl.reporters import tpus as report

app = typer.Typer(add_completion=False)


@app.command("list")
def list_command(
    zone: Zone = None,
    all_zones: Annotated[
        bool, typer.Option("--all-zones", help="Every zone, although one is set.")
    ] = False,
    project: Project = None,
) -> None:
    """List your TPUs in every zone: state, age, time left, and what they cost."""
    where = chosen_zone(zone, all_zones=all_zones)
    output.show(list_tpus(opened(project).api, zone=where), report.listing)
