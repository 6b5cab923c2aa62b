"""Choose the zones for a create: which have the type, at what price, quota and traffic cost."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tpuctl.cloud.api import TpuApi
from tpuctl.cloud.lookup import ZONES_AT_ONCE, attempt, attempt_all, find
from tpuctl.cloud.models import AUTO_ZONE, Quota, region_of
from tpuctl.cloud.plan import CreatePlan, Offer, offer_in, offer_warnings
from tpuctl.cloud.quotas import chips_allowed
from tpuctl.codec import load_facts
from tpuctl.errors import InvalidInputError, NotFoundError, TpuctlError, UsageError, ZoneHiddenError
from tpuctl.hardware.compute_engine import describe_on
from tpuctl.hardware.types import AcceleratorType
from tpuctl.runtime.live import live_machine
from tpuctl.runtime.machine import Machine
from tpuctl.settings import load_settings
from tpuctl.units import format_usd

_EGRESS = Path(__file__).parent / "data" / "egress.json"
_TIB_IN_GIB = 1024


def join_zone_options(zone: str | None, zones: str | None) -> str | tuple[str, ...] | None:
    """Read `--zone Z` or `--zones A,B`; raises UsageError when both are given."""
    if zone and zones:
        raise UsageError("--zone and --zones exclude each other.", hint="Give one of them.")
    return tuple(name.strip() for name in zones.split(",")) if zones is not None else zone


def resolve_zones(zone: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the zones to try: those given or the one from the settings; empty means auto.

    Raises UsageError where no zone is given or set.
    """
    if zone is not None and not isinstance(zone, str):
        return tuple(zone)
    chosen = load_settings({"zone": zone})["zone"]
    if not chosen:
        raise UsageError(
            "No zone: --zone is not given, and no zone is set.",
            hint="--zone auto tries every zone that has the type; or: export TPUCTL_ZONE=Z",
        )
    return () if chosen == AUTO_ZONE else (chosen,)


def complete_plan(api: TpuApi, plan: CreatePlan) -> CreatePlan:
    """Add to a plan what only the service knows: zones, types and quotas; only reads.

    Without zones, all are searched. A zone that our data does not list for the type is asked for
    its types. Raises InvalidInputError where no zone has the type.
    """
    kind = describe_on(plan.provider, plan.accelerator_type)
    if not plan.options.zones:
        return _find_zones(api, plan, kind)
    unlisted = [zone for zone in plan.options.zones if zone not in kind.zones]
    return plan.with_warnings(*(note for zone in unlisted for note in _check_zone(api, kind, zone)))


def rank_offers(offers: Sequence[Offer]) -> tuple[Offer, ...]:
    """Sort by price, then by quota; unknown prices come last, skipped zones after them."""

    def key(offer: Offer) -> tuple[bool, float, float, str]:
        price = float("inf") if offer.usd_per_hour is None else offer.usd_per_hour
        return offer.not_tried is not None, price, -(offer.quota_chips or 0), offer.zone

    return tuple(sorted(offers, key=key))


def apply_quota(
    offer: Offer, quotas: Sequence[Quota], kind: AcceleratorType, spot: bool, *, flex: bool = False
) -> Offer:
    """Add the project's quota in the zone, and skip the zone where it is too small."""
    # Flex-start takes the chips of the spot quota first, then the others.
    pools = (True, False) if flex else (spot,)
    known = (chips_allowed(quotas, kind.generation, offer.zone, spot=each) for each in pools)
    allowed = max((chips for chips in known if chips is not None), default=None)
    if allowed is None or allowed >= kind.chips or offer.not_tried:
        return replace(offer, quota_chips=allowed)
    needs = "" if allowed == 0 else f", and a {kind.accelerator_type} has {kind.chips}"
    return replace(offer, quota_chips=allowed, not_tried=f"quota {allowed} chips{needs}")


def add_namesakes(api: TpuApi, plan: CreatePlan) -> CreatePlan:
    """Warn in a dry run of each zone that the user named and that has a TPU of this name."""
    for offer in plan.to_try if plan.options.zones else ():
        with suppress(TpuctlError):
            find(api, plan.name, offer.zone)
            plan = plan.with_warnings(
                f"{plan.name} already exists in {offer.zone}; only a create of it that was "
                "interrupted can be repeated."
            )
    return plan


def add_quotas(api: TpuApi, plan: CreatePlan) -> CreatePlan:
    """Add the quotas of zones that the user named, to a plan that is only shown; only reads."""
    if not plan.options.zones or plan.options.reservation or plan.reserved:
        return plan
    kind = describe_on(plan.provider, plan.accelerator_type)
    read = attempt(api.list_quotas)
    quotas = () if isinstance(read, TpuctlError) else read
    offers, notes = [], []
    for offer in plan.offers:
        known = apply_quota(offer, quotas, kind, plan.spot, flex=plan.flex)
        offers.append(replace(offer, quota_chips=known.quota_chips))
        if known.not_tried != offer.not_tried:
            notes.append(f"{offer.zone} will refuse it: {known.not_tried}.")
        elif known.quota_chips is None:
            none = f"the service states none of {kind.generation} there"
            why = read if isinstance(read, TpuctlError) else none
            notes.append(f"The quota in {offer.zone} is unknown: {str(why).rstrip('.')}.")
    return replace(plan, offers=tuple(offers)).with_warnings(*notes)


def _find_zones(api: TpuApi, plan: CreatePlan, kind: AcceleratorType) -> CreatePlan:
    zones = api.list_zones()
    tasks = [partial(api.list_accelerator_types, zone) for zone in zones]
    results = dict(zip(zones, attempt_all(tasks, at_once=ZONES_AT_ONCE), strict=True))
    # A zone that the project may not see is not worth a warning: most projects have some.
    unanswered = {
        zone: result
        for zone, result in results.items()
        if isinstance(result, TpuctlError) and not isinstance(result, ZoneHiddenError)
    }
    having = [
        zone
        for zone, result in results.items()
        if not isinstance(result, TpuctlError) and kind.accelerator_type in result
    ]
    if not having:
        raise next(iter(unanswered.values()), None) or InvalidInputError(
            f"No zone visible to this project has {plan.accelerator_type}.",
            hint=f"tpuctl types {plan.accelerator_type}",
        )
    read = attempt(api.list_quotas)
    quotas = () if isinstance(read, TpuctlError) else read
    offers: Iterable[Offer] = (offer_in(zone, kind, plan.options) for zone in having)
    if not plan.options.reservation:
        offers = (apply_quota(offer, quotas, kind, plan.spot, flex=plan.flex) for offer in offers)
    ranked = rank_offers(tuple(offers))
    missed = [f"No answer from {', '.join(unanswered)}: not searched."] if unanswered else []
    unread = [f"quotas are unknown: {read}"] if isinstance(read, TpuctlError) else []
    return replace(
        plan,
        offers=ranked,
        warnings=(*plan.warnings, *offer_warnings(kind, ranked), *missed),
        reasons=(*plan.reasons, f"{len(having)} of {len(zones)} zones have it", *unread),
    )


def _check_zone(api: TpuApi, kind: AcceleratorType, zone: str) -> list[str]:
    """Ask a zone whether it has a type; raises InvalidInputError when it does not."""
    try:
        types = api.list_accelerator_types(zone)
    except (ZoneHiddenError, NotFoundError):
        raise
    except TpuctlError as error:
        return [f"Could not check whether {zone} has {kind.accelerator_type}: {error}"]
    if kind.accelerator_type in types:
        return []
    raise InvalidInputError(
        f"{zone} does not have {kind.accelerator_type}; it has "
        f"{', '.join(sorted(types)) or 'no TPUs'}.",
        hint=f"Zones known to have it: {', '.join(kind.zones)}; or --zone auto",
    )


@dataclass(frozen=True)
class DataSource:
    """Something that the TPU will read from; `location` is a region or a multi-region."""

    name: str
    location: str


def add_traffic_warnings(api: TpuApi, plan: CreatePlan, *, bucket: str | None) -> CreatePlan:
    """Warn where the TPU would be far from the bucket, given or set, or from this machine."""
    zones = tuple(offer.zone for offer in plan.to_try)
    bucket = load_settings({"bucket": bucket})["bucket"]
    return plan.with_warnings(*find_traffic(api, live_machine(), zones, bucket=bucket))


def find_traffic(
    api: TpuApi, machine: Machine, zones: tuple[str, ...], *, bucket: str | None
) -> tuple[str, ...]:
    """Return warnings about traffic from a bucket or from this machine; never raises."""
    sources, notes = [], []
    if bucket:
        name = bucket.removeprefix("gs://").partition("/")[0]
        try:
            sources.append(DataSource(f"gs://{name}", api.bucket_location(name)))
        except TpuctlError as error:
            notes.append(f"Could not find the location of gs://{name}: {error}")
    if zone := machine.metadata("instance/zone"):
        sources.append(DataSource("This machine", region_of(zone.rpartition("/")[2])))
    return (*notes, *traffic_warnings(zones, tuple(sources)))


def traffic_warnings(zones: tuple[str, ...], sources: tuple[DataSource, ...]) -> tuple[str, ...]:
    """Warn of each source that some of the zones are far from, with the price of reading it."""
    notes = []
    for source in sources:
        far = sorted({region_of(zone) for zone in zones if is_far(source.location, zone)})
        if not far:
            continue
        usd_per_gib = max(egress_usd_per_gib(source.location, region) for region in far)
        notes.append(
            f"{source.name} is in {source.location}, not in {', '.join(far)}: reading it from the "
            f"TPU is slow and billed as traffic between regions, about {format_usd(usd_per_gib)} "
            f"per GiB ({format_usd(usd_per_gib * _TIB_IN_GIB)} per TiB; as of "
            f"{_egress()['as_of']})."
        )
    return tuple(notes)


def is_far(location: str, zone: str) -> bool:
    """Whether traffic from a region or multi-region to a zone crosses regions."""
    region = region_of(zone)
    parts = _egress()["made_of"].get(location)
    if parts is None:
        return location != region
    return not any(
        region == part or (part.endswith("-") and region.startswith(part)) for part in parts
    )


def egress_usd_per_gib(location: str, region: str) -> float:
    """Return the price of a GiB between two places in US dollars; dated, and rounded up."""
    ends = [_continent(place) for place in (location, region)]
    return float(next(rate["usd_per_gib"] for rate in _egress()["rates"] if _covers(rate, ends)))


def _covers(rate: dict[str, Any], ends: list[str]) -> bool:
    both, one = rate.get("both_in", ends), rate.get("one_in", ends)
    return all(end in both for end in ends) and any(end in one for end in ends)


def _continent(location: str) -> str:
    parts = _egress()["made_of"].get(location)
    return str(parts[0] if parts else location).partition("-")[0]


def _egress() -> dict[str, Any]:
    return load_facts(_EGRESS)
