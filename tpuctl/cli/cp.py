"""`tpuctl cp`."""

from typing import Annotated

import typer

from tpuctl.cli import output, workers
from tpuctl.cli.progress import bars
from tpuctl.remote.copies import plan_copy
from tpuctl.remote.copy import copy
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
) -> None:
    """Copy a folder or a file to every worker, or from them; only what has changed is sent."""
    plan = plan_copy(source, target, has_hosts=host is not None)
    found = workers.find(plan.name, host, worker)
    with bars() as on_progress:
        result = copy(found, workers.reach(key, jump), plan, on_progress=on_progress)
    output.show(result, report.copied)
