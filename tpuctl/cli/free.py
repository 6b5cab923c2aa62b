"""`tpuctl free`."""

from typing import Annotated

import typer

from tpuctl.cli import output, workers
from tpuctl.cli.options import DryRun, Project, Yes, Zone
from tpuctl.errors import UsageError
from tpuctl.remote.free import FREE_GRACE_S, find_holders, free_chips
from tpuctl.reporters import chips as report
from tpuctl.units import parse_duration_s

app = typer.Typer(add_completion=False)


@app.command()
def free(
    name: workers.NameOrLocal = None,
    host: workers.Hosts = None,
    worker: workers.Workers = "all",
    yes: Yes = False,
    dry_run: DryRun = False,
    sudo: workers.Sudo = False,
    grace: Annotated[
        str, typer.Option("--grace", metavar="TIME", help="How long before it is killed.")
    ] = f"{FREE_GRACE_S:g}s",
    key: workers.Key = None,
    jump: workers.Jump = None,
    zone: Zone = None,
    project: Project = None,
    internal_ip: workers.InternalIp = False,
) -> None:
    """Show who has the chips of every worker, and end those processes after a question."""
    if not name and not host:
        raise UsageError("Whose chips? Give a NAME, local or --host.", hint="tpuctl free local")
    where = workers.Where(name, host, worker, key, jump, zone, project, internal_ip)
    found, access = where.reach_or_here()
    held = find_holders(found, access, as_root=sudo)
    if held.needs_work and not dry_run:
        output.confirm(report.question(held), yes=yes)
        grace_s = parse_duration_s(grace)
        held = free_chips(held, found, access, as_root=sudo, grace_s=grace_s)
    output.show(held, report.held)
