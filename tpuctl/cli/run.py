"""`tpuctl run`."""

from typing import Annotated

import typer

from tpuctl.cli import output, workers
from tpuctl.cli.options import Project, Zone
from tpuctl.remote.jobs import start_job
from tpuctl.remote.run import plan_command, run_command
from tpuctl.reporters import workers as report
from tpuctl.units import parse_bytes

Words = Annotated[
    list[str] | None, typer.Argument(metavar="[NAME] -- CMD...", help="Where, and what.")
]
Env = Annotated[
    list[str] | None, typer.Option("--env", metavar="K=V", help="A variable for the command.")
]
Chdir = Annotated[
    str | None, typer.Option("--chdir", metavar="DIR", help="The folder to do it in.")
]
Detach = Annotated[
    bool, typer.Option("--detach", help="Start it as a job that runs on without you.")
]
Check = Annotated[
    bool, typer.Option("--check/--no-check", help="Look at every worker before a job.")
]
LogLimit = Annotated[
    str, typer.Option("--log-limit", metavar="SIZE", help="How much log a job keeps; 0 for all.")
]

app = typer.Typer(add_completion=False)


@app.command()
def run(
    words: Words = None,
    host: workers.Hosts = None,
    worker: workers.Workers = "all",
    env: Env = None,
    chdir: Chdir = None,
    detach: Detach = False,
    job: workers.Job = None,
    check: Check = True,
    log_limit: LogLimit = "1GiB",
    key: workers.Key = None,
    jump: workers.Jump = None,
    zone: Zone = None,
    project: Project = None,
    internal_ip: workers.InternalIp = False,
) -> None:
    """Run a command on every worker at once, and see all they print in one place."""
    name, argv = workers.split_words(words or [], host)
    command = plan_command(argv, env=env or [], folder=chdir)
    where = workers.Where(name, host, worker, key, jump, zone, project, internal_ip)
    hosts, access = where.reach()
    if detach or job:
        most = parse_bytes(log_limit)
        started = start_job(hosts, command, access, job=job, check=check, log_bytes=most)
        output.show(started, report.started)
    else:
        output.show(run_command(hosts, command, access, sink=workers.sink()), report.ends)
