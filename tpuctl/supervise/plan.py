"""What a TPU was asked for with, read off the TPU itself, so that another like it can be made."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tpuctl.cloud import models
from tpuctl.cloud.connect import Cloud
from tpuctl.cloud.lookup import Thing, find
from tpuctl.cloud.models import Node, QueuedResource
from tpuctl.cloud.placement import why_not_in
from tpuctl.cloud.plan import STARTUP_SCRIPT, CreateOptions, plan_create
from tpuctl.cloud.tpu import known_type
from tpuctl.cloud.ttl import own_script
from tpuctl.errors import AlreadyExistsError, InvalidInputError, NotFoundError, UsageError
from tpuctl.hardware.types import usd_per_hour
from tpuctl.outcome import Outcome
from tpuctl.remote.fleet import require_extra
from tpuctl.remote.run import plan_command
from tpuctl.supervise.memory import Store, digest
from tpuctl.supervise.models import Memory, Order

_OURS = "tpuctl-"
_MOST_DIGITS = 15


def options_like(node: Node) -> CreateOptions:
    """The options of a create that makes such a TPU, in the same zone.

    Its limits are those that it was given. A disk can only be had where it is.
    """
    ttl_s, max_usd = _limits(node)
    return CreateOptions(
        name=node.name,
        accelerator_type=node.accelerator_type,
        zones=(node.zone,),
        spot=node.spot,
        reserved=node.reserved,
        queued=node.queued_resource is not None,
        ttl_s=ttl_s,
        max_usd=max_usd,
        runtime_version=node.runtime_version,
        network=node.network,
        subnetwork=node.subnetwork,
        internal_ip=not node.external_ips,
        service_account=node.service_account,
        labels=_foreign(node.labels),
        tags=node.tags,
        startup_script=own_script(node.metadata.get(STARTUP_SCRIPT)),
        metadata={k: v for k, v in _foreign(node.metadata).items() if k != STARTUP_SCRIPT},
        data_disks=node.data_disks,
    )


def _limits(node: Node) -> tuple[float | None, float | None]:
    """The life time (seconds) and the budget (dollars) that it was asked for with.

    A budget was turned into a life time: one that is shorter than that was given besides.
    """
    ttl_s, cents = (_number(node.labels.get(key)) for key in (models.TTL_S, models.MAX_USD_CENTS))
    if cents is None:
        return ttl_s, None
    known = known_type(node.accelerator_type) is not None
    price = usd_per_hour(node.accelerator_type, node.zone, spot=node.spot) if known else None
    is_derived = ttl_s is not None and price and ttl_s >= int(cents / 100 / price * 3600) - 1
    return (None if is_derived else ttl_s), cents / 100


def _foreign(known: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in known.items() if not key.startswith(_OURS)}


def _number(text: str | None) -> float | None:
    is_number = text and text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS
    return float(text) if text and is_number else None


@dataclass(frozen=True)
class Wishes:
    """What another TPU shall be like, where it is not to be like the one of before.

    `zones` are tried in that order; none at all mean: find one. `look_in` is where the TPU is.
    """

    look_in: str | None = None
    zones: tuple[str, ...] | None = None
    accelerator_type: str | None = None
    spot: bool | None = None
    queued: bool | None = None
    ttl_s: float | None = None
    max_usd: float | None = None
    runtime_version: str | None = None

    @property
    def given(self) -> dict[str, Any]:
        """Those that were given, by the names of CreateOptions."""
        known = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {k: v for k, v in known.items() if k != "look_in" and v is not None}


@dataclass(frozen=True)
class WatchPlan(Outcome):
    """What a watch would look after, and make again at what price.

    `state` is the TPU's now, None where there is none. `goes_on_with` is the job that an earlier
    watch has started.
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
    memory: Memory = field(metadata={"internal": True})
    order: Order = field(metadata={"internal": True})
    notes: tuple[str, ...] = field(default=(), metadata={"internal": True})

    @property
    def warnings(self) -> tuple[str, ...]:
        """What stands in the way of another TPU."""
        return self.notes


def plan_order(
    argv: Sequence[str],
    *,
    env: Sequence[str] = (),
    code: Path | None = None,
    folder: str | None = None,
    max_crashes: int = 3,
    hang_after_s: float | None = None,
    bad_host_after_s: float = 600.0,
) -> Order:
    """Check what is to be run; the code is copied to a folder of its own name, and run there."""
    command = plan_command(argv, env=env, folder=folder)
    place = None
    if code is not None:
        place = code.expanduser().resolve()
        if not place.is_dir():
            raise NotFoundError(
                f"There is no folder {code} to copy.", hint="--code takes the folder of your code."
            )
        folder = folder or place.name or "code"
    if max_crashes < 1:
        raise UsageError("--max-crashes must be at least 1.")
    return Order(
        command.argv,
        command.env,
        None if place is None else str(place),
        folder,
        max_crashes,
        hang_after_s,
        bad_host_after_s,
    )


def plan_watch(
    cloud: Cloud, name: str, wishes: Wishes, order: Order, *, store: Store, fresh: bool = False
) -> WatchPlan:
    """Find out where to begin; only reads.

    Raises NotFoundError where there is no TPU and nothing says what kind to make,
    AlreadyExistsError where an earlier watch runs another job, and MissingExtraError.
    """
    require_extra(for_folders=order.code is not None)
    memory = _left_over(name, order, store, fresh=fresh)
    seen = None if memory else _seen(cloud, name, wishes)
    if memory is None:
        memory = Memory(uuid.uuid4().hex, name, _recipe(name, seen, wishes))
    else:
        memory = replace(memory, recipe=replace(memory.recipe, **wishes.given))
    recipe = memory.recipe
    plan_create(recipe)
    zones = (memory.tpu.zone,) if memory.tpu else (seen.zone,) if seen else recipe.zones
    price = usd_per_hour(recipe.accelerator_type, zones[0], spot=recipe.spot) if zones else None
    return WatchPlan(
        name=name,
        zone=zones[0] if zones else None,
        state=seen.state if seen else ("READY" if memory.tpu else None),
        accelerator_type=recipe.accelerator_type,
        spot=recipe.spot,
        queued=recipe.queued,
        zones=recipe.zones,
        usd_per_hour=price,
        command=order.command,
        code=order.code,
        folder=order.folder,
        max_crashes=order.max_crashes,
        goes_on_with=memory.open.job if memory.open else None,
        memory=memory,
        order=order,
        notes=_notes(recipe),
    )


def _left_over(name: str, order: Order, store: Store, *, fresh: bool) -> Memory | None:
    """The memory of a watch that was interrupted, if it was of the same job."""
    try:
        kept = store.load()
    except InvalidInputError:
        if not fresh:
            raise
        return None
    if kept is None or kept.is_over:
        return None
    if fresh:
        # It keeps its id: by that the jobs are known that it has left behind.
        return replace(kept.memory, open=None, attempts=())
    if kept.order != digest(order):
        raise AlreadyExistsError(
            f"An earlier watch of {name} was interrupted, and runs another job: {kept.command}",
            hint="The same command goes on with that; --fresh ends that job and begins this one.",
        )
    return kept.memory


def _seen(cloud: Cloud, name: str, wishes: Wishes) -> Thing | None:
    try:
        return find(cloud.api, name, wishes.look_in)
    except NotFoundError as error:
        if wishes.accelerator_type:
            return None
        raise NotFoundError(
            f"{error} And nothing says what kind to make.",
            hint="Say it: --type v5e-8 --zone auto, and --spot where that will do.",
        ) from error


def _recipe(name: str, seen: Thing | None, wishes: Wishes) -> CreateOptions:
    given = wishes.given
    if isinstance(seen, Node):
        return replace(options_like(seen), **given)
    if isinstance(seen, QueuedResource) and seen.asked:
        return replace(options_like(seen.asked), name=name, **given)
    if wishes.zones is None:
        raise UsageError(
            f"Where is {name} to be made? There is no --zone, and none is set.",
            hint="--zone auto tries every zone that has the type.",
        )
    return CreateOptions(name, **given)


def _notes(recipe: CreateOptions) -> tuple[str, ...]:
    """Where another TPU cannot be made, though it was to be tried there."""
    reasons = ((zone, why_not_in(zone, recipe.data_disks)) for zone in recipe.zones)
    return tuple(f"Another one is not tried in {zone}: {why}." for zone, why in reasons if why)
