"""The price of a runtime, and whether this account may create it; creates nothing."""

import math
from collections.abc import Callable, Mapping
from contextlib import suppress

from tpuctl.cloud.plan import CreateOptions, check_name
from tpuctl.cloud.tpu import Balance, type_facts
from tpuctl.errors import InvalidArgumentError, InvalidInputError, WriteError
from tpuctl.providers.colab.api import (
    ColabApi,
    Units,
    accelerator_for,
    facts,
    refusal,
    type_of,
)
from tpuctl.providers.colab.records import Records
from tpuctl.providers.port import HostedPlan, ProviderOffer
from tpuctl.storage.local import write_atomically

NAME = "colab"


def plan_runtime(
    api: ColabApi, records: Records, options: CreateOptions, on_warning: Callable[[str], None]
) -> HostedPlan:
    """Check the type, and read what the account may have and what is left."""
    ours, theirs = accelerator_for(options.accelerator_type)
    check_name(options.name)
    for flag, limit in (("--ttl", options.ttl_s), ("--max-units", options.max_units)):
        if limit is not None and not (math.isfinite(limit) and limit > 0):
            raise InvalidArgumentError(f"{flag} must be a finite number greater than 0.")
    eligible = api.eligible()
    if eligible is not None and not eligible.get(theirs):
        raise refusal("NOT_ELIGIBLE", theirs)
    rate = _rate(records, theirs)
    if options.max_units is not None and rate is None:
        on_warning(
            f"The rate of {options.accelerator_type} is not known before it runs: the budget "
            "counts from the rate measured then."
        )
    return HostedPlan(
        name=options.name,
        provider=NAME,
        accelerator_type=ours,
        **type_facts(ours),
        provisioning="units",
        ttl_s=options.ttl_s,
        max_units=options.max_units,
        units_per_hour=rate,
        limit_hours=facts()["limit_hours"]["paid"],
        balance=balance_of(api.units()),
        options=options,
        warnings=_terms(records),
        reasons=(f"Colab's control plane: {api.plane}",),
    )


def _terms(records: Records) -> tuple[str, ...]:
    """Return the notice about the terms of use, once per user."""
    said = records.folder / "terms-said"
    if said.exists():
        return ()
    with suppress(WriteError):
        write_atomically(said, facts()["as_of"], private=True)
    return (facts()["terms"],)


def _rate(records: Records, theirs: str) -> float | None:
    """Return the units per hour of an accelerator: as measured here, or as in the data."""
    known: float | None = facts()["units_per_hour"].get(theirs)
    return records.rate(type_of(theirs)) or known


def list_offers(
    api: ColabApi, records: Records, accelerator_type: str | None
) -> tuple[ProviderOffer, ...]:
    """Offer the accelerators that Colab has, with the balance and whether we may have them."""
    wanted = facts()["types"]
    if accelerator_type:
        try:
            wanted = dict([accelerator_for(accelerator_type)])
        except InvalidInputError:
            return ()
    eligible, units = api.eligible(), api.units()
    return tuple(
        ProviderOffer(
            provider=NAME,
            accelerator_type=ours,
            chips=1,
            zone=None,
            provisioning="units",
            usd_per_hour=None,
            units_per_hour=_rate(records, theirs),
            quota_left=units.left,
            limit_hours=facts()["limit_hours"]["paid"],
            available=_available(eligible, theirs, units),
            evidence=_evidence(records, eligible, theirs, api.plane),
        )
        for ours, theirs in wanted.items()
    )


def _evidence(
    records: Records, eligible: Mapping[str, bool] | None, theirs: str, plane: str
) -> tuple[str, ...]:
    who = "unknown until a create"
    if eligible is not None:
        who = f"{'yes' if eligible.get(theirs) else 'no'}, say Colab's runtime specs"
    rate = "measured here" if _rate(records, theirs) else facts()["why_units_null"]
    return (
        f"control plane: {plane}",
        f"eligible: {who}",
        "capacity: unknown until a create",
        f"rate: {rate}",
        f"limits as of {facts()['as_of']}",
    )


def _available(eligible: Mapping[str, bool] | None, theirs: str, units: Units) -> bool | None:
    if units.left is not None and units.left <= 0:
        return False
    return None if eligible is None else eligible.get(theirs, False) and None


def balance_of(units: Units) -> Balance:
    """Describe the balance as every provider does."""
    return Balance(NAME, "units", units.left, units.per_hour)
