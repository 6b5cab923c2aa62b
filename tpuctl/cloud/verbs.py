"""What one does with Cloud TPUs from Python: the verbs of the command line, with its settings."""

from typing import Literal

from tpuctl.cloud.deleting import Deletion, plan_deletion
from tpuctl.cloud.deleting import delete as delete_planned
from tpuctl.cloud.leftovers import Leftovers, find_leftovers, remove_leftovers
from tpuctl.cloud.listing import TpuList, list_tpus, show_tpu
from tpuctl.cloud.opening import chosen_zone, open_cloud
from tpuctl.cloud.quotas import QuotaTable, read_quotas
from tpuctl.cloud.tpu import QueuedTpu, Tpu
from tpuctl.cloud.waiting import Waited, wait_until_gone, wait_until_ready
from tpuctl.progress import OnProgress, silent


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
