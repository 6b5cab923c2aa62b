"""`tpuctl cp`."""

from typing import Annotated

import typer

from tpuctl.cli import output, workers
from tpuctl.cli.options import Project, Zone
from tpuctl.cli.progress import bars
from tpuctl.remote.copy import copy
from tpuctl.remote.copy_plan import plan_copy
from tpuctl.reporters import workers as report

app = typer.Typer(add_completion=False)


@app.command()
def cp(
    source: Annotated[str, typer.Argument(metavar="SRC", help="NAME:path, or a path here.")],
    target: Annotated[str, typer.Argument(metavar="DST", help="A path here, or NAME:path.")],
    host: workers.Hosts = None,
    worker: workers.Workers = "all",
    key: workers.Key = None,
    jump: workers.Jump = None,
    zone: Zone = None,
    project: Project = None,
    internal_ip: workers.InternalIp = False,
) -> None:
    """Copy a folder or a file to every worker, or from them; only what has changed is sent."""
    plan = plan_copy(source, target, has_hosts=host is not None)
    where = workers.Where(plan.name, host, worker, key, jump, zone, project, internal_ip)
    found, access = where.reach()
    with bars() as on_progress:
        result = copy(found, access, plan, on_progress=on_progress)
    output.show(result, report.copied)
