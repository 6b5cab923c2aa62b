"""The requests that a watch sends to Cloud TPU or to another provider: observe, create, delete."""

from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

from tpuctl.clock import Clock
from tpuctl.cloud.connect import Cloud
from tpuctl.cloud.create import Created, NotCreated, create
from tpuctl.cloud.delete import delete_all, plan_group_deletion
from tpuctl.cloud.follow import ZoneAttempt
from tpuctl.cloud.journal import COLLECTED, DELETED
from tpuctl.cloud.lookup import Resource, find, read_group, read_optional
from tpuctl.cloud.models import LABEL_WATCH, Node, QueuedResource
from tpuctl.cloud.placement import complete_plan
from tpuctl.cloud.plan import METADATA_SETUP, SHORT_TTL_S, CreateOptions, CreatePlan, plan_create
from tpuctl.cloud.tpu import Tpu, known_type
from tpuctl.errors import LimitPassedError, NotFoundError, TpuctlError
from tpuctl.progress import silent
from tpuctl.providers.cloud_tpu import reach_node
from tpuctl.providers.port import Login as Login
from tpuctl.providers.port import Provider, Reached
from tpuctl.remote.hosts import split_user
from tpuctl.remote.keys import has_os_login, key_for_tpus, with_key
from tpuctl.remote.run import recipes, set_up
from tpuctl.settings import state_dir
from tpuctl.supervise.models import JobSpec, KnownTpu, LaunchJob, TpuObservation, WatchState
from tpuctl.supervise.observe import observe_tpu, resource_id
from tpuctl.supervise.worker_actions import WorkerActions
from tpuctl.units import format_duration


class CloudActions(WorkerActions):
    """The side effects of a watch of a Cloud TPU."""

    def __init__(self, cloud: Cloud, login: Login, **talk: Any) -> None:
        super().__init__(login, **talk)
        self._api, self._journal, self.clock = cloud.api, cloud.journal, cloud.api.clock
        self._resource: Resource | None = None
        self._queued: QueuedResource | None = None
        self._was_set_up = ""

    def observe(self, state: WatchState) -> TpuObservation:
        """Ask the service about the TPU; an error is an observation too."""
        try:
            self._resource = resource = self._find(state)
            maker = resource.queued_resource if isinstance(resource, Node) else None
            get_queued = self._api.get_queued_resource
            queued = read_optional(get_queued, maker, resource.zone) if resource else None
            self._queued = queued
            was_deleted, why = self._departure(state) if resource is None else (None, "")
        except TpuctlError as error:
            return TpuObservation("unknown", error=error)
        return observe_tpu(
            resource,
            queued,
            state,
            now=self.clock.now(),
            was_deleted=was_deleted,
            why_gone=why,
        )

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of the TPU that was observed last and of the queued resource that made it."""
        return tuple(resource_id(each) for each in (self._resource, self._queued) if each)

    def _find(self, state: WatchState) -> Resource | None:
        """Look in the TPU's zone; during a create, also in every zone of the recipe.

        A TPU that this watch created comes before a namesake in another zone.
        """
        found: list[Resource] = []
        zones: tuple[str | None, ...] = (state.tpu.zone,) if state.tpu else ()
        if not zones or state.creating:
            zones = (*zones, *state.recipe.zones) or (None,)
        for zone in dict.fromkeys(zones):
            with suppress(NotFoundError):
                found.append(find(self._api, state.name, zone))
        found.sort(key=lambda each: each.labels.get(LABEL_WATCH) != state.watch)
        return found[0] if found else None

    def _departure(self, state: WatchState) -> tuple[bool | None, str]:
        """Whether a user deleted it while it was alive, None if unknown, and why."""
        create_id = state.tpu.create_id if state.tpu else None
        entry = self._journal.find(create_id) if create_id else None
        if entry and entry.outcome in (COLLECTED, DELETED):
            return entry.outcome == DELETED, ""
        if state.tpu is None:
            return None, ""
        known = state.tpu
        gone = self._api.why_gone(state.name, zone=known.zone, since=known.created)
        # Deleting a managed instance group also deletes its VMs.
        return (gone.cause == "deleted", str(gone)) if gone else (None, "")

    def create(self, state: WatchState) -> None:
        """Create a TPU from the recipe, or resume a create; raises why there is none."""
        recipe = state.recipe
        if not has_os_login(recipe.metadata):
            # With our key in its metadata from the start, nothing has to wait for an update.
            pair = key_for_tpus(state_dir(), self._login.key)
            user = self._login.user or split_user(state.name)[0]
            metadata = with_key(recipe.metadata, user, pair)
            recipe = replace(recipe, metadata=metadata)
        if recipe.max_usd is not None:
            recipe = replace(recipe, max_usd=recipe.max_usd - state.spent_usd)
        plan = complete_plan(self._api, plan_create(replace(recipe, watch=state.watch)))
        _check_rest(plan, state)
        attempts: list[ZoneAttempt] = []
        with self._progress() as on_progress:
            result = create(
                self._api,
                plan,
                journal=self._journal,
                on_progress=on_progress,
                on_attempt=attempts.append,
            )
        for attempt in attempts[:-1]:
            self._note(f"{attempt.zone}: {attempt.outcome.replace('_', ' ')}, {attempt.reason}")
        if not isinstance(result, Created):
            raise result.error
        for warning in result.warnings:
            self._note(f"Warning: {warning}")

    def launch(self, spec: JobSpec, step: LaunchJob) -> None:
        """Copy the code and start the job; on a TPU of a watch, install its framework first."""
        node = self._node()
        recipe = recipes().get(node.metadata.get(METADATA_SETUP, ""))
        if recipe and LABEL_WATCH in node.labels and node.id != self._was_set_up:
            hosts, access = self._workers()
            kind = known_type(node.accelerator_type)
            self._note(f"Setting up {node.metadata[METADATA_SETUP]} on {node.name}.")
            set_up(hosts, access, recipe, chips=kind.chips if kind else 1)
            self._was_set_up = node.id
        super().launch(spec, step)

    def delete(self, state: WatchState) -> None:
        """Delete exactly the TPU that was observed last, and wait until it is gone."""
        if self._resource is None:
            return
        planned = plan_group_deletion(read_group(self._api, self._resource), name=state.name)
        (deletion,) = delete_all(self._api, [planned], journal=self._journal)
        if deletion.error:
            raise deletion.error

    def _node(self) -> Node:
        assert isinstance(self._resource, Node), "only the workers of a usable TPU are asked"
        return self._resource

    def _type(self) -> str:
        return self._node().accelerator_type

    def _workers_key(self) -> object:
        return self._node().id, self._node().endpoints

    def _reach(self) -> Reached:
        return reach_node(self._api, self._node(), self._login)


def _check_rest(plan: CreatePlan, state: WatchState) -> None:
    """Raise LimitPassedError where the rest of a budget ends each TPU before it is ready.

    Without that, one after the other would be created, and cost more than the budget.
    """
    lives = [offer.ttl_s for offer in plan.to_try if offer.ttl_s is not None]
    is_users = state.recipe.ttl_s is not None and state.recipe.ttl_s < SHORT_TTL_S
    if state.spent_usd and plan.max_usd and lives and max(lives) < SHORT_TTL_S and not is_users:
        raise LimitPassedError(
            f"{state.name} is not recreated: the rest of its budget of {state.recipe.max_usd:g} "
            f"dollars pays for {format_duration(max(lives))}.",
            hint="To continue, repeat the command with a larger --max-usd.",
        )


@runtime_checkable
class Supervised(Provider, Protocol):
    """A provider whose TPUs can be kept alive."""

    @property
    def clock(self) -> Clock:
        """The service's time."""

    @property
    def endpoint(self) -> str:
        """The address of an emulator; empty for the service itself."""

    def recipe(self, name: str) -> CreateOptions | None:
        """Return the options that create such a TPU again; local."""

    def why_gone(self, name: str) -> str | None:
        """Return why tpuctl has deleted the TPU of this name; None where it has not. Local."""


class ProviderActions(WorkerActions):
    """The side effects of a watch of a TPU that a provider knows by its name."""

    def __init__(self, provider: Supervised, login: Login, **talk: Any) -> None:
        super().__init__(login, **talk)
        self._provider, self.clock = provider, provider.clock
        self._tpu: Tpu | None = None

    @property
    def ids(self) -> tuple[str, ...]:
        """The id of the TPU that was observed last."""
        return (self._tpu.id,) if self._tpu else ()

    def observe(self, state: WatchState) -> TpuObservation:
        """Find the TPU in the list; one whose create was interrupted is created again."""
        try:
            self._tpu = tpu = find_tpu(self._provider, state.name)
        except TpuctlError as error:
            return TpuObservation("unknown", error=error)
        if tpu is None:
            why = self._provider.why_gone(state.name) if state.tpu else None
            return TpuObservation("none", "gone", on_purpose=bool(why), why_gone=why or "")
        known = KnownTpu(
            tpu.id,
            tpu.zone or "",
            tpu.created,
            tpu.as_of,
            usd_per_hour=tpu.usd_per_hour,
            units_per_hour=tpu.units_per_hour,
            expires=tpu.expires,
        )
        return TpuObservation("usable", tpu.state, tpu.id, known.zone, known=known, is_ours=True)

    def create(self, state: WatchState) -> None:
        """Create a TPU from the recipe, or adopt that of an interrupted create."""
        plan = self._provider.plan(replace(state.recipe, watch=state.watch))
        with self._progress() as on_progress:
            made = self._provider.create(
                plan,
                wait=True,
                timeout_s=None,
                on_interrupt=lambda: "leave",
                on_progress=on_progress,
                on_attempt=lambda attempt: None,
            )
        if isinstance(made, NotCreated):
            raise made.error

    def delete(self, state: WatchState) -> None:
        """Delete the TPU that was observed last."""
        plan = self._provider.plan_delete([state.name], None)
        if self._tpu and [each.id for each in plan.tpus] == [self._tpu.id]:
            done = self._provider.delete(plan, timeout_s=600, on_progress=silent)
            if done.failures:
                raise done.failures[0]

    def _type(self) -> str:
        return self._usable().accelerator_type

    def _workers_key(self) -> object:
        return self._usable().id

    def _reach(self) -> Reached:
        return self._provider.reach(self._usable().name, self._login)

    def _usable(self) -> Tpu:
        assert self._tpu, "only the workers of a usable TPU are asked"
        return self._tpu


def find_tpu(provider: Provider, name: str) -> Tpu | None:
    """Return the usable TPU of this name that is ours."""
    listed = provider.list(None).tpus
    return next((tpu for tpu in listed if tpu.name == name and tpu.is_usable), None)
