"""`tpuctl ssh`."""

from typing import Annotated

import typer

from tpuctl.cli import output, workers
from tpuctl.remote.shell import open_shell, plan_shell
from tpuctl.reporters import workers as report

app = typer.Typer(add_completion=False)


@app.command()
def ssh(
    name: workers.Name = None,
    host: workers.Hosts = None,
    worker: Annotated[str, typer.Option("--worker", metavar="N", help="Which worker.")] = "0",
    key: workers.Key = None,
    jump: workers.Jump = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the command only.")] = False,
) -> None:
    """Open a shell on one worker with the system's ssh."""
    shell = plan_shell(workers.find(name, host, worker), workers.reach(key, jump))
    if dry_run or output.as_json():
        output.show(shell, report.shell)
    else:
        open_shell(shell)
