"""`tpuctl run`."""

from typing import Annotated

import typer

from tpuctl.cli import output, workers
from tpuctl.remote.jobs import start_job
from tpuctl.remote.run import plan_command, run_command
from tpuctl.reporters import workers as report

app = typer.Typer(add_completion=False)


@app.command()
def run(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME] -- CMD...", help="Where, and what.")
    ] = None,
    host: workers.Hosts = None,
    worker: workers.Workers = "all",
    env: Annotated[
        list[str] | None, typer.Option("--env", metavar="K=V", help="A variable for the command.")
    ] = None,
    chdir: Annotated[
        str | None, typer.Option("--chdir", metavar="DIR", help="The folder to do it in.")
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Start it as a job that runs on without you.")
    ] = False,
    job: workers.Job = None,
    key: workers.Key = None,
    jump: workers.Jump = None,
) -> None:
    """Run a command on every worker at once, and see all they print in one place."""
    name, argv = workers.split_words(words or [], host)
    command = plan_command(argv, env=env or [], folder=chdir)
    found, access = workers.find(name, host, worker), workers.reach(key, jump)
    if detach or job:
        output.show(start_job(found, command, access, job=job), report.started)
    else:
        output.show(run_command(found, command, access, sink=workers.sink()), report.ends)
