"""Where to ask for a TPU: the zones that have the type, cheapest first."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from tpuctl.cloud.api import TpuApi
from tpuctl.cloud.lookup import attempt, attempt_all
from tpuctl.cloud.models import Quota
from tpuctl.cloud.placement import find_traffic
from tpuctl.cloud.plan import CreateOptions, CreatePlan, Offer, offer_in, offer_notes, plan_create
from tpuctl.cloud.quotas import chips_allowed
from tpuctl.errors import InvalidInputError, NotFoundError, TpuctlError, UsageError, ZoneHiddenError
from tpuctl.hardware.types import AcceleratorType, describe
from tpuctl.runtime.live import live_machine
from tpuctl.settings import load_settings

AUTO = "auto"
"""What stands for every zone that has the type, where a zone is asked for."""

_ZONES_AT_ONCE = 50


def zones_to_try(zone: str | None, zones: Sequence[str] = ()) -> tuple[str, ...]:
    """The zones given, or the one that is set; none when they are to be found.

    Raises UsageError where nothing says where.
    """
    if zone and zones:
        raise UsageError("--zone and --zones exclude each other.", hint="Give one of them.")
    if zones:
        return tuple(name.strip() for name in zones)
    chosen = load_settings({"zone": zone})["zone"]
    if not chosen:
        raise UsageError(
            "Where? There is no --zone, and none is set.",
            hint="--zone auto tries every zone that has the type; or: export TPUCTL_ZONE=Z",
        )
    return () if chosen == AUTO else (chosen,)


def plan_with_service(api: TpuApi, options: CreateOptions) -> CreatePlan:
    """Plan a create, asking the service what our dated facts do not say; only reads.

    Without zones every zone is looked at. A zone that our facts do not give the type is asked for
    its types. Raises what `plan_create` raises, and InvalidInputError where no zone has the type.
    """
    plan = plan_create(options)
    kind = describe(options.accelerator_type)
    return _check_zones(api, plan, kind) if options.zones else _find_zones(api, plan, kind)


def with_traffic(api: TpuApi, plan: CreatePlan, *, bucket: str | None) -> CreatePlan:
    """Add warnings where the TPU would be far from the bucket given or set, or from here."""
    zones = tuple(offer.zone for offer in plan.to_try)
    bucket = load_settings({"bucket": bucket})["bucket"]
    notes = find_traffic(api, live_machine(), zones, bucket=bucket)
    return plan.warned(*notes)


def rank(offers: Sequence[Offer]) -> tuple[Offer, ...]:
    """Put the cheapest first, then where most is allowed; what is not known comes last."""

    def key(offer: Offer) -> tuple[bool, float, float, str]:
        price = float("inf") if offer.usd_per_hour is None else offer.usd_per_hour
        return offer.not_tried is not None, price, -(offer.quota_chips or 0), offer.zone

    return tuple(sorted(offers, key=key))


def with_quota(offer: Offer, quotas: Sequence[Quota], kind: AcceleratorType, spot: bool) -> Offer:
    """Add what the project may have in the zone; where that is too little, it is no use to ask."""
    allowed = chips_allowed(quotas, kind.generation, offer.zone, spot=spot)
    if allowed is None or allowed >= kind.chips or offer.not_tried:
        return replace(offer, quota_chips=allowed)
    needs = "" if allowed == 0 else f", and a {kind.accelerator_type} has {kind.chips}"
    return replace(offer, quota_chips=allowed, not_tried=f"quota {allowed} chips{needs}")


def _find_zones(api: TpuApi, plan: CreatePlan, kind: AcceleratorType) -> CreatePlan:
    zones = api.list_zones()
    tasks = [partial(api.list_accelerator_types, zone) for zone in zones]
    asked = dict(zip(zones, attempt_all(tasks, at_once=_ZONES_AT_ONCE), strict=True))
    silent = {zone: types for zone, types in asked.items() if isinstance(types, TpuctlError)}
    having = [
        zone
        for zone, types in asked.items()
        if not isinstance(types, TpuctlError) and kind.accelerator_type in types
    ]
    if not having:
        raise _nowhere(plan, silent)
    read = attempt(api.list_quotas)
    quotas = () if isinstance(read, TpuctlError) else read
    offers = rank(
        [with_quota(offer_in(zone, kind, plan.options), quotas, kind, plan.spot) for zone in having]
    )
    # A zone that the project may not see is no news in a search of all of them.
    missed = [zone for zone, error in silent.items() if not isinstance(error, ZoneHiddenError)]
    notes = [f"No answer from {', '.join(missed)}: not searched."] if missed else []
    unread = [f"quotas are not known: {read}"] if isinstance(read, TpuctlError) else []
    return replace(
        plan,
        offers=offers,
        notes=(*plan.notes, *offer_notes(kind, offers), *notes),
        because=(*plan.because, f"{len(having)} of {len(zones)} zones have it", *unread),
    )


def _nowhere(plan: CreatePlan, silent: dict[str, TpuctlError]) -> TpuctlError:
    for error in silent.values():
        if not isinstance(error, ZoneHiddenError):
            return error
    return InvalidInputError(
        f"No zone that this project can see has {plan.accelerator_type}.",
        hint=f"tpuctl types {plan.accelerator_type}",
    )


def _check_zones(api: TpuApi, plan: CreatePlan, kind: AcceleratorType) -> CreatePlan:
    notes: list[str] = []
    for zone in plan.options.zones:
        if zone not in kind.zones:
            notes += _check_zone(api, kind, zone)
    return plan.warned(*notes)


def _check_zone(api: TpuApi, kind: AcceleratorType, zone: str) -> list[str]:
    """Ask a zone that we do not know to have a type; raises InvalidInputError when it has not."""
    try:
        types = api.list_accelerator_types(zone)
    except (ZoneHiddenError, NotFoundError):
        raise
    except TpuctlError as error:
        return [f"Whether {zone} has {kind.accelerator_type} is not known: {error}"]
    if kind.accelerator_type in types:
        return []
    has = ", ".join(sorted(types)) or "no TPUs"
    raise InvalidInputError(
        f"{zone} has no {kind.accelerator_type}; it has {has}.",
        hint=f"Zones that are known to have it: {', '.join(kind.zones)}; or --zone auto",
    )
