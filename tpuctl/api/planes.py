"""What TPUs can be had, on which control plane, and what a move to the other one would mean."""

from typing import TYPE_CHECKING

from tpuctl.api.cloud import OnWarning, open_plane
from tpuctl.api.workers import python_warning
from tpuctl.cloud.connect import chosen_zone
from tpuctl.progress import OnProgress, silent

if TYPE_CHECKING:
    from tpuctl.cloud.quotas import QuotaTable
    from tpuctl.providers.migrate import Migration
    from tpuctl.providers.offers import Offers


def offers(
    accelerator_type: str | None = None,
    *,
    provider: str | None = None,
    project: str | None = None,
    on_warning: OnWarning = python_warning,
) -> "Offers":
    """List every way to get a TPU now, cheapest first: price, units or free hours, and limits.

    Creates nothing. Providers without credentials are named in `unusable`.
    """
    from tpuctl.providers.every import list_offers
    from tpuctl.providers.registry import PROVIDERS, open_provider

    names = [provider] if provider else [*PROVIDERS]
    found = [open_provider(name, project=project, on_warning=on_warning) for name in names]
    return list_offers(found, accelerator_type, only=provider is not None)


def quota(
    accelerator_type: str | None = None,
    *,
    project: str | None = None,
    on_warning: OnWarning = python_warning,
) -> "QuotaTable":
    """Read how many chips the project may have in each zone, of one type or of all."""
    from tpuctl.cloud.quotas import read_all_quotas
    from tpuctl.providers.registry import set_planes

    apis = [open_plane(project, on_warning, plane).api for plane in set_planes()]
    return read_all_quotas(apis, accelerator_type)


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
    """Describe what a Cloud TPU would be on Compute Engine; with `yes`, create it beside the old.

    That costs money until the old one is deleted.
    """
    from tpuctl.providers.migrate import migrate as migrate_planned
    from tpuctl.providers.migrate import plan_migration

    plan = plan_migration(name, to=to, zone=chosen_zone(zone), project=project)
    if not yes:
        return plan
    return migrate_planned(plan, project=project, on_progress=on_progress, on_warning=on_warning)
