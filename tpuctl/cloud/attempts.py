"""What became of each zone that was asked for a TPU, and what all of them say together."""

import re
from collections import Counter
from dataclasses import dataclass, field

from tpuctl.cloud.plan import CreatePlan
from tpuctl.errors import (
    AlreadyExistsError,
    ApiDisabledError,
    NoCapacityError,
    NotLoggedInError,
    PermissionDeniedError,
    QuotaExceededError,
    TpuctlError,
    TryAgainError,
    UnavailableError,
    ZoneHiddenError,
)

NOT_TRIED = "not_tried"
"""The outcome of a zone that it was no use to ask."""

_FINAL = (
    AlreadyExistsError,
    ApiDisabledError,
    NotLoggedInError,
    PermissionDeniedError,
    UnavailableError,
)


@dataclass(frozen=True)
class Attempt:
    """What became of one zone: `ready`, `accepted`, `not_tried`, or the code of an error."""

    zone: str
    outcome: str
    reason: str
    seconds: float
    error: TpuctlError | None = field(default=None, metadata={"internal": True})


def failed(zone: str, error: TpuctlError, seconds: float) -> Attempt:
    """An attempt whose reason leaves out what we were doing: that is said already."""
    doing, _, why = str(error).partition(": ")
    reason = why if doing.startswith("Could not create") and why else str(error)
    return Attempt(zone, error.code, reason, seconds, error)


def is_final(error: TpuctlError | None) -> bool:
    """Whether to ask in another zone would be useless, or one TPU too many."""
    return isinstance(error, _FINAL) and not isinstance(error, ZoneHiddenError)


def is_lost(error: TpuctlError | None) -> bool:
    """Whether it is not known what became of a request; in a race it is one more of those."""
    return isinstance(error, UnavailableError)


def is_regional(error: QuotaExceededError) -> bool:
    """Whether a quota counts for all zones of its region."""
    return bool(re.search(r"PerRegion|in region\b", str(error)))


def verdict(plan: CreatePlan, attempts: tuple[Attempt, ...]) -> TpuctlError:
    """The error of the whole: of the only zone, or one that says whether waiting helps."""
    errors = [attempt.error for attempt in attempts if attempt.error]
    if not errors:
        why = "; ".join(f"{attempt.zone}: {attempt.reason}" for attempt in attempts)
        return QuotaExceededError(
            f"Could not create {plan.name}: no zone is worth asking ({why}).",
            hint=f"Where there is quota: tpuctl quota {plan.accelerator_type}",
        )
    if len(attempts) == 1:
        return errors[-1]
    hopeful = [error for error in errors if isinstance(error, TryAgainError)]
    full = [error for error in hopeful if isinstance(error, NoCapacityError)]
    decisive = (full or hopeful or errors)[0]
    counts = Counter(attempt.outcome.replace("_", " ") for attempt in attempts)
    summary = ", ".join(f"{number} {outcome}" for outcome, number in counts.items())
    wait = "The same command again" if plan.queued else "Wait in line in all of them: --queued"
    return type(decisive)(
        f"Could not create {plan.name} in any of {len(attempts)} zones: {summary}.",
        hint=wait if full else decisive.hint,
    )
