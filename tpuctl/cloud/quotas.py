"""How many chips the project may have in each zone; with 0, no request there can succeed."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from tpuctl.cloud.api import TpuApi
from tpuctl.cloud.journal import control_plane_at
from tpuctl.cloud.lookup import attempt, attempt_all
from tpuctl.cloud.models import ALL_ZONES, Quota
from tpuctl.errors import TpuctlError
from tpuctl.hardware.compute_engine import CLOUD_TPU, GCE, describe_on, hardware_of
from tpuctl.hardware.types import AcceleratorType, describe, zones_of
from tpuctl.hardware.types import generation as find_generation
from tpuctl.outcome import Outcome


@dataclass(frozen=True)
class ZoneLimit:
    """The quota of one generation in a zone; None is unknown.

    `on_demand_fits` and `spot_fits` are whether one TPU of the requested type may exist there.
    `on_demand_quota` and `spot_quota` are the ids of the limits that bind. `held_chips` are those
    that requests hold that were suspended or failed.
    """

    generation: str
    zone: str
    on_demand_chips: int | None
    spot_chips: int | None
    on_demand_fits: bool | None = None
    spot_fits: bool | None = None
    provider: str = CLOUD_TPU
    on_demand_quota: str | None = None
    spot_quota: str | None = None
    held_chips: int = 0


@dataclass(frozen=True)
class QuotaTable(Outcome):
    """The project's known limits; they do not tell how much is used or free."""

    project: str
    accelerator_type: str | None
    chips: int | None
    limits: tuple[ZoneLimit, ...]
    failures: tuple[TpuctlError, ...] = field(default=(), metadata={"internal": True})

    @property
    def warnings(self) -> tuple[str, ...]:
        """Whether no zone has enough quota for the type, and what holds chips for nothing."""
        held = tuple(
            f"Suspended or failed requests hold {limit.held_chips} chips of {limit.generation} in "
            f"{limit.zone}. To free them: tpuctl gc --yes"
            for limit in self.limits
            if limit.held_chips
        )
        fits = any(limit.on_demand_fits or limit.spot_fits for limit in self.limits)
        if fits or not self.limits or self.accelerator_type is None:
            return held
        return (*held, f"No zone is known to have quota for a {self.accelerator_type}.")


def read_quotas(api: TpuApi, accelerator_type: str | None = None) -> QuotaTable:
    """Read the limits of every generation, or where one TPU of a type may exist.

    Raises UsageError for an unknown type, and the errors of the quota service.
    """
    control_plane = control_plane_at(api.endpoint)
    kind = describe(accelerator_type) if accelerator_type else None
    # A type that the control plane does not have has no quota there either.
    if kind and not isinstance(
        attempt(partial(describe_on, control_plane, kind.accelerator_type)), type(kind)
    ):
        return QuotaTable(api.project, kind.accelerator_type, kind.chips, ())
    quotas, held = api.list_quotas(), _held_chips(api)
    known = sorted({quota.generation for quota in quotas}) if kind is None else [kind.generation]
    limits = (
        replace(
            _limit(quotas, generation, zone, kind),
            provider=control_plane,
            held_chips=held.get((generation, zone), 0),
        )
        for generation in known
        for zone in _zones(quotas, generation, kind, control_plane)
    )
    stated = (lim for lim in limits if (lim.on_demand_chips, lim.spot_chips) != (None, None))
    return QuotaTable(
        project=api.project,
        accelerator_type=kind.accelerator_type if kind else None,
        chips=kind.chips if kind else None,
        limits=tuple(sorted(stated, key=_best_first)),
    )


def read_all_quotas(
    apis: Sequence[TpuApi], accelerator_type: str | None = None, zone: str | None = None
) -> QuotaTable:
    """Read the limits on several control planes, in one zone or all.

    Raises the error where none answers.
    """
    read = [partial(read_quotas, api, accelerator_type) for api in apis]
    answers = attempt_all(read, at_once=len(apis))
    tables = [each for each in answers if isinstance(each, QuotaTable)]
    errors = tuple(each for each in answers if isinstance(each, TpuctlError))
    if not tables:
        raise errors[0]
    zones = zone.split(",") if zone and zone != ALL_ZONES else []
    places = {place for each in zones for place in (each, each.rpartition("-")[0])}
    limits = tuple(
        limit for table in tables for limit in table.limits if not places or limit.zone in places
    )
    return replace(tables[0], limits=limits, failures=errors)


def _held_chips(api: TpuApi) -> dict[tuple[str, str], int]:
    """Count the chips that queued resources hold which will never yield a TPU."""
    seen = attempt(partial(api.list_queued_resources, ALL_ZONES))
    held: dict[tuple[str, str], int] = {}
    for queued in () if isinstance(seen, TpuctlError) else seen.items:
        kind = attempt(partial(describe, queued.accelerator_type))
        if queued.is_dead and not isinstance(kind, TpuctlError):
            place = (kind.generation, queued.zone)
            held[place] = held.get(place, 0) + kind.chips * max(1, len(queued.nodes))
    return held


def chips_allowed(quotas: Sequence[Quota], generation: str, zone: str, *, spot: bool) -> int | None:
    """Return the quota of chips in a zone; None where it is unknown."""
    binding = binding_quota(quotas, generation, zone, spot=spot)
    return None if binding is None else _chips(binding)


def binding_quota(
    quotas: Sequence[Quota], generation: str, zone: str, *, spot: bool
) -> Quota | None:
    """Return the limit that binds in a zone; None where none is known."""
    # Within a pool, the limits of zone and region both apply. The service does not say which of its
    # pools a generation draws on, so the largest counts: 0 must mean that no request can succeed.
    pools: dict[str, Quota] = {}
    for quota in quotas:
        is_here = quota.place in (zone, zone.rpartition("-")[0])
        if is_here and quota.generation == generation and quota.spot == spot:
            pools[quota.pool] = min(quota, pools.get(quota.pool, quota), key=_chips)
    return max(pools.values(), key=_chips, default=None)


def _chips(quota: Quota) -> int:
    generation = find_generation(quota.generation)
    per_chip = generation.tensorcores_per_chip if generation and quota.counts == "cores" else 1
    return quota.limit // per_chip


def _zones(
    quotas: Sequence[Quota], generation: str, kind: AcceleratorType | None, control_plane: str
) -> tuple[str, ...]:
    """Return the zones that have a generation or type, and other places with a limit."""
    zones = set(kind.zones if kind else zones_of(generation))
    if control_plane == GCE and (hardware := hardware_of(generation)):
        zones = set(hardware.zones)
    covered = zones | {zone.rpartition("-")[0] for zone in zones}
    places = {quota.place for quota in quotas if quota.generation == generation}
    return tuple(zones | (places - covered))


def _limit(
    quotas: Sequence[Quota], generation: str, zone: str, kind: AcceleratorType | None
) -> ZoneLimit:
    found = [binding_quota(quotas, generation, zone, spot=spot) for spot in (False, True)]
    on_demand, spot = (None if quota is None else _chips(quota) for quota in found)
    ids = [None if quota is None else quota.id for quota in found]
    fits = [
        None if kind is None or chips is None else chips >= kind.chips
        for chips in (on_demand, spot)
    ]
    return ZoneLimit(
        generation,
        zone,
        on_demand,
        spot,
        on_demand_fits=fits[0],
        spot_fits=fits[1],
        on_demand_quota=ids[0],
        spot_quota=ids[1],
    )


def _best_first(limit: ZoneLimit) -> tuple[str, int, str]:
    return limit.generation, -max(limit.on_demand_chips or 0, limit.spot_chips or 0), limit.zone
