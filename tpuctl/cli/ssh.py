"""`tpuctl ssh`."""

from typing import Annotated

import typer

from tpuctl.cli import output, workers
from tpuctl.cli.options import Project, Zone
from tpuctl.remote.ssh import open_shell, plan_shell
from tpuctl.reporters import workers as report

app = typer.Typer(add_completion=False)


@app.command()
def ssh(
    name: workers.Name = None,
    host: workers.Hosts = None,
    worker: Annotated[str, typer.Option("--worker", metavar="N", help="Which worker.")] = "0",
    key: workers.Key = None,
    jump: workers.Jump = None,
    zone: Zone = None,
    project: Project = None,
    internal_ip: workers.InternalIp = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the command only.")] = False,
) -> None:
    """Open a shell on one worker with the system's ssh."""
    where = workers.Where(name, host, worker, key, jump, zone, project, internal_ip)
    shell = plan_shell(*where.reach())
    if dry_run or output.as_json():
        output.show(shell, report.shell)
    else:
        open_shell(shell)
