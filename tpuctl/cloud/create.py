"""Create one TPU in the first zone that has capacity, and leave nothing in the others."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from tpuctl.cloud.api import TpuApi
from tpuctl.cloud.follow import (
    LAND_S,
    NOT_TRIED,
    PendingRequest,
    ZoneAttempt,
    failed_attempt,
    follow,
    is_final,
    is_regional,
    overall_error,
)
from tpuctl.cloud.journal import LEFT, Journal, JournalEntry, new_create_id
from tpuctl.cloud.models import LABEL_TTL_S, Node, shared
from tpuctl.cloud.plan import CreatePlan, NotedOutcome, Offer
from tpuctl.cloud.requests import cancel, read_resource, submit
from tpuctl.cloud.tpu import Tpu, describe_node
from tpuctl.errors import QuotaExceededError, StoppedError, TpuctlError, UnavailableError
from tpuctl.hardware.compute_engine import flex_limits
from tpuctl.progress import OnProgress, silent

# If this process dies, the service itself drops a queued request this long after our deadline.
VALID_LONGER_S = 600.0
# The service accepts about a year.
_MAX_VALID_S = 365 * 86400.0

Choice = Literal["cancel", "leave"]

OnAttempt = Callable[[ZoneAttempt], None]


@dataclass(frozen=True, kw_only=True)
class Created(NotedOutcome, Tpu):
    """The TPU at the end of `create`, and the outcome in every zone that was tried."""

    attempts: tuple[ZoneAttempt, ...]


@dataclass(frozen=True, kw_only=True)
class NotCreated(NotedOutcome):
    """No zone had the TPU, and why."""

    name: str
    accelerator_type: str
    attempts: tuple[ZoneAttempt, ...]
    error: TpuctlError = field(metadata={"internal": True})

    @property
    def failures(self) -> tuple[TpuctlError, ...]:
        """The one error that says what to do next."""
        return (self.error,)


def create(
    api: TpuApi,
    plan: CreatePlan,
    *,
    journal: Journal,
    wait: bool = True,
    timeout_s: float | None = None,
    set_up: Callable[[Node], None] = lambda _: None,
    on_interrupt: Callable[[], Choice] = lambda: "cancel",
    on_progress: OnProgress = silent,
    on_attempt: OnAttempt = lambda _: None,
) -> Created | NotCreated:
    """Create the planned TPU, which costs money, and wait until every worker can be reached.

    `timeout_s` applies to each zone, or to the whole wait of queued requests; the default is LAND_S
    for a zone and no limit for a queue. `set_up` prepares a TPU that is ready; until it has, the
    create counts as interrupted, and the same create resumes it. Raises StoppedError on Ctrl-C,
    once `on_interrupt` has decided what happens to the requests in progress.
    """
    with journal.session() as session:
        creation = _Creation(
            api, plan, journal, session, timeout_s, set_up, on_progress, on_attempt
        )
        try:
            return creation.race(wait=wait) if plan.queued else creation.search(wait=wait)
        except KeyboardInterrupt as interrupt:
            raise creation.stopped(on_interrupt) from interrupt
        except SystemExit as leaving:
            error = creation.stopped(lambda: "cancel")
            error.exit_code = leaving.code if isinstance(leaving.code, int) else error.exit_code
            raise error from leaving


@dataclass
class _Creation:
    """One call of `create`, and what it has tried so far."""

    api: TpuApi
    plan: CreatePlan
    journal: Journal
    session: str
    timeout_s: float | None
    set_up: Callable[[Node], None]
    on_progress: OnProgress
    on_attempt: OnAttempt
    attempts: list[ZoneAttempt] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def wait_s(self) -> float:
        """How long a TPU may take in one zone; a flex-start one waits for capacity."""
        return self.timeout_s or (flex_limits().max_wait_s if self.plan.flex else LAND_S)

    def search(self, *, wait: bool) -> Created | NotCreated:
        """Try one zone after the other."""
        full_regions: set[str] = set()
        for offer in self._offers():
            if offer.region in full_regions:
                reason = f"the quota of {offer.region} applies to all of its zones"
                self._note(ZoneAttempt(offer.zone, NOT_TRIED, reason, 0.0))
                continue
            request = self._submit(offer)
            if request and not wait:
                return self._not_waiting([request])
            if request and (node := self._follow([request], self.wait_s)):
                return node
            error = self.attempts[-1].error
            # A lost reply to the request itself may have created a TPU, so no other zone is tried.
            # But an accepted request was cancelled before, so that its loss is not final.
            if is_final(error) and not (request and isinstance(error, UnavailableError)):
                return self._not_created(error)
            if isinstance(error, QuotaExceededError) and is_regional(error):
                full_regions.add(offer.region)
        return self._not_created()

    def race(self, *, wait: bool) -> Created | NotCreated:
        """Queue in every zone at once; the first TPU wins, the other requests are cancelled."""
        race = new_create_id()
        requests: list[PendingRequest] = []
        for offer in self._offers():
            if request := self._submit(offer, race=race):
                requests.append(request)
                continue
            error = self.attempts[-1].error
            # After a lost reply there may be one more queued request. Its entry has the race's id,
            # so that `reconcile` abandons it once the race is won.
            if is_final(error) and not isinstance(error, UnavailableError):
                self._cancel(requests, f"{offer.zone} failed permanently")
                return self._not_created(error)
        if requests and not wait:
            return self._not_waiting(requests)
        return (requests and self._follow(requests, self.timeout_s)) or self._not_created()

    def stopped(self, decide: Callable[[], Choice]) -> StoppedError:
        """Settle the requests in progress after Ctrl-C; a second Ctrl-C leaves them running."""
        in_progress = self._in_progress()
        if not in_progress:
            return self._stopped_at_rest()
        left, is_cancelled = tuple(in_progress), False
        try:
            if decide() == "cancel":
                left = cancel(self.api, self.journal, in_progress, outcome=StoppedError.code)
                is_cancelled = True
        except KeyboardInterrupt:
            left = tuple(self._in_progress())
        zones = ", ".join(entry.zone for entry in left or in_progress)
        if not left:
            return StoppedError(f"Interrupted; {self.plan.name} in {zones} was cancelled.")
        if is_cancelled:
            text = f"Interrupted; {self.plan.name} in {zones} was cancelled, but is not gone yet."
            return StoppedError(text, hint="Check again in a minute: tpuctl gc")
        for entry in left:
            self.journal.update(entry, outcome=entry.outcome or LEFT)
        where = f"{self.plan.name} --zone {left[0].zone}"
        return StoppedError(
            f"Interrupted; {self.plan.name} in {zones} was not cancelled, and may cost money.",
            hint=f"tpuctl wait {where}, or: tpuctl delete {where}",
        )

    def _stopped_at_rest(self) -> StoppedError:
        """Say what there is after Ctrl-C while no request is in progress."""
        entries = self.journal.entries(self.api)
        ready = [e for e in entries if e.session == self.session and e.phase == "ready"]
        if not ready:
            return StoppedError("Interrupted; nothing had been requested.")
        return StoppedError(
            f"Interrupted; {self.plan.name} in {ready[0].zone} is ready, and costs money.",
            hint=f"To delete it: tpuctl delete {self.plan.name} --zone {ready[0].zone}",
        )

    def _offers(self) -> list[Offer]:
        """Note the skipped zones; return the others, first those of an interrupted create."""
        for offer in self.plan.offers:
            if offer.not_tried:
                self._note(ZoneAttempt(offer.zone, NOT_TRIED, offer.not_tried, 0.0))
        begun = {
            entry.zone
            for entry in self.journal.entries(self.api)
            if entry.name == self.plan.name and entry.phase not in ("abandoned", "closed")
        }
        return sorted(self.plan.to_try, key=lambda offer: offer.zone not in begun)

    def _submit(self, offer: Offer, *, race: str | None = None) -> PendingRequest | None:
        try:
            entry = submit(
                self.api,
                self.journal,
                self.plan,
                offer,
                session=self.session,
                timeout_s=self.wait_s,
                valid_for_s=self.timeout_s and min(self.timeout_s + VALID_LONGER_S, _MAX_VALID_S),
                race=race,
            )
        except TpuctlError as error:
            self._note(failed_attempt(offer.zone, error, 0.0))
            return None
        return PendingRequest(self.api, entry)

    def _follow(self, requests: list[PendingRequest], timeout_s: float | None) -> Created | None:
        try:
            ready = follow(
                self.api,
                requests,
                timeout_s=timeout_s,
                on_lost=self._lose,
                on_progress=self.on_progress,
            )
        except TpuctlError as error:
            error.hint = f"{self.plan.name} was requested and may exist: tpuctl list. {error.hint}"
            raise
        if ready is None:
            return None
        winner, node = ready
        self._cancel([each for each in requests if each is not winner], f"{node.zone} was first")
        self.set_up(node)
        self._note(ZoneAttempt(node.zone, "ready", "", winner.waited_s))
        # Last of all: if we are killed before this, the same command resumes the request.
        known = {"node_id": node.id, "created": node.created}
        self.journal.update(winner.entry, phase="ready", outcome="ready", **known)
        return self._created(node)

    def _cancel(self, requests: list[PendingRequest], why: str) -> None:
        """Cancel those that are still in progress."""
        known = {request: self.journal.find(request.entry.create_id) for request in requests}
        left = [request for request, entry in known.items() if entry and entry.is_open]
        seconds = [request.waited_s for request in left]
        self._cancel_entries([request.entry for request in left], outcome="cancelled")
        for request, waited_s in zip(left, seconds, strict=True):
            self._note(ZoneAttempt(request.entry.zone, "cancelled", why, waited_s))

    def _lose(self, request: PendingRequest, error: TpuctlError) -> None:
        seconds = request.waited_s
        self._cancel_entries([request.entry], outcome=error.code)
        self._note(failed_attempt(request.entry.zone, error, seconds))

    def _cancel_entries(self, entries: list[JournalEntry], *, outcome: str) -> None:
        for entry in cancel(self.api, self.journal, entries, outcome=outcome):
            self.notes.append(
                f"{entry.name} in {entry.zone} was cancelled, but is not gone yet. "
                "Check again in a minute: tpuctl gc"
            )

    def _not_waiting(self, requests: list[PendingRequest]) -> Created | NotCreated:
        first, *others = requests
        resource = read_resource(self.api, first.entry)
        if resource is None:
            self._lose(first, first.why_gone())
            return self._not_waiting(others) if others else self._not_created()
        for request in requests:
            zone = request.entry.zone
            # Else `gc` would take it for a create that was killed.
            self.journal.update(request.entry, outcome=LEFT)
            self._note(ZoneAttempt(zone, "accepted", "not waited for", request.waited_s))
        if others:
            self.notes.append(
                f"{self.plan.name} is queued in {len(requests)} zones, and every TPU that is "
                "granted costs money. The same command without --no-wait waits for the first and "
                "cancels the others; or later: tpuctl gc --yes"
            )
        if isinstance(resource, Node):
            return self._created(resource)
        # Shown as the TPU that it will become.
        known = {**shared(Node, resource), "queued_resource": resource.name}
        version = self.plan.runtime_version
        node = Node(**known, id="", runtime_version=version, health="UNKNOWN")
        return replace(self._created(node), usd_so_far=0.0)

    def _created(self, node: Node) -> Created:
        tpu = describe_node(node, now=self.api.clock.now(), emulated=self.api.emulated)
        wanted = next(offer.ttl_s for offer in self.plan.offers if offer.zone == node.zone)
        if wanted is not None and node.labels.get(LABEL_TTL_S) != str(wanted):
            self.notes.append(
                f"{node.name} was requested by an earlier create and keeps that create's limits; "
                "the --ttl or --max-usd given now has no effect."
            )
        return Created(
            **shared(Tpu, tpu),
            attempts=tuple(self.attempts),
            warnings=(*self.notes, *tpu.health_warnings),
            reasons=self.plan.reasons,
        )

    def _not_created(self, error: TpuctlError | None = None) -> NotCreated:
        attempts = tuple(self.attempts)
        return NotCreated(
            name=self.plan.name,
            accelerator_type=self.plan.accelerator_type,
            attempts=attempts,
            error=error or overall_error(self.plan, attempts),
            warnings=tuple(self.notes),
            reasons=self.plan.reasons,
        )

    def _note(self, attempt: ZoneAttempt) -> None:
        self.attempts.append(attempt)
        self.on_attempt(attempt)

    def _in_progress(self) -> list[JournalEntry]:
        entries = self.journal.entries(self.api)
        return [
            e for e in entries if e.session == self.session and e.phase not in ("ready", "closed")
        ]
