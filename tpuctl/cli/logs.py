"""`tpuctl logs`."""

from typing import Annotated

import typer

from tpuctl.cli import output, workers
from tpuctl.cli.options import Project, Zone
from tpuctl.remote.jobs import list_jobs
from tpuctl.remote.logs import read_logs
from tpuctl.reporters import workers as report

app = typer.Typer(add_completion=False)


@app.command()
def logs(
    name: workers.Name = None,
    host: workers.Hosts = None,
    worker: workers.Workers = "all",
    job: workers.Job = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Until the job ends, with its exit code.")
    ] = False,
    tail: Annotated[
        int | None, typer.Option("--tail", min=0, help="Only the last N lines of each worker.")
    ] = None,
    all_jobs: Annotated[bool, typer.Option("--list", help="List the jobs instead.")] = False,
    key: workers.Key = None,
    jump: workers.Jump = None,
    zone: Zone = None,
    project: Project = None,
    internal_ip: workers.InternalIp = False,
) -> None:
    """Show what a detached job prints on every worker; follow it across lost connections."""
    where = workers.Where(name, host, worker, key, jump, zone, project, internal_ip)
    found, access = where.reach()
    if all_jobs:
        output.show(list_jobs(found, access), report.jobs)
        return
    result = read_logs(
        found, access, sink=workers.sink(), note=output.note, job=job, follow=follow, tail=tail
    )
    output.show(result, report.ends)
