"""TPUs from Python: what the commands of the same names do, with the same settings."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, overload

from tpuctl.api.workers import python_warning
from tpuctl.cloud.connect import chosen_zone, open_cloud, zone_to_delete_in
from tpuctl.cloud.models import ALL_ZONES
from tpuctl.errors import UsageError, refuse_unused
from tpuctl.outcome import Outcome
from tpuctl.progress import OnProgress, silent

if TYPE_CHECKING:
    from tpuctl.cloud.create import Choice, Created, NotCreated, OnAttempt
    from tpuctl.cloud.delete import DeleteResult
    from tpuctl.cloud.gc import GcResult
    from tpuctl.cloud.list import TpuList
    from tpuctl.cloud.plan import CreatePlan
    from tpuctl.cloud.quotas import QuotaTable
    from tpuctl.cloud.tpu import QueuedTpu, Tpu
    from tpuctl.cloud.wait import WaitResult
    from tpuctl.providers.combined import Offers
    from tpuctl.providers.migrate import Migration
    from tpuctl.providers.port import HostedPlan, Provider

OnWarning = Callable[[str], None]


def warn_about(plan: Outcome) -> None:
    """Issue the warnings of a plan as Python warnings, and go ahead: the default `confirm`."""
    for warning in plan.warnings:
        python_warning(warning)


@overload
def create(
    name: str,
    accelerator_type: str,
    *,
    dry_run: Literal[False] = False,
    check: Literal[True] = True,
    **options: Any,
) -> "Created": ...
@overload
def create(
    name: str, accelerator_type: str, *, dry_run: bool, check: bool = True, **options: Any
) -> "Created | NotCreated | CreatePlan | HostedPlan": ...
def create(
    name: str,
    accelerator_type: str,
    *,
    zone: str | Sequence[str] | None = None,
    bucket: str | None = None,
    wait: bool = True,
    timeout_s: float | None = None,
    provider: str | None = None,
    project: str | None = None,
    dry_run: bool = False,
    check: bool = True,
    confirm: "Callable[[CreatePlan | HostedPlan], None]" = warn_about,
    on_interrupt: "Callable[[], Choice]" = lambda: "cancel",
    on_progress: OnProgress = silent,
    on_attempt: "OnAttempt" = lambda attempt: None,
    on_warning: OnWarning = python_warning,
    **options: Any,
) -> "Created | NotCreated | CreatePlan | HostedPlan":
    """Create a TPU, which costs money, and wait until every worker can be reached.

    Args:
        name: Name of the TPU.
        accelerator_type: Type such as "v5e-8".
        zone: One zone, several in the order to try them, or "auto"; by default the zone set.
        bucket: Bucket with the training data; a distant zone gives a warning.
        wait: Whether to wait until the TPU is ready.
        timeout_s: Longest wait in each zone, or in the queue.
        provider: Where: "cloud-tpu", "gce", "colab", ...; by default "auto", the control plane of
            Google Cloud that has the type, the zone and the quota.
        project: Google Cloud project; by default the one set.
        dry_run: Return the plan and request nothing.
        check: Raise the error when no zone has the TPU; otherwise return NotCreated.
        confirm: Called with the plan before anything is requested; raise an exception to stop.
        on_interrupt: Called on Ctrl-C; returns "cancel" or "leave" for what was requested.
        on_progress: Called with the state of what is waited for.
        on_attempt: Called with the outcome of each zone.
        on_warning: Called with each warning about earlier creates.
        **options: The other fields of CreateOptions, such as `spot`, `queued`, `ttl_s`, `max_usd`.

    Raises StoppedError on Ctrl-C, after `on_interrupt` was carried out.
    """
    from tpuctl.cloud.create import NotCreated
    from tpuctl.cloud.placement import resolve_zones
    from tpuctl.cloud.plan import CreateOptions
    from tpuctl.providers.control_planes import choose_control_plane
    from tpuctl.providers.port import HostedPlan
    from tpuctl.providers.registry import (
        AUTO,
        chosen_control_plane,
        is_control_plane,
        open_to_create,
    )

    why, provider = None, provider or chosen_control_plane()
    if provider in (None, AUTO):
        zones = resolve_zones(zone)
        provider, why = choose_control_plane(accelerator_type, zones, options, project=project)
    chosen = open_to_create(str(provider), name, project=project, on_warning=on_warning)
    if is_control_plane(chosen):
        zones = resolve_zones(zone)
        options = {**options, "provider": provider}
    else:
        zones = (str(zone),) if zone else ()
    request = CreateOptions(name, accelerator_type, zones, bucket=bucket, **options)
    chosen.abilities.check(request)
    plan = chosen.plan(request, dry_run=dry_run)
    if why and not isinstance(plan, HostedPlan):
        plan = replace(plan, why_provider=why, reasons=(why, *plan.reasons))
    if dry_run:
        return plan
    confirm(plan)
    result = chosen.create(
        plan,
        wait=wait,
        timeout_s=timeout_s,
        on_interrupt=on_interrupt,
        on_progress=on_progress,
        on_attempt=on_attempt,
    )
    if check and isinstance(result, NotCreated):
        raise result.error
    return result


def list(
    *,
    zone: str | None = None,
    all_zones: bool = False,
    provider: str | None = None,
    project: str | None = None,
    on_warning: OnWarning = python_warning,
) -> "TpuList":
    """List the TPUs of all providers in use; of the Cloud TPU API those in the zone, or in all.

    `zone` or `project` limits the list to Google Cloud, `provider` to that provider.
    """
    from tpuctl.providers.combined import list_everywhere

    refuse_unused({"--zone": zone if all_zones and zone != ALL_ZONES else None}, "with --all-zones")
    where = chosen_zone(zone, all_zones=all_zones)
    return list_everywhere(_providers(provider, zone, project, on_warning), where)


def offers(
    accelerator_type: str | None = None,
    *,
    provider: str | None = None,
    project: str | None = None,
    on_warning: OnWarning = python_warning,
) -> "Offers":
    """List every way to get a TPU now, cheapest per chip first: price, free hours and limits.

    Creates nothing. Providers without credentials are named in `unusable`.
    """
    from tpuctl.providers.combined import list_offers
    from tpuctl.providers.registry import PROVIDERS, open_provider

    names = [provider] if provider else [*PROVIDERS]
    found = [open_provider(name, project=project, on_warning=on_warning) for name in names]
    return list_offers(found, accelerator_type, only=provider is not None)


def show(
    name: str,
    *,
    zone: str | None = None,
    project: str | None = None,
    on_warning: OnWarning = python_warning,
) -> "Tpu | QueuedTpu":
    """Show one TPU with its jobs, or the queued resource that waits for it."""
    from tpuctl.providers.registry import owner_of

    owner = owner_of(name, zone=zone, project=project, on_warning=on_warning)
    return owner.get(name, chosen_zone(zone))


def wait(
    name: str,
    until: Literal["ready", "gone"] = "ready",
    *,
    zone: str | None = None,
    timeout_s: float | None = None,
    project: str | None = None,
    on_progress: OnProgress = silent,
    on_warning: OnWarning = python_warning,
) -> "WaitResult":
    """Wait until a TPU is ready on all workers, or gone; forever without a timeout."""
    from tpuctl.cloud.wait import wait_until_gone, wait_until_ready
    from tpuctl.providers.combined import wait_for
    from tpuctl.providers.registry import is_control_plane, owner_of

    goals = {"ready": wait_until_ready, "gone": wait_until_gone}
    if until not in goals:
        raise UsageError(f"Cannot wait for {until!r}.", hint="Wait for ready or for gone.")
    owner = owner_of(name, zone=zone, project=project)
    if not is_control_plane(owner):
        return wait_for(owner, name, until, timeout_s=timeout_s, on_progress=on_progress)
    return goals[until](
        open_cloud(project, control_plane=owner.abilities.name, on_warning=on_warning).api,
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
    provider: str | None = None,
    project: str | None = None,
    dry_run: bool = False,
    confirm: "Callable[[DeleteResult], None]" = lambda plan: None,
    on_progress: OnProgress = silent,
    on_warning: OnWarning = python_warning,
) -> "DeleteResult":
    """Delete TPUs and wait until they are gone; failures are in the result.

    `everything` deletes all TPUs of the zone, or of all zones where none is given or set; with a
    `provider` all of that one. A zone from a project file is not used. `confirm` is called with the
    plan where there is something to delete; raise an exception in it to stop. `dry_run` returns the
    plan.
    """
    from tpuctl.cloud.delete import TIMEOUT_S
    from tpuctl.providers.combined import delete_planned, needs_zone, plan_deletion
    from tpuctl.providers.registry import is_control_plane, open_to_delete

    if everything and names:
        raise UsageError("Names and --all exclude each other.", hint="tpuctl list")
    if not everything and not names:
        raise UsageError("Which TPUs? Give their names, or --all.", hint="tpuctl list")
    owners = open_to_delete(
        names, provider=provider, zone=zone, project=project, on_warning=on_warning
    )
    for owner, _ in owners:
        needs_zone(owner, zone)
    has_control_planes = any(is_control_plane(owner) for owner, _ in owners)
    where = zone_to_delete_in(zone, everything=everything) if has_control_planes else None
    plans, plan = plan_deletion(owners, where)
    if dry_run:
        return plan
    if plan.tpus:
        confirm(plan)
    return delete_planned(
        plans,
        plan,
        timeout_s=TIMEOUT_S if timeout_s is None else timeout_s,
        on_progress=on_progress,
    )


def gc(
    *,
    yes: bool = False,
    zone: str | None = None,
    provider: str | None = None,
    project: str | None = None,
    on_progress: OnProgress = silent,
) -> "GcResult":
    """Find TPUs that are dead, expired or abandoned, on all providers; delete them with `yes`."""
    from tpuctl.providers.combined import delete_orphans, find_orphans

    found, whole = find_orphans(_providers(provider, zone, project, lambda text: None), zone)
    return delete_orphans(found, whole, on_progress) if yes else whole


def quota(
    accelerator_type: str | None = None,
    *,
    zone: str | None = None,
    project: str | None = None,
    on_warning: OnWarning = python_warning,
) -> "QuotaTable":
    """Read how many chips the project may have in each zone or one, of one type or of all."""
    from tpuctl.cloud.quotas import read_all_quotas
    from tpuctl.hardware.types import describe
    from tpuctl.providers.registry import configured_control_planes

    if accelerator_type:
        describe(accelerator_type)  # a wrong type needs no login to be told
    apis = [
        open_cloud(project, control_plane=control_plane, on_warning=on_warning).api
        for control_plane in configured_control_planes()
    ]
    return read_all_quotas(apis, accelerator_type, zone)


def migrate(
    name: str,
    *,
    to: str = "gce",
    yes: bool = False,
    zone: str | None = None,
    project: str | None = None,
    on_progress: OnProgress = silent,
    on_warning: OnWarning = python_warning,
) -> "Migration":
    """Describe what a Cloud TPU would be on Compute Engine; with `yes`, create that too.

    That costs money until the old one is deleted.
    """
    from tpuctl.providers.migrate import migrate as migrate_planned
    from tpuctl.providers.migrate import plan_migration

    plan = plan_migration(name, to=to, zone=chosen_zone(zone), project=project)
    if not yes:
        return plan
    return migrate_planned(plan, project=project, on_progress=on_progress, on_warning=on_warning)


def _providers(
    provider: str | None, zone: str | None, project: str | None, on_warning: OnWarning
) -> "Sequence[Provider]":
    """Return the providers to ask; a zone or a project means Google Cloud alone."""
    from tpuctl.providers.combined import needs_zone
    from tpuctl.providers.registry import in_use, is_control_plane

    found = in_use(provider, project=project, on_warning=on_warning)
    if provider:
        needs_zone(found[0], zone)
        return found
    return [each for each in found if is_control_plane(each) or not (zone or project)]
