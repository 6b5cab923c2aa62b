"""Plan a watch: the job to run, and the options to create the same TPU again."""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tpuctl.cloud.clone import clone_options
from tpuctl.cloud.connect import Cloud, chosen_zone
from tpuctl.cloud.lookup import Resource, find
from tpuctl.cloud.models import AUTO_ZONE, Node, QueuedResource, shared
from tpuctl.cloud.plan import CreateOptions, plan_create, why_disks_elsewhere
from tpuctl.errors import AlreadyExistsError, InvalidInputError, NotFoundError, UsageError
from tpuctl.hardware.compute_engine import list_price, model_of
from tpuctl.outcome import Outcome
from tpuctl.remote.fleet import require_extra
from tpuctl.remote.run import plan_command
from tpuctl.settings import load_settings
from tpuctl.supervise.actions import Supervised, find_tpu
from tpuctl.supervise.models import JobSpec, WatchState
from tpuctl.supervise.state import StateFile, job_digest


@dataclass(frozen=True)
class WatchOptions:
    """Options for the TPUs that a watch creates; None means the same as the TPU has now.

    `zones` are tried in that order; an empty tuple means every zone that has the type. `look_in` is
    the zone of the existing TPU.
    """

    look_in: str | None = None
    zones: tuple[str, ...] | None = None
    accelerator_type: str | None = None
    spot: bool | None = None
    queued: bool | None = None
    ttl_s: float | None = None
    max_usd: float | None = None
    runtime_version: str | None = None
    provider: str | None = None
    flex: bool | None = None
    reservation: str | None = None
    setup: str | None = None

    @property
    def given(self) -> dict[str, Any]:
        """The options that were given, by the names of CreateOptions; a model replaces another."""
        given = {k: v for k, v in asdict(self).items() if k != "look_in" and v is not None}
        models = {"spot": False, "flex": False, "reserved": False, "reservation": None}
        return {**(models if any(map(given.get, models)) else {}), **given}


def resolve_watch_zones(
    zone: str | Sequence[str] | None,
) -> tuple[str | None, tuple[str, ...] | None]:
    """Return the zone to look for the TPU in, and the zones to create it in (None: the same)."""
    if zone is not None and not isinstance(zone, str):
        return None, tuple(zone)
    chosen = chosen_zone(zone)
    if chosen is None and load_settings({"zone": zone})["zone"] == AUTO_ZONE:
        return None, ()
    return chosen, (chosen,) if chosen else None


@dataclass(frozen=True)
class WatchPlan(Outcome):
    """The TPU and the job that a watch would supervise, and the price of a replacement.

    `state` is that of the TPU, None if it does not exist. `goes_on_with` is a running job that an
    earlier watch started.
    """

    name: str
    zone: str | None
    state: str | None
    accelerator_type: str
    spot: bool
    queued: bool
    zones: tuple[str, ...]
    usd_per_hour: float | None
    command: tuple[str, ...]
    code: str | None
    folder: str | None
    max_crashes: int
    goes_on_with: str | None
    watch_state: WatchState = field(metadata={"internal": True})
    spec: JobSpec = field(metadata={"internal": True})
    warnings: tuple[str, ...] = field(default=(), metadata={"internal": True})
    hosted_by: str | None = field(default=None, metadata={"internal": True})
    units_per_hour: float | None = field(default=None, metadata={"internal": True})

    @property
    def creates_now(self) -> bool:
        """Whether there is no TPU yet, so that the watch starts by creating one."""
        return self.state is None and not self.watch_state.attempts


def plan_job(
    argv: Sequence[str],
    *,
    env: Sequence[str] = (),
    code: Path | None = None,
    folder: str | None = None,
    max_crashes: int = 3,
    hang_after_s: float | None = None,
    bad_host_after_s: float = 600.0,
    include_secrets: bool = False,
) -> JobSpec:
    """Check the job's options; code is copied to a folder of the same name, and run there."""
    command = plan_command(argv, env=env, folder=folder)
    source = None
    if code is not None:
        source = code.expanduser().resolve()
        if not source.is_dir():
            raise NotFoundError(
                f"{code} is not a folder.", hint="--code takes the folder with your code."
            )
        folder = folder or source.name or "code"
    if max_crashes < 1:
        raise UsageError("--max-crashes must be at least 1.")
    return JobSpec(
        command.argv,
        command.env,
        None if source is None else str(source),
        folder,
        max_crashes,
        hang_after_s,
        bad_host_after_s,
        include_secrets,
    )


def plan_watch(
    cloud: Cloud,
    name: str,
    options: WatchOptions,
    spec: JobSpec,
    *,
    store: StateFile,
    fresh: bool = False,
    check: Callable[[CreateOptions], None] = lambda options: None,
) -> WatchPlan:
    """Decide where the watch starts; only reads. `check` refuses options without an effect.

    Raises NotFoundError if there is no TPU and no type to create, AlreadyExistsError if an
    earlier watch runs another job, and MissingExtraError.
    """
    require_extra(for_folders=spec.code is not None)
    state = _interrupted(name, spec, store, fresh=fresh)
    resource = None if state else _existing(cloud, name, options)
    if state is None:
        state = WatchState(uuid.uuid4().hex, name, _recipe(name, resource, options))
    else:
        state = replace(state, recipe=replace(state.recipe, **options.given))
    recipe = state.recipe
    check(recipe)
    plan_create(recipe)
    zones = (state.tpu.zone,) if state.tpu else (resource.zone,) if resource else recipe.zones
    price = None
    if zones:
        kind, model = recipe.accelerator_type, model_of(recipe)
        price = list_price(recipe.provider, kind, zones[0], model)
    elsewhere = ((zone, why_disks_elsewhere(zone, recipe.data_disks)) for zone in recipe.zones)
    return WatchPlan(
        **_known(state, spec),
        zone=zones[0] if zones else None,
        state=resource.state if resource else ("READY" if state.tpu else None),
        usd_per_hour=price,
        warnings=tuple(f"Skipping {zone}: {why}." for zone, why in elsewhere if why),
    )


def plan_on_provider(
    provider: Supervised,
    name: str,
    options: WatchOptions,
    spec: JobSpec,
    *,
    store: StateFile,
    fresh: bool = False,
) -> WatchPlan:
    """Decide where the watch of a TPU of another provider starts; only reads.

    Raises UnsupportedError for an option that the provider would ignore.
    """
    require_extra(for_folders=spec.code is not None)
    state, found = _interrupted(name, spec, store, fresh=fresh), find_tpu(provider, name)
    known = provider.recipe(name) or (state.recipe if state else None)
    if known is None and not options.accelerator_type:
        title = provider.abilities.title
        hint = "Add --accelerator-type."
        raise NotFoundError(
            f"TPU {name} not found on {title}, and no type to create was given.", hint=hint
        )
    recipe = replace(known or CreateOptions(name, ""), **options.given)
    provider.abilities.check(recipe)
    state = replace(state or WatchState(uuid.uuid4().hex, name, recipe), recipe=recipe)
    return WatchPlan(
        **_known(state, spec),
        zone=None,
        state=found.state if found else None,
        usd_per_hour=found.usd_per_hour if found else None,
        hosted_by=provider.abilities.title,
        units_per_hour=found.units_per_hour if found else None,
    )


def _known(state: WatchState, spec: JobSpec) -> dict[str, Any]:
    """Return the fields of a plan that the state and the job say."""
    known = {**shared(WatchPlan, state.recipe), **shared(WatchPlan, spec), "name": state.name}
    resumes = state.open.job if state.open else None
    return {**known, "goes_on_with": resumes, "watch_state": state, "spec": spec}


def _interrupted(name: str, spec: JobSpec, store: StateFile, *, fresh: bool) -> WatchState | None:
    """Return the state of an interrupted watch of the same job."""
    try:
        saved = store.load()
    except InvalidInputError:
        if not fresh:
            raise
        return None
    if saved is None or saved.is_over:
        return None
    if fresh:
        # The id stays, because the watch knows by it which jobs on the workers are its own.
        return replace(saved.memory, open=None, attempts=(), end=None)
    if saved.order != job_digest(spec):
        raise AlreadyExistsError(
            f"An interrupted watch of {name} ran a different job: {saved.command}",
            hint="Repeat that command to resume it; --fresh ends that job and starts this one.",
        )
    return saved.memory


def _existing(cloud: Cloud, name: str, options: WatchOptions) -> Resource | None:
    try:
        return find(cloud.api, name, options.look_in)
    except NotFoundError as error:
        if options.accelerator_type:
            return None
        raise NotFoundError(
            f"{error} To create it, tpuctl needs its type.",
            hint="Add --accelerator-type v5e-8 --zone auto, and --spot for a spot TPU.",
        ) from error


def _recipe(name: str, resource: Resource | None, options: WatchOptions) -> CreateOptions:
    given = options.given
    if isinstance(resource, Node):
        return replace(clone_options(resource), **given)
    if isinstance(resource, QueuedResource) and resource.requested:
        return replace(clone_options(resource.requested), name=name, **given)
    if options.zones is None:
        raise UsageError(
            f"No zone to create {name} in: --zone is not given, and no zone is set.",
            hint="--zone auto tries every zone that has the type.",
        )
    return CreateOptions(name, **given)
