"""`tpuctl delete`."""

from typing import Annotated

import typer

from tpuctl.cli import output
from tpuctl.cli.opening import opened
from tpuctl.cli.options import DryRun, Project, Timeout, Yes, Zone
from tpuctl.cli.progress import bars
from tpuctl.cloud.connect import chosen_zone
from tpuctl.cloud.delete import TIMEOUT_S, plan_delete
from tpuctl.cloud.delete import delete as delete_planned
from tpuctl.errors import UsageError
from tpuctl.reporters import deletions as report
from tpuctl.units import parse_duration_s

app = typer.Typer(add_completion=False)


@app.command()
def delete(
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME...")] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Every TPU in the zone, or without one in all zones.")
    ] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    timeout: Timeout = None,
    zone: Zone = None,
    project: Project = None,
) -> None:
    """Delete TPUs, exactly those that are shown, and wait until they are gone."""
    timeout_s = parse_duration_s(timeout) if timeout else TIMEOUT_S
    chosen = _chosen(names or [], everything)
    cloud, where = opened(project), chosen_zone(zone)
    plan = plan_delete(cloud.api, chosen, zone=where, journal=cloud.journal)
    if not dry_run:
        if plan.tpus:
            output.confirm(report.question(plan), yes=yes)
        with bars() as on_progress:
            plan = delete_planned(
                cloud.api,
                plan,
                journal=cloud.journal,
                timeout_s=timeout_s,
                on_progress=on_progress,
            )
    output.show(plan, report.deletion)


def _chosen(names: list[str], everything: bool) -> list[str] | None:
    """The names, or None for everything; raises UsageError for neither or both."""
    if everything == bool(names):
        raise UsageError("Say which TPUs to delete: names, or --all.", hint="tpuctl list")
    return None if everything else names
