"""`offers`: every way to get a TPU now, in one table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tpuctl.cloud.tpu import Balance
from tpuctl.errors import TpuctlError
from tpuctl.outcome import Outcome, Status
from tpuctl.providers.port import ProviderOffer


@dataclass(frozen=True)
class Offers(Outcome):
    """What is available, what is left in the accounts, and which providers failed and why."""

    accelerator_type: str | None
    offers: tuple[ProviderOffer, ...]
    balances: tuple[Balance, ...]
    unusable: Mapping[str, str]
    failures: tuple[TpuctlError, ...] = field(default=(), metadata={"internal": True})

    @property
    def status(self) -> Status:
        """`partial` when a provider failed, `attention` when nothing is available."""
        if self.failures:
            return "partial" if self.offers else "error"
        return "ok" if any(each.available is not False for each in self.offers) else "attention"


@dataclass(frozen=True)
class AutoPlan(Outcome):
    """The offers in the order in which they are tried, and what the others lack."""

    script: str
    offers: tuple[ProviderOffer, ...]
    because: tuple[str, ...]


def rank(offers: Sequence[ProviderOffer]) -> tuple[ProviderOffer, ...]:
    """Sort by availability, then by price: free hours, dollars per chip, unknown last."""

    def key(offer: ProviderOffer) -> tuple[bool, float, str, str]:
        price = offer.usd_per_hour
        if offer.provisioning == "free":
            price = 0.0
        per_chip = float("inf") if price is None else price / (offer.chips or 1)
        return offer.available is False, per_chip, offer.provider, offer.accelerator_type

    return tuple(sorted(offers, key=key))
