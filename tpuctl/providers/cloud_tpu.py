"""The Cloud TPU API and Compute Engine as providers: the functions of `tpuctl.cloud`."""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import cached_property, partial
from typing import cast

from tpuctl.cloud.api import TpuApi
from tpuctl.cloud.connect import Cloud, chosen_zone, connect, open_cloud
from tpuctl.cloud.create import Choice, Created, NotCreated, OnAttempt
from tpuctl.cloud.create import create as create_planned
from tpuctl.cloud.delete import DeleteResult, plan_delete
from tpuctl.cloud.delete import delete as delete_planned
from tpuctl.cloud.gc import GcResult, delete_orphans, find_orphans
from tpuctl.cloud.list import TpuList, list_tpus
from tpuctl.cloud.lookup import attempt
from tpuctl.cloud.models import Node, Quota, segment
from tpuctl.cloud.placement import add_namesakes, add_quotas, add_traffic_warnings, complete_plan
from tpuctl.cloud.plan import CreateOptions, CreatePlan, plan_create
from tpuctl.cloud.quotas import chips_allowed
from tpuctl.cloud.tpu import Provisioning, QueuedTpu, Tpu
from tpuctl.errors import TpuctlError, UsageError
from tpuctl.hardware.compute_engine import CLOUD_TPU, GCE, describe_on, list_price
from tpuctl.hardware.types import AcceleratorType, all_types, describe
from tpuctl.progress import OnProgress, Progress
from tpuctl.providers.port import Abilities, Balance, HostedPlan, Login, ProviderOffer, Reached
from tpuctl.remote.hosts import find_node, split_user, through_iap, workers_of
from tpuctl.remote.jobs import show_with_jobs
from tpuctl.remote.keys import first_key, login_user, open_access_to
from tpuctl.remote.run import recipes, set_up
from tpuctl.settings import state_dir
from tpuctl.units import format_count

_NOT_OURS = frozenset({"max_units", "flex", "reservation"})
_SMALL = (1, 4, 8)


class CloudTpu:
    """TPUs of a Google Cloud project, through the Cloud TPU API."""

    abilities = Abilities(
        CLOUD_TPU,
        "Cloud TPU",
        options=frozenset(each.name for each in fields(CreateOptions)) - _NOT_OURS,
        instead={
            "max_units": "It bills in dollars: limit it with --max-usd, or --ttl.",
            "flex": "Wait for capacity with --queued, or: --provider gce --flex",
            "reservation": "Use --reserved, or: --provider gce --reservation NAME",
        },
    )
    models: tuple[str, ...] = ("spot", "on_demand")

    def __init__(self, project: str | None, on_warning: Callable[[str], None]) -> None:
        self._project, self._on_warning = project, on_warning

    @cached_property
    def _cloud(self) -> Cloud:
        return open_cloud(
            self._project, control_plane=self.abilities.name, on_warning=self._on_warning
        )

    def why_unusable(self) -> str | None:
        """Return why we cannot connect; sends no request."""
        found = attempt(lambda: connect(self._project, control_plane=self.abilities.name))
        if isinstance(found, TpuctlError):
            return f"{found} {found.hint or ''}".rstrip()
        return None

    def is_recorded(self, name: str) -> bool:
        """Always False: TPUs of Google Cloud may have been created elsewhere."""
        return False

    was_deleted = is_recorded

    def is_used(self) -> bool:
        """Whether the settings choose this control plane, or the journal has TPUs on it."""
        from tpuctl.providers.registry import control_plane_is_used

        return control_plane_is_used(self.abilities.name)

    def plan(self, options: CreateOptions, *, dry_run: bool = False) -> CreatePlan:
        """Plan a create in the zones given, for a dry run with their quotas, or in all."""
        from tpuctl.compile.estimate import warn_before_create

        plan = plan_create(options)
        api = self._cloud.api
        plan = add_traffic_warnings(api, complete_plan(api, plan), bucket=options.bucket)
        plan = plan.with_warnings(*warn_before_create(plan.accelerator_type))
        return add_namesakes(api, add_quotas(api, plan)) if dry_run else plan

    def create(
        self,
        plan: CreatePlan | HostedPlan,
        *,
        wait: bool,
        timeout_s: float | None,
        on_interrupt: Callable[[], Choice],
        on_progress: OnProgress,
        on_attempt: OnAttempt,
    ) -> Created | NotCreated:
        """Create the TPU in the first zone that has capacity."""
        assert isinstance(plan, CreatePlan)
        # With our key in its metadata from the start, no later command has to wait for an update.
        own_key = first_key(state_dir(), split_user(plan.name)[0])
        metadata = {**own_key, **plan.options.metadata}
        wanted = recipes().get(plan.options.setup or "")
        if wanted and not wait:
            raise UsageError("--setup and --no-wait exclude each other.", hint="Give one of them.")

        def prepare(node: Node) -> None:
            reached = self.reach(plan.name, Login(zone=node.zone, on_warning=self._on_warning))
            set_up(
                reached.hosts,
                reached.access,
                wanted or {},
                chips=plan.chips,
                on_step=lambda step: on_progress(
                    Progress(f"{node.name} in {node.zone}", 0, unit="s", note=f"setup, {step}")
                ),
            )

        return create_planned(
            self._cloud.api,
            replace(plan, options=replace(plan.options, metadata=metadata)),
            journal=self._cloud.journal,
            wait=wait,
            timeout_s=timeout_s,
            set_up=prepare if wanted else lambda _: None,
            on_interrupt=on_interrupt,
            on_progress=on_progress,
            on_attempt=on_attempt,
        )

    def list(self, zone: str | None) -> TpuList:
        """List nodes and queued resources."""
        return list_tpus(self._cloud.api, zone=zone)

    def get(self, name: str, zone: str | None) -> Tpu | QueuedTpu:
        """Read a TPU with its jobs."""
        return show_with_jobs(self._cloud.api, name, zone=zone)

    def plan_delete(self, names: Sequence[str] | None, zone: str | None) -> DeleteResult:
        """Find the named TPUs, or everything in the zone."""
        return plan_delete(self._cloud.api, names, zone=zone, journal=self._cloud.journal)

    def delete(
        self, plan: DeleteResult, *, timeout_s: float, on_progress: OnProgress
    ) -> DeleteResult:
        """Delete what was planned."""
        cloud = self._cloud
        return delete_planned(
            cloud.api, plan, journal=cloud.journal, timeout_s=timeout_s, on_progress=on_progress
        )

    def find_orphans(self, zone: str | None) -> GcResult:
        """Find what is dead, expired or abandoned."""
        return find_orphans(self._cloud.api, journal=self._cloud.journal, zone=zone)

    def delete_orphans(self, found: GcResult, on_progress: OnProgress) -> GcResult:
        """Delete the orphans."""
        cloud = self._cloud
        return delete_orphans(cloud.api, found, journal=cloud.journal, on_progress=on_progress)

    def offers(self, accelerator_type: str | None) -> tuple[ProviderOffer, ...]:
        """Offer the cheapest zone of each model of provisioning, with the quota there."""
        quotas = attempt(self._cloud.api.list_quotas)
        unread = f"quota unknown: {quotas}" if isinstance(quotas, TpuctlError) else ""
        known = () if isinstance(quotas, TpuctlError) else quotas
        found = []
        control_plane = self.abilities.name
        wanted = [describe(accelerator_type)] if accelerator_type else small_types()
        types_there = (
            attempt(partial(describe_on, control_plane, kind.accelerator_type)) for kind in wanted
        )
        for kind in types_there:
            # A type of the other control plane is not offered here.
            if isinstance(kind, TpuctlError) or not kind.runtime_version:
                continue
            for model in self.models:
                offers = [_offer(control_plane, kind, zone, model, known) for zone in kind.zones]
                usable = [offer for offer in offers if offer.available is not False] or offers
                best = min(usable, key=lambda each: each.usd_per_hour or 1e9, default=None)
                if best:
                    evidence = (*best.evidence, unread) if unread else best.evidence
                    found.append(replace(best, evidence=evidence))
        return tuple(found)

    def balance(self) -> Balance | None:
        """Return nothing: it bills in dollars."""
        return None

    def reach(self, name: str, login: Login) -> Reached:
        """Find the workers, and add our key to the TPU's metadata if it is missing."""
        segment("TPU", name)
        api = self._cloud.api
        return reach_node(api, find_node(api, name, chosen_zone(login.zone)), login)


class ComputeEngine(CloudTpu):
    """TPUs of a Google Cloud project as VMs and managed instance groups."""

    abilities = Abilities(
        GCE,
        "Compute Engine",
        options=frozenset(each.name for each in fields(CreateOptions))
        - {"max_units", "queued", "reserved"},
        instead={
            "max_units": "It bills in dollars: limit it with --max-usd, or --ttl.",
            "queued": "To wait for capacity: --flex --ttl 8h",
            "reserved": "Name the reservation: --reservation NAME",
        },
    )
    models = ("flex", "spot", "on_demand")


def reach_node(api: TpuApi, node: Node, login: Login) -> Reached:
    """List the workers of a node, and add our key to its metadata if it is missing."""
    user = login.user or login_user(node, split_user(node.name)[0])
    hosts = workers_of(node, user, internal_ip=login.internal_ip)
    hosts = through_iap(api, node, hosts) if login.iap else hosts
    access = open_access_to(
        api, node, user, on_warning=login.on_warning, key=login.key, jump=login.jump
    )
    return Reached(hosts, access, node)


def small_types() -> list[AcceleratorType]:
    """Return the smallest type of each generation."""
    found = []
    for family in all_types().families:
        for size in _SMALL:
            kind = attempt(lambda name=f"{family.generation}-{size}": describe(name))  # type: ignore[misc]
            if isinstance(kind, AcceleratorType) and kind.zones:
                found.append(kind)
                break
    return found


def _offer(
    control_plane: str, kind: AcceleratorType, zone: str, model: str, quotas: Sequence[Quota]
) -> ProviderOffer:
    quota = chips_allowed(quotas, kind.generation, zone, spot=model != "on_demand")
    price = list_price(control_plane, kind.accelerator_type, zone, model)
    zones = format_count(len(kind.zones), "zone")
    dated = f"list price read on {kind.prices_as_of}, cheapest of {zones}"
    return ProviderOffer(
        provider=control_plane,
        accelerator_type=kind.accelerator_type,
        chips=kind.chips,
        zone=zone,
        provisioning=cast(Provisioning, model),
        usd_per_hour=price,
        quota_left=quota,
        available=False if quota is not None and quota < kind.chips else None,
        evidence=(
            f"no list price is known for any of {zones}" if price is None else dated,
            "limit of the project, used or not" if quota is not None else "quota not stated",
            *((kind.note,) if kind.note else ()),
        ),
    )
