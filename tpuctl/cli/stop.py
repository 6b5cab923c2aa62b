"""`tpuctl stop`."""

from typing import Annotated

import typer

from tpuctl.cli import output, workers
from tpuctl.cli.options import Project, Zone
from tpuctl.remote.jobs import STOP_GRACE_S, stop_job
from tpuctl.reporters import workers as report
from tpuctl.units import parse_duration_s

app = typer.Typer(add_completion=False)


@app.command()
def stop(
    name: workers.Name = None,
    host: workers.Hosts = None,
    worker: workers.Workers = "all",
    job: workers.Job = None,
    grace: Annotated[
        str, typer.Option("--grace", metavar="TIME", help="How long before it is killed.")
    ] = f"{STOP_GRACE_S:g}s",
    key: workers.Key = None,
    jump: workers.Jump = None,
    zone: Zone = None,
    project: Project = None,
    internal_ip: workers.InternalIp = False,
) -> None:
    """End a detached job with every process it has started, on every worker."""
    where = workers.Where(name, host, worker, key, jump, zone, project, internal_ip)
    found, access = where.reach()
    output.show(stop_job(found, access, job=job, grace_s=parse_duration_s(grace)), report.stopped)
