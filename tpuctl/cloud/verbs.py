"""What one does with Cloud TPUs from Python: the verbs of the command line, with its settings."""

from collections.abc import Sequence
from typing import Any, Literal

from tpuctl.cloud.creating import Created, NotCreated
from tpuctl.cloud.creating import create as create_planned
from tpuctl.cloud.deleting import Deletion, plan_deletion
from tpuctl.cloud.deleting import delete as delete_planned
from tpuctl.cloud.leftovers import Leftovers, find_leftovers, remove_leftovers
from tpuctl.cloud.listing import TpuList, list_tpus, show_tpu
from tpuctl.cloud.opening import chosen_zone, open_cloud
from tpuctl.cloud.plan import CreateOptions
from tpuctl.cloud.quotas import QuotaTable, read_quotas
from tpuctl.cloud.searching import plan_with_service, zones_to_try
from tpuctl.cloud.tpu import QueuedTpu, Tpu
from tpuctl.cloud.waiting import Waited, wait_until_gone, wait_until_ready
from tpuctl.progress import OnProgress, silent


def create(
    name: str,
    accelerator_type: str,
    *,
    zone: str | Sequence[str] | None = None,
    wait: bool = True,
    timeout_s: float | None = None,
    project: str | None = None,
    on_progress: OnProgress = silent,
    **options: Any,
) -> Created:
    """Create a TPU, which costs money, and wait until every worker of it can be reached.

    `zone` is one, several in the order of trying, or "auto"; further options are those of
    CreateOptions. Asks nothing. Raises why there is no TPU, and on Ctrl-C StoppedError, after the
    request has been cancelled.
    """
    several = () if zone is None or isinstance(zone, str) else zone
    zones = zones_to_try(zone if isinstance(zone, str) else None, several)
    wanted = CreateOptions(name, accelerator_type, zones, **options)
    cloud = open_cloud(project)
    plan = plan_with_service(cloud.api, wanted)
    result = create_planned(
        cloud.api,
        plan,
        journal=cloud.journal,
        wait=wait,
        timeout_s=timeout_s,
        on_progress=on_progress,
    )
    if isinstance(result, NotCreated):
        raise result.error
    return result


def list(
    *, zone: str | None = None, all_zones: bool = False, project: str | None = None
) -> TpuList:
    """List TPUs and queued resources in the zone given or set, or in all zones."""
    zone = chosen_zone(zone, all_zones=all_zones)
    return list_tpus(open_cloud(project).api, zone=zone)


def show(name: str, *, zone: str | None = None, project: str | None = None) -> Tpu | QueuedTpu:
    """Show one TPU, or the queued resource that waits for it."""
    return show_tpu(open_cloud(project).api, name, zone=chosen_zone(zone))


def wait(
    name: str,
    until: Literal["ready", "gone"] = "ready",
    *,
    zone: str | None = None,
    timeout_s: float | None = None,
    project: str | None = None,
    on_progress: OnProgress = silent,
) -> Waited:
    """Wait until a TPU is ready on all workers, or until it is gone; for ever without a timeout."""
    wait_until = wait_until_ready if until == "ready" else wait_until_gone
    return wait_until(
        open_cloud(project).api,
        name,
        zone=chosen_zone(zone),
        timeout_s=timeout_s,
        on_progress=on_progress,
    )


def delete(*names: str, zone: str | None = None, project: str | None = None) -> Deletion:
    """Delete TPUs and wait until they are gone; asks nothing. Failures are in the result."""
    cloud = open_cloud(project)
    plan = plan_deletion(cloud.api, names, zone=chosen_zone(zone), journal=cloud.journal)
    return delete_planned(cloud.api, plan, journal=cloud.journal)


def gc(*, yes: bool = False, zone: str | None = None, project: str | None = None) -> Leftovers:
    """Find what is of no use any more in the zone given, or in all; delete it with `yes`."""
    cloud = open_cloud(project)
    found = find_leftovers(cloud.api, journal=cloud.journal, zone=zone)
    return remove_leftovers(cloud.api, found, journal=cloud.journal) if yes else found


def quota(accelerator_type: str | None = None, *, project: str | None = None) -> QuotaTable:
    """Tell how many chips the project may have, where."""
    return read_quotas(open_cloud(project).api, accelerator_type)
