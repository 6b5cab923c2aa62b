"""How many chips the project may have in each zone; with 0, no request there can succeed."""

from collections.abc import Sequence
from dataclasses import dataclass

from tpuctl.cloud.api import TpuApi
from tpuctl.cloud.models import Quota
from tpuctl.hardware.types import AcceleratorType, describe, zones_of
from tpuctl.hardware.types import generation as find_generation
from tpuctl.outcome import Outcome


@dataclass(frozen=True)
class ZoneLimit:
    """The quota of one generation in a zone; None is unknown.

    `on_demand_fits` and `spot_fits` are whether one TPU of the requested type may exist there.
    """

    generation: str
    zone: str
    on_demand_chips: int | None
    spot_chips: int | None
    on_demand_fits: bool | None = None
    spot_fits: bool | None = None


@dataclass(frozen=True)
class QuotaTable(Outcome):
    """The project's known limits; they do not tell how much is used or free."""

    project: str
    accelerator_type: str | None
    chips: int | None
    limits: tuple[ZoneLimit, ...]

    @property
    def warnings(self) -> tuple[str, ...]:
        """Whether no zone has enough quota for the type."""
        fits = any(limit.on_demand_fits or limit.spot_fits for limit in self.limits)
        if fits or not self.limits or self.accelerator_type is None:
            return ()
        return (f"No zone is known to have quota for a {self.accelerator_type}.",)


def read_quotas(api: TpuApi, accelerator_type: str | None = None) -> QuotaTable:
    """Read the limits of every generation, or where one TPU of a type may exist.

    Raises UsageError for an unknown type, and the errors of the quota service.
    """
    kind = describe(accelerator_type) if accelerator_type else None
    quotas = api.list_quotas()
    known = sorted({quota.generation for quota in quotas}) if kind is None else [kind.generation]
    limits = (
        _limit(quotas, generation, zone, kind)
        for generation in known
        for zone in _zones(quotas, generation, kind)
    )
    stated = (lim for lim in limits if (lim.on_demand_chips, lim.spot_chips) != (None, None))
    return QuotaTable(
        project=api.project,
        accelerator_type=kind.accelerator_type if kind else None,
        chips=kind.chips if kind else None,
        limits=tuple(sorted(stated, key=_best_first)),
    )


def chips_allowed(quotas: Sequence[Quota], generation: str, zone: str, *, spot: bool) -> int | None:
    """Return the quota of chips in a zone; None where it is unknown."""
    # Within a pool, the limits of zone and region both apply. The service does not say which of its
    # pools a generation draws on, so the largest counts: 0 must mean that no request can succeed.
    pools: dict[str, int] = {}
    for quota in quotas:
        is_here = quota.place in (zone, zone.rpartition("-")[0])
        if is_here and quota.generation == generation and quota.spot == spot:
            pools[quota.pool] = min(_chips(quota), pools.get(quota.pool, _chips(quota)))
    return max(pools.values(), default=None)


def _chips(quota: Quota) -> int:
    generation = find_generation(quota.generation)
    per_chip = generation.tensorcores_per_chip if generation and quota.counts == "cores" else 1
    return quota.limit // per_chip


def _zones(
    quotas: Sequence[Quota], generation: str, kind: AcceleratorType | None
) -> tuple[str, ...]:
    """Return the zones that have a generation or type, and other places with a limit."""
    zones = set(kind.zones if kind else zones_of(generation))
    covered = zones | {zone.rpartition("-")[0] for zone in zones}
    places = {quota.place for quota in quotas if quota.generation == generation}
    return tuple(zones | (places - covered))


def _limit(
    quotas: Sequence[Quota], generation: str, zone: str, kind: AcceleratorType | None
) -> ZoneLimit:
    on_demand = chips_allowed(quotas, generation, zone, spot=False)
    spot = chips_allowed(quotas, generation, zone, spot=True)
    if kind is None:
        return ZoneLimit(generation, zone, on_demand, spot)
    fits = (None if chips is None else chips >= kind.chips for chips in (on_demand, spot))
    return ZoneLimit(generation, zone, on_demand, spot, *fits)


def _best_first(limit: ZoneLimit) -> tuple[str, int, str]:
    return limit.generation, -max(limit.on_demand_chips or 0, limit.spot_chips or 0), limit.zone
