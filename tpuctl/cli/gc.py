"""`tpuctl gc`."""

from typing import Annotated

import typer

from tpuctl.cli import output
from tpuctl.cli.options import DryRun, Project, Yes
from tpuctl.cli.progress import bars
from tpuctl.cloud.connect import open_cloud
from tpuctl.cloud.gc import delete_orphans, find_orphans
from tpuctl.reporters import deletions as report

app = typer.Typer(add_completion=False)


@app.command()
def gc(
    yes: Yes = False,
    dry_run: DryRun = False,
    zone: Annotated[
        str | None, typer.Option(help="Look here only, not in every zone; the one set is ignored.")
    ] = None,
    project: Project = None,
) -> None:
    """Find TPUs that are dead, out of time or forgotten; delete them with --yes."""
    cloud = open_cloud(project)
    leftovers = find_orphans(cloud.api, journal=cloud.journal, zone=zone)
    if yes and not dry_run:
        with bars() as on_progress:
            leftovers = delete_orphans(
                cloud.api, leftovers, journal=cloud.journal, on_progress=on_progress
            )
    output.show(leftovers, report.leftovers)
