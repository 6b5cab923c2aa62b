"""`tpuctl wait`."""

from typing import Annotated

import typer

from tpuctl.cli import output
from tpuctl.cli.opening import opened
from tpuctl.cli.options import Name, Project, Timeout, Zone
from tpuctl.cli.progress import states
from tpuctl.cloud.connect import chosen_zone
from tpuctl.cloud.wait import wait_until_gone, wait_until_ready
from tpuctl.errors import UsageError
from tpuctl.reporters import tpus as report
from tpuctl.units import parse_duration_s

app = typer.Typer(add_completion=False)

GOALS = {"ready": wait_until_ready, "gone": wait_until_gone}


@app.command()
def wait(
    name: Name,
    until: Annotated[str, typer.Option("--for", help="ready or gone.")] = "ready",
    timeout: Timeout = None,
    zone: Zone = None,
    project: Project = None,
) -> None:
    """Wait until a TPU is ready on all of its workers, or until it is gone."""
    if until not in GOALS:
        raise UsageError(f"Cannot wait for {until!r}.", hint="--for ready, or --for gone.")
    timeout_s = parse_duration_s(timeout) if timeout else None
    where, api = chosen_zone(zone), opened(project).api
    with states() as on_progress:
        result = GOALS[until](api, name, zone=where, timeout_s=timeout_s, on_progress=on_progress)
    output.show(result, report.waited)
