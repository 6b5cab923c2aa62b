"""`doctor --provider`: check whether an account can be used, without creating anything."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from tpuctl.cloud.list import TpuList
from tpuctl.cloud.lookup import attempt
from tpuctl.cloud.tpu import Balance
from tpuctl.errors import TpuctlError
from tpuctl.outcome import Outcome
from tpuctl.providers.port import Provider


@dataclass(frozen=True)
class Check:
    """One thing that was checked; `ok` is None if only a request can show it."""

    name: str
    ok: bool | None
    detail: str


@dataclass(frozen=True)
class ProviderCheck(Outcome):
    """The result of checking an account."""

    provider: str
    checks: tuple[Check, ...]
    failures: tuple[TpuctlError, ...] = field(default=(), metadata={"internal": True})

    @property
    def exit_code(self) -> int:
        """1, or 3 where a service did not answer, if a check failed; also where nothing is left."""
        return super().exit_code or int(any(each.ok is False for each in self.checks))


def check_provider(provider: Provider) -> ProviderCheck:
    """Check the login, what runs, what is left and what is available; only reads."""
    name, found = provider.abilities.name, list(_checks(provider))
    errors = tuple(each for each in found if isinstance(each, TpuctlError))
    checks = (
        Check("error", False, f"{each} {each.hint or ''}".rstrip())
        if isinstance(each, TpuctlError)
        else each
        for each in found
    )
    return ProviderCheck(name, tuple(checks), errors)


def _checks(provider: Provider) -> Iterator[Check | TpuctlError]:
    listed = attempt(partial(provider.list, None))
    if isinstance(listed, TpuctlError):
        yield listed
        return
    assert isinstance(listed, TpuList)
    yield Check("login", True, f"{provider.abilities.title} answers")
    yield Check("in use", True, ", ".join(tpu.name for tpu in listed.tpus) or "nothing runs")
    for balance in listed.balances:
        yield _balance(balance)
    offers = attempt(partial(provider.offers, None))
    if isinstance(offers, TpuctlError):
        yield offers
        return
    yield from dict.fromkeys(
        Check(offer.accelerator_type, offer.available, "; ".join(offer.evidence))
        for offer in offers
    )


def _balance(balance: Balance) -> Check:
    left = balance.hours_left if balance.unit == "hours" else balance.left
    text = "unknown" if left is None else f"{round(left, 1):g} {balance.unit} left"
    return Check("balance", None if left is None else left > 0, text)
