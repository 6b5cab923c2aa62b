"""`tpuctl offers`, `list`, `show`, `wait`, `delete`, `gc`, `quota`.

Parameters have the names of the Python functions', so that `locals()` passes them on.
"""

from functools import partial
from typing import Annotated, Any

import tpuctl
from tpuctl.cli import output
from tpuctl.cli.options import (
    Argument,
    DryRun,
    Name,
    Names,
    Option,
    Project,
    Provider,
    Timeout,
    Yes,
    Zone,
    zone_option,
)
from tpuctl.cli.progress import bars, states
from tpuctl.reporters import changes


def list_(
    zone: Zone = None,
    all_zones: Annotated[
        bool, Option("--all-zones", help="List all zones, even if a zone is set.")
    ] = False,
    provider: Provider = None,
    project: Project = None,
) -> None:
    """List your TPUs: state, age, time left and cost.

    Examples:
        tpuctl list
        tpuctl list --provider colab
        tpuctl list --all-zones --json
    """
    output.show(tpuctl.list(**locals(), on_warning=output.warn))


def offers(
    accelerator_type: Annotated[
        str | None,
        Argument(metavar="[TYPE]", help="Accelerator type such as v5e-8. Default: small ones."),
    ] = None,
    provider: Provider = None,
    project: Project = None,
) -> None:
    """Show ways to get a TPU, cheapest per chip first; creates nothing.

    Examples:
        tpuctl offers
        tpuctl offers v5e-8 --json
    """
    output.show(tpuctl.offers(**locals(), on_warning=output.warn))


def show(name: Name, zone: Zone = None, project: Project = None) -> None:
    """Show one TPU: workers, health, cost, time left and jobs.

    Examples:
        tpuctl show my-tpu
        tpuctl show my-tpu --zone us-central1-a
    """
    output.show(tpuctl.show(**locals(), on_warning=output.warn))


def wait(
    name: Name,
    until: Annotated[
        str, Option("--for", metavar="ready|gone", help="State to wait for.")
    ] = "ready",
    timeout_s: Timeout = None,
    zone: Zone = None,
    project: Project = None,
) -> None:
    """Wait until a TPU is ready on all workers, or until it is gone.

    Examples:
        tpuctl wait my-tpu
        tpuctl wait my-tpu --for gone --timeout 10m
    """
    with states() as on_progress:
        result = tpuctl.wait(**locals(), on_warning=output.warn)
    output.show(result)


def delete(
    names: Names = None,
    everything: Annotated[
        bool, Option("--all", help="Delete all TPUs in the zone; in all zones if none is set.")
    ] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    timeout_s: Timeout = None,
    zone: Zone = None,
    provider: Provider = None,
    project: Project = None,
) -> None:
    """Delete TPUs, and wait until they are gone.

    Examples:
        tpuctl delete my-tpu
        tpuctl delete my-tpu other-tpu --yes
        tpuctl delete --all --zone us-central1-a --dry-run
    """
    options = dict(locals())
    named, yes = options.pop("names") or (), options.pop("yes")
    confirm = partial(output.confirm_plan, changes.delete_question, yes=yes)
    with bars() as on_progress:
        talk: Any = {"on_progress": on_progress, "on_warning": output.warn}
        result = tpuctl.delete(*named, **options, confirm=confirm, **talk)
    output.show(result)


def gc(
    yes: Annotated[
        bool, Option("--yes", "-y", help="Delete what was found. Default: only list it.")
    ] = False,
    dry_run: DryRun = False,
    zone: Annotated[
        str | None, zone_option("Zone to search. Default: all zones, even if one is set.")
    ] = None,
    provider: Provider = None,
    project: Project = None,
) -> None:
    """Find dead, expired and forgotten TPUs; delete them with --yes.

    Examples:
        tpuctl gc
        tpuctl gc --yes
    """
    where = {"zone": zone, "provider": provider, "project": project}
    with bars() as on_progress:
        result = tpuctl.gc(yes=yes and not dry_run, **where, on_progress=on_progress)
    output.show(result)


def migrate(
    name: Name,
    to: Annotated[str, Option("--to", metavar="gce", help="Provider to move to.")] = "gce",
    yes: Annotated[
        bool, Option("--yes", "-y", help="Create it next to the old one. Default: only show it.")
    ] = False,
    zone: Zone = None,
    project: Project = None,
) -> None:
    """Show what a TPU would be on Compute Engine, or make it there.

    Examples:
        tpuctl migrate my-tpu
        tpuctl migrate my-tpu --to gce --yes
    """
    with states() as on_progress:
        result = tpuctl.migrate(**locals(), on_warning=output.warn)
    output.show(result)


def quota(
    accelerator_type: Annotated[
        str | None,
        Argument(
            metavar="[TYPE]", help="Accelerator type such as v5e-8: show the zones it fits in."
        ),
    ] = None,
    zone: Annotated[str | None, zone_option("Only this zone. Default: every zone.")] = None,
    project: Project = None,
) -> None:
    """Show how many chips your project may use, by zone.

    Examples:
        tpuctl quota
        tpuctl quota v5e-8
    """
    output.show(tpuctl.quota(**locals(), on_warning=output.warn))
