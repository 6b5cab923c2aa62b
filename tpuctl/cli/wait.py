"""`tpuctl wait`."""

from typing import Annotated, Literal

import typer

from tpuctl.cli import output
from tpuctl.cli.opening import opened
from tpuctl.cli.options import Name, Project, Timeout, Zone
from tpuctl.cli.progress import bars
from tpuctl.cloud.opening import chosen_zone
from tpuctl.cloud.waiting import wait_until_gone, wait_until_ready
from tpuctl.reporters import tpus as report
from tpuctl.units import parse_duration_s

app = typer.Typer(add_completion=False)

Until = Annotated[
    Literal["ready", "gone"], typer.Option("--for", help="What to wait for: ready, or gone.")
]


@app.command()
def wait(
    name: Name,
    until: Until = "ready",
    timeout: Timeout = None,
    zone: Zone = None,
    project: Project = None,
) -> None:
    """Wait until a TPU is ready on all of its workers, or until it is gone."""
    timeout_s = parse_duration_s(timeout) if timeout else None
    wait_until = wait_until_ready if until == "ready" else wait_until_gone
    where, api = chosen_zone(zone), opened(project).api
    with bars() as on_progress:
        result = wait_until(api, name, zone=where, timeout_s=timeout_s, on_progress=on_progress)
    output.show(result, report.waited)
