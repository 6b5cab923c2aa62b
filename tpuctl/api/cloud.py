"""Cloud TPUs from Python, with the settings of the command line."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from tpuctl.api.workers import python_warning
from tpuctl.cloud.connect import Cloud, chosen_zone, open_cloud
from tpuctl.cloud.create import Created, NotCreated
from tpuctl.cloud.create import create as create_planned
from tpuctl.cloud.delete import TIMEOUT_S, Deletion, plan_deletion
from tpuctl.cloud.delete import delete as delete_planned
from tpuctl.cloud.gc import Leftovers, find_leftovers, remove_leftovers
from tpuctl.cloud.list import TpuList, list_tpus
from tpuctl.cloud.plan import CreateOptions, CreatePlan
from tpuctl.cloud.quotas import QuotaTable, read_quotas
from tpuctl.cloud.tpu import QueuedTpu, Tpu
from tpuctl.cloud.wait import Waited, wait_until_gone, wait_until_ready
from tpuctl.cloud.zones import plan_with_service, with_traffic, zones_to_try
from tpuctl.compile.conclude import warn_before_create
from tpuctl.errors import UsageError
from tpuctl.progress import OnProgress, silent
from tpuctl.remote.hosts import split_user
from tpuctl.remote.jobs import show_with_jobs
from tpuctl.remote.results import Sink
from tpuctl.supervise.act import Edge, Login
from tpuctl.supervise.loop import watch as watch_planned
from tpuctl.supervise.memory import Store
from tpuctl.supervise.messages import Watched
from tpuctl.supervise.plan import WatchPlan, Wishes, plan_order, plan_watch

OnWarning = Callable[[str], None]


def create(
    name: str,
    accelerator_type: str,
    *,
    zone: str | Sequence[str] | None = None,
    wait: bool = True,
    timeout_s: float | None = None,
    project: str | None = None,
    dry_run: bool = False,
    check: bool = True,
    on_progress: OnProgress = silent,
    **options: Any,
) -> Created | NotCreated | CreatePlan:
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
    plan = with_traffic(cloud.api, plan, bucket=None).warned(
        *warn_before_create(plan.accelerator_type)
    )
    if dry_run:
        return plan
    result = create_planned(
        cloud.api,
        plan,
        journal=cloud.journal,
        wait=wait,
        timeout_s=timeout_s,
        on_progress=on_progress,
    )
    if check and isinstance(result, NotCreated):
        raise result.error
    return result


def list(
    *,
    zone: str | None = None,
    all_zones: bool = False,
    project: str | None = None,
    on_warning: OnWarning = python_warning,
) -> TpuList:
    """List TPUs and queued resources in the given zone or the one set, or in all zones."""
    zone = chosen_zone(zone, all_zones=all_zones)
    return list_tpus(_open(project, on_warning).api, zone=zone)


def show(
    name: str,
    *,
    zone: str | None = None,
    project: str | None = None,
    on_warning: OnWarning = python_warning,
) -> Tpu | QueuedTpu:
    """Show one TPU with its jobs, or the queued resource that waits for it."""
    return show_with_jobs(_open(project, on_warning).api, name, zone=chosen_zone(zone))


def wait(
    name: str,
    until: Literal["ready", "gone"] = "ready",
    *,
    zone: str | None = None,
    timeout_s: float | None = None,
    project: str | None = None,
    on_progress: OnProgress = silent,
    on_warning: OnWarning = python_warning,
) -> Waited:
    """Wait until a TPU is ready on all workers, or gone; forever without a timeout."""
    goals = {"ready": wait_until_ready, "gone": wait_until_gone}
    if until not in goals:
        raise UsageError(f"Cannot wait for {until!r}.", hint="Wait for ready or for gone.")
    return goals[until](
        _open(project, on_warning).api,
        name,
        zone=chosen_zone(zone),
        timeout_s=timeout_s,
        on_progress=on_progress,
    )


def delete(
    *names: str,
    everything: bool = False,
    zone: str | None = None,
    timeout_s: float | None = None,
    project: str | None = None,
    dry_run: bool = False,
    confirm: Callable[[Deletion], None] = lambda plan: None,
    on_progress: OnProgress = silent,
    on_warning: OnWarning = python_warning,
) -> Deletion:
    """Delete TPUs and wait until they are gone; failures are in the result.

    `everything` deletes all TPUs of the zone, or of all zones where none is given or set. `confirm`
    is called with the plan before anything is deleted; it raises an exception to stop.
    """
    if everything == bool(names):
        raise UsageError("Which TPUs? Give their names, or --all.", hint="tpuctl list")
    cloud = _open(project, on_warning)
    chosen = None if everything else names
    plan = plan_deletion(cloud.api, chosen, zone=chosen_zone(zone), journal=cloud.journal)
    if dry_run:
        return plan
    if plan.tpus:
        confirm(plan)
    return delete_planned(
        cloud.api,
        plan,
        journal=cloud.journal,
        timeout_s=TIMEOUT_S if timeout_s is None else timeout_s,
        on_progress=on_progress,
    )


def gc(
    *,
    yes: bool = False,
    zone: str | None = None,
    project: str | None = None,
    on_progress: OnProgress = silent,
) -> Leftovers:
    """Find dead, expired and abandoned TPUs in a zone, or in all; delete them with `yes`."""
    cloud = open_cloud(project)
    found = find_leftovers(cloud.api, journal=cloud.journal, zone=zone)
    if not yes:
        return found
    return remove_leftovers(cloud.api, found, journal=cloud.journal, on_progress=on_progress)


def quota(
    accelerator_type: str | None = None,
    *,
    project: str | None = None,
    on_warning: OnWarning = python_warning,
) -> QuotaTable:
    """Read how many chips the project may have in each zone, of one type or of all."""
    return read_quotas(_open(project, on_warning).api, accelerator_type)


def _open(project: str | None, on_warning: OnWarning) -> Cloud:
    cloud = open_cloud(project)
    for warning in cloud.warnings:
        on_warning(warning)
    return cloud


def watch(
    name: str,
    command: Sequence[str],
    *,
    code: Path | None = None,
    env: Sequence[str] = (),
    zone: str | None = None,
    project: str | None = None,
    fresh: bool = False,
    delete_at_end: bool = False,
    wishes: Wishes | None = None,
    dry_run: bool = False,
    sink: Sink | None = None,
    note: Callable[[str], None] = lambda _: None,
    **patience: Any,
) -> Watched | WatchPlan:
    """Run a job and keep it alive, on one TPU after the other; this costs money, and asks nothing.

    `wishes` say what to make where there is no TPU yet; `patience` are the further options of
    `plan_order`. What the job prints goes to `sink`, by default to stdout. Raises why nothing
    could be begun, and TryAgainError where another watch looks after it; why a job was given up
    is in the result.
    """
    user, plain = split_user(name)
    order = plan_order(command, env=env, code=code, **patience)
    cloud = open_cloud(project)
    store = Store(cloud.api, plain)
    asked = wishes or Wishes(chosen_zone(zone))
    if dry_run:
        return plan_watch(cloud, plain, asked, order, store=store, fresh=fresh)
    with store.alone():
        plan = plan_watch(cloud, plain, asked, order, store=store, fresh=fresh)
        login = Login(user, is_given=plain != name)
        edge = Edge(cloud, login, sink=sink or _show, note=note)
        return watch_planned(
            edge, plan.memory, order, store=store, note=note, delete_at_end=delete_at_end
        )


def _show(stream: int, data: bytes) -> None:
    file = sys.stderr if stream == 2 else sys.stdout
    file.write(data.decode("utf-8", "replace"))
    file.flush()
