"""`tpuctl show`."""

import typer

from tpuctl.cli import output
from tpuctl.cli.opening import opened
from tpuctl.cli.options import Name, Project, Zone
from tpuctl.cloud.connect import chosen_zone
from tpuctl.remote.jobs import show_with_jobs
from tpuctl.reporters import tpus as report

app = typer.Typer(add_completion=False)


@app.command()
def show(name: Name, zone: Zone = None, project: Project = None) -> None:
    """Show one TPU: workers and addresses, health, what it costs, how long it may live."""
    output.show(show_with_jobs(opened(project).api, name, zone=chosen_zone(zone)), report.one)
