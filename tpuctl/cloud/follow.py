"""What became of each zone that was asked for a TPU, and what all of them say together."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tpuctl.cloud.api import TpuApi
from tpuctl.cloud.journal import JournalEntry
from tpuctl.cloud.models import Node
from tpuctl.cloud.plan import CreatePlan
from tpuctl.cloud.requests import is_of
from tpuctl.cloud.retry import Polling
from tpuctl.cloud.tpu import describe_node
from tpuctl.errors import (
    AlreadyExistsError,
    ApiDisabledError,
    DeadlineError,
    NoCapacityError,
    NotFoundError,
    NotLoggedInError,
    PermissionDeniedError,
    PreemptedError,
    QuotaExceededError,
    RateLimitedError,
    TpuctlError,
    TryAgainError,
    UnavailableError,
    WrongStateError,
    ZoneHiddenError,
)
from tpuctl.progress import OnProgress, Progress
from tpuctl.units import format_duration

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
class ZoneAttempt:
    """What became of one zone: `ready`, `accepted`, `not_tried`, or the code of an error."""

    zone: str
    outcome: str
    reason: str
    seconds: float
    error: TpuctlError | None = field(default=None, metadata={"internal": True})


def failed_attempt(zone: str, error: TpuctlError, seconds: float) -> ZoneAttempt:
    """An attempt whose reason leaves out what we were doing: that is said already."""
    doing, _, why = str(error).partition(": ")
    reason = why if doing.startswith("Could not create") and why else str(error)
    return ZoneAttempt(zone, error.code, reason, seconds, error)


def is_final(error: TpuctlError | None) -> bool:
    """Whether to ask in another zone would be useless, or one TPU too many."""
    return isinstance(error, _FINAL) and not isinstance(error, ZoneHiddenError)


def is_lost(error: TpuctlError | None) -> bool:
    """Whether it is not known what became of a request; in a race it is one more of those."""
    return isinstance(error, UnavailableError)


def is_regional(error: QuotaExceededError) -> bool:
    """Whether a quota counts for all zones of its region."""
    return bool(re.search(r"PerRegion|in region\b", str(error)))


def overall_error(plan: CreatePlan, attempts: tuple[ZoneAttempt, ...]) -> TpuctlError:
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


FIRST_LOOK_S = 30.0
"""Capacity errors take up to half a minute to arrive, and no TPU is ready sooner."""

QUEUE_POLL_S = 15.0
"""Seconds between two looks at a queue, which may take hours."""

LAND_S = 900.0
"""How long a request may be CREATING before it is given up for the next zone."""

QUEUE_LAND_S = 3600.0
"""How long one that waits in line may be PROVISIONING in all: that can go round for ever."""


_AGAIN = "Nothing is broken: the same command again."


@dataclass(frozen=True)
class RequestStatus:
    """What a look at a request showed: `node` when it is usable, `lost` when it never will be."""

    state: str
    node: Node | None = None
    lost: TpuctlError | None = None


class PendingRequest:
    """One accepted request."""

    def __init__(self, api: TpuApi, entry: JournalEntry) -> None:
        self.entry = entry
        self.state = "accepted"
        self._api = api
        self._since = self._last = api.clock.now()
        self._provisioning_s = 0.0
        self._operation = entry.operation
        self._turn = 0

    @property
    def waited_s(self) -> float:
        """Seconds since it was accepted."""
        return (self._api.clock.now() - self._since).total_seconds()

    def look(self) -> RequestStatus:
        """Look once; a service that does not answer has shown nothing."""
        try:
            status = self._look_at_queue() if self.entry.kind == "queued" else self._look_in_turn()
        except (UnavailableError, RateLimitedError) as error:
            status = RequestStatus(f"{self.state.partition(',')[0]}, no news: {error.code}")
        self.state, now = status.state, self._api.clock.now()
        if status.state == "PROVISIONING":
            self._provisioning_s += (now - self._last).total_seconds()
        self._last = now
        if self._provisioning_s > QUEUE_LAND_S and not status.node and not status.lost:
            return RequestStatus(status.state, lost=self.too_late(self._provisioning_s))
        return status

    def _look_in_turn(self) -> RequestStatus:
        """Look at the operation, which carries errors, or the node, which can vanish without."""
        self._turn += 1
        if self._operation is None or self._turn % 2 == 0:
            return self._look_at_node()
        try:
            operation = self._api.get_operation(self._operation)
        except NotFoundError:
            self._operation = None
            return self._look_at_node()
        if operation.error:
            return RequestStatus("FAILED", lost=self._reason(operation.error))
        if not operation.done:
            return RequestStatus("CREATING")
        self._operation = None
        return self._sight_of(operation.node) if operation.node else self._look_at_node()

    def _look_at_node(self) -> RequestStatus:
        try:
            node = self._api.get_node(self.entry.name, zone=self.entry.zone)
        except NotFoundError:
            return RequestStatus("GONE", lost=self.why_gone())
        return self._sight_of(node)

    def _sight_of(self, node: Node) -> RequestStatus:
        if not is_of(node, self.entry):
            return RequestStatus("GONE", lost=self.why_gone())
        if node.is_dead or node.state == "DELETING":
            return RequestStatus(node.state, lost=self._taken_away(f"it was {node.state}"))
        tpu = describe_node(node, now=self._api.clock.now(), emulated=self._api.emulated)
        reached = sum(1 for worker in tpu.workers if worker.state == "READY")
        if tpu.is_usable:
            return RequestStatus("READY", node=node)
        if node.state == "READY":
            return RequestStatus(f"READY, {reached} of {len(tpu.workers)} workers have an address")
        return RequestStatus(node.state)

    def _look_at_queue(self) -> RequestStatus:
        entry = self.entry
        try:
            queued = self._api.get_queued_resource(entry.name, zone=entry.zone)
        except NotFoundError:
            return RequestStatus("GONE", lost=self.why_gone())
        if not is_of(queued, entry):
            return RequestStatus("GONE", lost=self.why_gone())
        if queued.state == "ACTIVE":
            return self._look_at_node()
        if queued.state == "FAILED":
            return RequestStatus(
                "FAILED", lost=queued.error or NoCapacityError(self._failed("it FAILED"))
            )
        if queued.is_dead or queued.state == "DELETING":
            return RequestStatus(queued.state, lost=self._taken_away(f"it was {queued.state}"))
        return RequestStatus(queued.state)

    def why_gone(self) -> TpuctlError:
        """Ask the operation, where it is known, why there is nothing any more."""
        if self.entry.operation:
            try:
                operation = self._api.get_operation(self.entry.operation)
            except NotFoundError:
                pass
            else:
                if operation.error:
                    return self._reason(operation.error)
        return self._taken_away("it vanished")

    def _reason(self, error: TpuctlError) -> TpuctlError:
        """What the error of an operation means: a state in which it cannot go on, that it is lost.

        SkyPilot saw "update is not supported while in state PREEMPTED" (skypilot#1802).
        """
        if isinstance(error, (WrongStateError, NotFoundError)):
            return PreemptedError(str(error), hint=_AGAIN)
        return error

    def _taken_away(self, what: str) -> PreemptedError:
        return PreemptedError(self._failed(f"{what} while it was being created"), hint=_AGAIN)

    def too_late(self, seconds: float) -> DeadlineError:
        """Say that it has not become ready in that time."""
        return DeadlineError(
            self._failed(f"it was {self.state} after {format_duration(seconds)}"),
            hint="Another zone may be faster: --zone auto; to wait longer: --timeout",
        )

    def _failed(self, why: str) -> str:
        return f"Could not create {self.entry.name} in {self.entry.zone}: {why}."


def follow(
    api: TpuApi,
    contest: Sequence[PendingRequest],
    *,
    timeout_s: float | None,
    on_lost: Callable[[PendingRequest, TpuctlError], None],
    on_progress: OnProgress,
) -> tuple[PendingRequest, Node] | None:
    """Look at all of them until the first is ready; None when all are lost.

    Past the timeout those that are left are lost as well.
    """
    left = list(contest)
    in_line = any(pending.entry.kind == "queued" for pending in contest)
    polling, look_every_s = Polling(api.clock, timeout_s=timeout_s), QUEUE_POLL_S if in_line else 0
    # One that has been seen already, after a crash or a lost reply, may be ready by now.
    if not any(pending.entry.created for pending in contest):
        for pending in contest:
            on_progress(_progress(pending))
        api.clock.sleep(FIRST_LOOK_S if timeout_s is None else min(FIRST_LOOK_S, timeout_s))
    while True:
        for pending in tuple(left):
            status = pending.look()
            if status.node:
                return pending, status.node
            if status.lost:
                left.remove(pending)
                on_lost(pending, status.lost)
            else:
                on_progress(_progress(pending))
        if not left:
            return None
        try:
            polling.pause("", hint="", at_least_s=look_every_s)
        except DeadlineError:
            for pending in left:
                on_lost(pending, pending.too_late(polling.waited_s))
            return None


def _progress(pending: PendingRequest) -> Progress:
    where = f"{pending.entry.name} in {pending.entry.zone}"
    return Progress(where, pending.waited_s, unit="s", note=pending.state)
