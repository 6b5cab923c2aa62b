"""Follow accepted create requests until one is ready, and describe the outcome in each zone."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tpuctl.cloud.api import TpuApi
from tpuctl.cloud.journal import JournalEntry
from tpuctl.cloud.lookup import attempt, read_optional
from tpuctl.cloud.models import INCOMPLETE, Departure, Node
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
"""The outcome of a zone that was skipped."""

FIRST_LOOK_S = 30.0
"""Capacity errors take up to half a minute to arrive, and no TPU is ready sooner."""

QUEUE_POLL_S = 15.0
"""Seconds between two polls of a queued resource, which may wait for hours."""

LAND_S = 900.0
"""How long a node may be CREATING before the next zone is tried."""

QUEUE_LAND_S = 3600.0
"""How long a queued resource may be PROVISIONING in total: it can alternate with other states."""

_FINAL = (
    AlreadyExistsError,
    ApiDisabledError,
    NotLoggedInError,
    PermissionDeniedError,
    UnavailableError,
)


@dataclass(frozen=True)
class ZoneAttempt:
    """The outcome in one zone: `ready`, `accepted`, `cancelled`, `not_tried`, or an error code."""

    zone: str
    outcome: str
    reason: str
    seconds: float
    error: TpuctlError | None = field(default=None, metadata={"internal": True})


def failed_attempt(zone: str, error: TpuctlError, seconds: float) -> ZoneAttempt:
    """Describe a failure, without the words "Could not create ..." in its reason."""
    doing, _, why = str(error).partition(": ")
    reason = why if doing.startswith("Could not create") and why else str(error)
    return ZoneAttempt(zone, error.code, reason, seconds, error)


def is_final(error: TpuctlError | None) -> bool:
    """Whether it is useless to try other zones, or could give one TPU too many."""
    return isinstance(error, _FINAL) and not isinstance(error, ZoneHiddenError)


def is_regional(error: QuotaExceededError) -> bool:
    """Whether a quota applies to all zones of its region."""
    return bool(re.search(r"PerRegion|in region\b", str(error)))


def overall_error(plan: CreatePlan, attempts: tuple[ZoneAttempt, ...]) -> TpuctlError:
    """Return the only zone's error, or one that sums up all zones."""
    errors = [attempt.error for attempt in attempts if attempt.error]
    if not errors:
        why = "; ".join(f"{attempt.zone}: {attempt.reason}" for attempt in attempts)
        return QuotaExceededError(
            f"Could not create {plan.name}: every zone was skipped ({why}).",
            hint=f"To see where you have quota: tpuctl quota {plan.accelerator_type}",
        )
    if len(attempts) == 1:
        return errors[-1]
    temporary = [error for error in errors if isinstance(error, TryAgainError)]
    full = [error for error in temporary if isinstance(error, NoCapacityError)]
    decisive = (full or temporary or errors)[0]
    counts = Counter(attempt.outcome.replace("_", " ") for attempt in attempts)
    summary = ", ".join(f"{number} {outcome}" for outcome, number in counts.items())
    wait = "Run the same command again" if plan.queued else "To wait for capacity: add --queued"
    return type(decisive)(
        f"Could not create {plan.name} in any of {len(attempts)} zones: {summary}.",
        hint=wait if full else decisive.hint,
    )


@dataclass(frozen=True)
class RequestStatus:
    """The status of a request: `node` is set when it is usable, `lost` when it never will be."""

    state: str
    node: Node | None = None
    lost: TpuctlError | None = None


class PendingRequest:
    """One accepted request that is being followed."""

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

    def poll(self) -> RequestStatus:
        """Ask for the status once; no answer from the service leaves it as it was."""
        try:
            status = self._poll_queue() if self.entry.kind == "queued" else self._poll_in_turn()
        except (UnavailableError, RateLimitedError) as error:
            status = RequestStatus(f"{self.state.partition(',')[0]}, no news: {error.code}")
        self.state, now = status.state, self._api.clock.now()
        if status.state == "PROVISIONING":
            self._provisioning_s += (now - self._last).total_seconds()
        self._last = now
        if self._provisioning_s > QUEUE_LAND_S and not status.node and not status.lost:
            return RequestStatus(status.state, lost=self.too_late(self._provisioning_s))
        return status

    def _poll_in_turn(self) -> RequestStatus:
        # The operation carries the error of a failed create, but says nothing about a node that
        # vanishes afterwards. The node shows that, but not why. So they are read in turn.
        self._turn += 1
        if self._operation is None or self._turn % 2 == 0:
            return self._poll_node()
        try:
            operation = self._api.get_operation(self._operation)
        except NotFoundError:
            self._operation = None
            return self._poll_node()
        if operation.error:
            return RequestStatus("FAILED", lost=self._reason(operation.error))
        if not operation.done:
            # What the node says, as PENDING, is more than the operation tells.
            known = self.state.partition(", no news")[0]
            return RequestStatus("CREATING" if known == "accepted" else known)
        self._operation = None
        return self._status_of(operation.node) if operation.node else self._poll_node()

    def _poll_node(self) -> RequestStatus:
        return self._status_of(read_optional(self._api.get_node, self.entry.name, self.entry.zone))

    def _status_of(self, node: Node | None) -> RequestStatus:
        if node is None or not is_of(node, self.entry) or node.state == INCOMPLETE:
            return RequestStatus("GONE", lost=self.why_gone())
        if node.error:
            return RequestStatus("FAILED", lost=node.error)
        if node.is_dead or node.state == "DELETING":
            return RequestStatus(node.state, lost=self._preempted(f"it was {node.state}"))
        tpu = describe_node(node, now=self._api.clock.now(), emulated=self._api.emulated)
        if tpu.is_usable:
            return RequestStatus("READY", node=node)
        if node.state == "READY":
            reached = sum(1 for worker in tpu.workers if worker.state == "READY")
            return RequestStatus(f"READY, {reached} of {len(tpu.workers)} workers have an address")
        if node.state == "CREATING" and node.endpoints and node.health_description:
            return RequestStatus(f"CREATING, {node.health_description}")
        return RequestStatus(node.state)

    def _poll_queue(self) -> RequestStatus:
        entry = self.entry
        queued = read_optional(self._api.get_queued_resource, entry.name, entry.zone)
        if queued is None or not is_of(queued, entry):
            return RequestStatus("GONE", lost=self.why_gone())
        if queued.state == "ACTIVE":
            return self._poll_node()
        if queued.state == "FAILED":
            lost = queued.error or NoCapacityError(self._could_not("it FAILED"))
            return RequestStatus("FAILED", lost=lost)
        if queued.is_dead or queued.state == "DELETING":
            return RequestStatus(queued.state, lost=self._preempted(f"it was {queued.state}"))
        return RequestStatus(queued.state)

    def why_gone(self) -> TpuctlError:
        """Return why there is nothing any more, from the operation where it is known."""
        if self.entry.operation:
            try:
                operation = self._api.get_operation(self.entry.operation)
            except NotFoundError:
                pass
            else:
                if operation.error:
                    return self._reason(operation.error)
        departure = attempt(lambda: self._api.why_gone(self.entry.name, zone=self.entry.zone))
        if not isinstance(departure, Departure):
            return self._preempted("it vanished")
        return departure.error or self._preempted(str(departure))

    def _reason(self, error: TpuctlError) -> TpuctlError:
        # A create whose node is preempted fails with "update is not supported while in state
        # PREEMPTED" (skypilot-org/skypilot#1802): a wrong state means that the TPU was taken away.
        if isinstance(error, (WrongStateError, NotFoundError)):
            return PreemptedError(str(error), hint="Run the same command again.")
        return error

    def _preempted(self, what: str) -> PreemptedError:
        message = self._could_not(f"{what} while it was being created")
        return PreemptedError(message, hint="Run the same command again.")

    def too_late(self, seconds: float) -> DeadlineError:
        """Return the error of a request that is not ready in time."""
        return DeadlineError(
            self._could_not(f"it was {self.state} after {format_duration(seconds)}"),
            hint="To try other zones: --zone auto; to wait longer: --timeout",
        )

    def _could_not(self, why: str) -> str:
        return f"Could not create {self.entry.name} in {self.entry.zone}: {why}."


def follow(
    api: TpuApi,
    requests: Sequence[PendingRequest],
    *,
    timeout_s: float | None,
    on_lost: Callable[[PendingRequest, TpuctlError], None],
    on_progress: OnProgress,
) -> tuple[PendingRequest, Node] | None:
    """Poll requests until the first is ready; None when all are lost.

    After the timeout the remaining ones are lost too.
    """
    left = list(requests)
    is_queued = any(request.entry.kind == "queued" for request in requests)
    polling, poll_s = Polling(api.clock, timeout_s=timeout_s), QUEUE_POLL_S if is_queued else 0
    # A request that is resumed after a crash or a lost reply may be ready already.
    if not any(request.entry.created for request in requests):
        for request in requests:
            on_progress(_progress(request))
        api.clock.sleep(FIRST_LOOK_S if timeout_s is None else min(FIRST_LOOK_S, timeout_s))
    while True:
        for request in tuple(left):
            status = request.poll()
            if status.node:
                return request, status.node
            if status.lost:
                left.remove(request)
                on_lost(request, status.lost)
            else:
                on_progress(_progress(request))
        if not left:
            return None
        if not polling.next(at_least_s=poll_s):
            for request in left:
                on_lost(request, request.too_late(polling.waited_s))
            return None


def _progress(request: PendingRequest) -> Progress:
    where = f"{request.entry.name} in {request.entry.zone}"
    return Progress(where, request.waited_s, unit="s", note=request.state)
