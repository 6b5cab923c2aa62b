"""Operations on any or several providers: list, offers, wait, delete, gc, with one result."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from tpuctl.clock import SteadyClock
from tpuctl.cloud.delete import DeleteResult
from tpuctl.cloud.gc import GcResult
from tpuctl.cloud.list import TpuList
from tpuctl.cloud.lookup import attempt, attempt_all
from tpuctl.cloud.retry import Polling
from tpuctl.cloud.tpu import Balance, Tpu
from tpuctl.cloud.wait import WaitResult
from tpuctl.errors import (
    ApiDisabledError,
    InvalidInputError,
    MissingExtraError,
    NotFoundError,
    NotLoggedInError,
    PermissionDeniedError,
    TpuctlError,
    UsageError,
    WrongStateError,
)
from tpuctl.hardware.types import describe
from tpuctl.outcome import Outcome, Status
from tpuctl.progress import OnProgress, Progress
from tpuctl.providers.port import Provider, ProviderOffer
from tpuctl.providers.registry import is_control_plane


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


_NOT_SET_UP = (
    ApiDisabledError, InvalidInputError, MissingExtraError, NotLoggedInError, PermissionDeniedError
)  # fmt: skip
"""Errors of a provider that this user has not set up."""

Deletions = list[tuple[Provider, DeleteResult]]
Orphans = list[tuple[Provider, GcResult]]


def list_everywhere(providers: Sequence[Provider], zone: str | None) -> TpuList:
    """List the TPUs of all providers; raises the error of the only one, or where all fail."""
    answers = attempt_all([partial(each.list, zone) for each in providers], at_once=8)
    lists = [answer for answer in answers if isinstance(answer, TpuList)]
    errors = [
        (provider, answer)
        for provider, answer in zip(providers, answers, strict=True)
        if isinstance(answer, TpuctlError)
    ]
    if not lists:
        raise _to_raise(errors)
    if not errors and len(lists) == 1:
        return lists[0]
    notes, failures = _sort_errors(errors)
    return TpuList(
        zone=zone,
        tpus=tuple(tpu for each in lists for tpu in each.tpus),
        queued_resources=tuple(item for each in lists for item in each.queued_resources),
        unreachable_zones=tuple(name for each in lists for name in each.unreachable_zones),
        usd_per_hour=round(sum(each.usd_per_hour for each in lists), 4),
        usd_so_far=round(sum(each.usd_so_far for each in lists), 4),
        unpriced=sum(each.unpriced for each in lists),
        emulated=any(each.emulated for each in lists),
        balances=tuple(balance for each in lists for balance in each.balances),
        notes=(*(note for each in lists for note in each.notes), *notes),
        failures=(*(error for each in lists for error in each.failures), *failures),
    )


def _sort_errors(
    errors: Sequence[tuple[Provider, TpuctlError]],
) -> tuple[list[str], list[TpuctlError]]:
    """Separate providers that are not set up, which are only noted, from those that failed.

    One with TPUs or jobs that tpuctl created was set up, so its login has expired.
    """
    notes: list[str] = []
    failures: list[TpuctlError] = []
    for provider, error in errors:
        if isinstance(error, _NOT_SET_UP) and not provider.is_used():
            notes.append(f"Left out: {error}")
        else:
            failures.append(error)
    return notes, failures


def _to_raise(errors: Sequence[tuple[Provider, TpuctlError]]) -> TpuctlError:
    """Return the most important error if no provider could be asked."""
    _, failures = _sort_errors(errors)
    return next(
        (each for each in failures if not isinstance(each, _NOT_SET_UP)),
        failures[0] if failures else errors[0][1],
    )


def plan_deletion(
    owners: Sequence[tuple[Provider, Sequence[str] | None]], zone: str | None
) -> tuple[Deletions, DeleteResult]:
    """Plan the deletion of names, or of everything, provider by provider, and join the plans."""
    plans: Deletions = []
    failures: list[TpuctlError] = []
    for provider, names in owners:
        plan = attempt(partial(provider.plan_delete, names, zone))
        if isinstance(plan, TpuctlError):
            failures.append(plan)
        else:
            plans.append((provider, plan))
    if not plans:
        raise failures[0]
    return plans, _join_deletions([plan for _, plan in plans], failures)


def delete_planned(
    plans: Deletions, whole: DeleteResult, *, timeout_s: float, on_progress: OnProgress
) -> DeleteResult:
    """Carry out planned deletions; `whole` is the plan of all of them."""
    done = [each.delete(plan, timeout_s=timeout_s, on_progress=on_progress) for each, plan in plans]
    joined = _join_deletions(done, ())
    missed = [error for error in whole.not_planned if error not in joined.not_planned]
    return replace(joined, not_planned=(*joined.not_planned, *missed)) if missed else joined


def _join_deletions(parts: Sequence[DeleteResult], failures: Sequence[TpuctlError]) -> DeleteResult:
    if len(parts) == 1 and not failures:
        return parts[0]
    return DeleteResult(
        tpus=tuple(tpu for part in parts for tpu in part.tpus),
        already_deleted=tuple(gone for part in parts for gone in part.already_deleted),
        dry_run=all(part.dry_run for part in parts),
        project=next((part.project for part in parts if part.project), ""),
        unreachable_zones=tuple(zone for part in parts for zone in part.unreachable_zones),
        not_planned=(*(error for part in parts for error in part.not_planned), *failures),
    ).summed()


def find_orphans(providers: Sequence[Provider], zone: str | None) -> tuple[Orphans, GcResult]:
    """Find the orphans of all providers; one that is not set up is left out beside others."""
    found: Orphans = []
    errors: list[tuple[Provider, TpuctlError]] = []
    for provider in providers:
        result = attempt(partial(provider.find_orphans, zone))
        if isinstance(result, TpuctlError):
            errors.append((provider, result))
        else:
            found.append((provider, result))
    if not found:
        raise _to_raise(errors)
    notes, failures = _sort_errors(errors)
    return found, _join_orphans([result for _, result in found], failures, notes)


def delete_orphans(found: Orphans, whole: GcResult, on_progress: OnProgress) -> GcResult:
    """Delete what was found and still is an orphan."""
    done = [provider.delete_orphans(result, on_progress) for provider, result in found]
    joined = _join_orphans(done, ())
    failures = dict.fromkeys((*joined.not_planned, *whole.not_planned))
    notes = dict.fromkeys((*joined.unproven, *whole.unproven))
    return replace(joined, not_planned=tuple(failures), unproven=tuple(notes))


def _join_orphans(
    parts: Sequence[GcResult], failures: Sequence[TpuctlError], notes: Sequence[str] = ()
) -> GcResult:
    return GcResult(
        tuple(orphan for part in parts for orphan in part.found),
        acted=any(part.acted for part in parts),
        unreachable_zones=tuple(zone for part in parts for zone in part.unreachable_zones),
        not_planned=(*(error for part in parts for error in part.not_planned), *failures),
        unproven=(*(text for part in parts for text in part.unproven), *notes),
    ).summed()


def list_offers(
    providers: Sequence[Provider], accelerator_type: str | None, *, only: bool
) -> Offers:
    """List the offers of every provider, cheapest per chip first; creates nothing.

    A provider that cannot be asked is among `unusable`, with the reason; with `only` that is
    raised, and so is what to do instead where it has no prices.
    """
    if accelerator_type:
        describe(accelerator_type)
    offers: list[ProviderOffer] = []
    balances: list[Balance] = []
    unusable: dict[str, str] = {}
    failures: list[TpuctlError] = []
    for provider in providers:
        name = provider.abilities.name
        # One that is named is asked with every login that there is.
        if not only and (why := provider.why_unusable()):
            unusable[name] = why
            continue
        found = attempt(partial(provider.offers, accelerator_type))
        if isinstance(found, TpuctlError):
            failures.append(found)
            continue
        if only and "offers" in provider.abilities.instead:
            raise provider.abilities.refuse("prices", key="offers")
        offers += found
        balance = attempt(provider.balance)
        if isinstance(balance, Balance):
            balances.append(balance)
    if only and not offers and (failures or unusable):
        raise failures[0] if failures else NotLoggedInError(*unusable.values())
    return Offers(
        accelerator_type, rank(offers), tuple(balances), unusable, failures=tuple(failures)
    )


def needs_zone(provider: Provider, zone: str | None) -> None:
    """Raise UsageError for a zone given with a provider that has none."""
    if zone and not is_control_plane(provider):
        title = provider.abilities.title
        raise UsageError(f"{title} has no zones.", hint="Leave out --zone.")


def wait_for(
    provider: Provider,
    name: str,
    until: Literal["ready", "gone"],
    *,
    timeout_s: float | None,
    on_progress: OnProgress,
) -> WaitResult:
    """Read a TPU until it is usable, or gone; raises DeadlineError."""
    polling = Polling(SteadyClock(), timeout_s=timeout_s)
    title = provider.abilities.title
    while True:
        try:
            found = provider.get(name, None)
        except NotFoundError:
            if until == "ready":
                raise
            return WaitResult(name, None, "gone", polling.waited_s, None)
        if until == "ready" and isinstance(found, Tpu) and found.is_usable:
            return WaitResult(name, found.zone, "ready", polling.waited_s, found)
        if isinstance(found, Tpu) and found.reachable == "batch" and found.is_dead:
            if until == "ready":
                raise WrongStateError(
                    f"{name} on {title} has ended: {found.health_description}.",
                    hint=f"What it printed: tpuctl logs {name}",
                )
            return WaitResult(name, None, "gone", polling.waited_s, None)
        why = found.health_description if isinstance(found, Tpu) else ""
        if until == "ready" and found.state == "SUSPENDED":
            raise WrongStateError(
                f"{name} on {title} is stopped and will not become ready.",
                hint=f"tpuctl delete {name}, then start it again",
            )
        note = f"{found.state} ({why})" if why else found.state
        on_progress(Progress(f"{name} on {title}", polling.waited_s, unit="s", note=note))
        polling.pause(
            f"{name} on {title} is {found.state}, not {until},",
            hint=f"To continue waiting: tpuctl wait {name} --for {until}",
        )
