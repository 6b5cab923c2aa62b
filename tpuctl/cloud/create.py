"""`create`: one TPU, in the first zone that gives it, and nothing left behind in the others."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
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
    is_lost,
    is_regional,
    overall_error,
)
from tpuctl.cloud.journal import Journal, JournalEntry, new_create_id
from tpuctl.cloud.models import LABEL_TTL_S, Node, QueuedResource
from tpuctl.cloud.plan import CreatePlan, Offer
from tpuctl.cloud.requests import cancel, read_named, submit
from tpuctl.cloud.tpu import Tpu, describe_node
from tpuctl.errors import QuotaExceededError, StoppedError, TpuctlError
from tpuctl.outcome import Outcome, Status
from tpuctl.progress import OnProgress, silent

VALID_LONGER_S = 600.0
"""How long after our own deadline the service drops a place in its queue, should we be gone."""

MOST_VALID_S = 365 * 86400.0
"""No place in a queue is asked to be kept for longer: the service takes about a year."""

Choice = Literal["cancel", "leave"]

OnAttempt = Callable[[ZoneAttempt], None]


@dataclass(frozen=True, kw_only=True)
class Created(Tpu):
    """The TPU, as it was when `create` ended, and every zone that was asked before."""

    attempts: tuple[ZoneAttempt, ...]
    notes: tuple[str, ...] = field(default=(), metadata={"internal": True})
    because: tuple[str, ...] = field(default=(), metadata={"internal": True})

    @property
    def warnings(self) -> tuple[str, ...]:
        """What else may cost money, and what is wrong with it although it is ready."""
        return (*self.notes, *self.ailments)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Where the derived values came from."""
        return self.because


@dataclass(frozen=True)
class NotCreated(Outcome):
    """That no zone gave the TPU, and why."""

    name: str
    accelerator_type: str
    attempts: tuple[ZoneAttempt, ...]
    error: TpuctlError = field(metadata={"internal": True})
    notes: tuple[str, ...] = field(default=(), metadata={"internal": True})
    because: tuple[str, ...] = field(default=(), metadata={"internal": True})

    @property
    def status(self) -> Status:
        """An error, with the attempts as its data."""
        return "error"

    @property
    def exit_code(self) -> int:
        """3 when the same command may work later."""
        return self.error.exit_code

    @property
    def warnings(self) -> tuple[str, ...]:
        """What else may cost money."""
        return self.notes

    @property
    def reasons(self) -> tuple[str, ...]:
        """Where the derived values came from."""
        return self.because

    @property
    def failures(self) -> tuple[TpuctlError, ...]:
        """The one error that says what to do next."""
        return (self.error,)


def cancel_always() -> Choice:
    """Decide on Ctrl-C where there is nobody to ask: what is given up is cancelled."""
    return "cancel"


def create(
    api: TpuApi,
    plan: CreatePlan,
    *,
    journal: Journal | None = None,
    wait: bool = True,
    timeout_s: float | None = None,
    on_interrupt: Callable[[], Choice] = cancel_always,
    on_progress: OnProgress = silent,
    on_attempt: OnAttempt = lambda _: None,
) -> Created | NotCreated:
    """Create the planned TPU and wait until every worker of it can be reached. This costs money.

    `timeout_s` is for each zone, or for the whole wait of a queued one; by default a zone has
    LAND_S and a queue has for ever. Raises StoppedError on Ctrl-C, once `on_interrupt` has decided
    about what is under way.
    """
    journal = journal or Journal()
    with journal.session() as session:
        creation = _Creation(api, plan, journal, session, timeout_s, on_progress, on_attempt)
        try:
            return creation.race(wait=wait) if plan.queued else creation.search(wait=wait)
        except KeyboardInterrupt as interrupt:
            raise creation.stopped(on_interrupt) from interrupt
        except SystemExit as leaving:
            error = creation.stopped(cancel_always)
            error.exit_code = leaving.code if isinstance(leaving.code, int) else error.exit_code
            raise error from leaving


class _Creation:
    """One call of `create`: what it was told, and what it has tried so far."""

    def __init__(
        self,
        api: TpuApi,
        plan: CreatePlan,
        journal: Journal,
        session: str,
        timeout_s: float | None,
        on_progress: OnProgress,
        on_attempt: OnAttempt,
    ) -> None:
        self.api, self.plan, self.journal, self.session = api, plan, journal, session
        self.timeout_s = timeout_s
        self.attempts: list[ZoneAttempt] = []
        self.notes: list[str] = []
        self.on_progress, self.on_attempt = on_progress, on_attempt

    def search(self, *, wait: bool) -> Created | NotCreated:
        """Ask in one zone after the other."""
        full_regions: set[str] = set()
        for offer in self._offers():
            if offer.region in full_regions:
                reason = f"the quota of {offer.region} counts for all of its zones"
                self._note(ZoneAttempt(offer.zone, NOT_TRIED, reason, 0.0))
                continue
            pending = self._submit(offer)
            if pending and not wait:
                return self._left_waiting(pending)
            if pending and (node := self._follow([pending], self.timeout_s or LAND_S)):
                return node
            error = self.attempts[-1].error
            # What the operation ended with has been taken back: then it is known what there is.
            if is_final(error) and not (pending and is_lost(error)):
                return self._not_created(error)
            if isinstance(error, QuotaExceededError) and is_regional(error):
                full_regions.add(offer.region)
        return self._not_created()

    def race(self, *, wait: bool) -> Created | NotCreated:
        """Get in line in every zone at once; the first TPU wins and the others are cancelled."""
        race = new_create_id()
        contest = []
        for offer in self._offers():
            if pending := self._submit(offer, race=race):
                contest.append(pending)
            elif is_final(error := self.attempts[-1].error) and not is_lost(error):
                self._cancel(contest, f"{offer.zone} cannot have it")
                return self._not_created(error)
        if contest and not wait:
            return self._left_waiting(*contest)
        return (contest and self._follow(contest, self.timeout_s)) or self._not_created()

    def stopped(self, decide: Callable[[], Choice]) -> StoppedError:
        """Settle what is under way after Ctrl-C; a second one leaves it as it is."""
        under_way = self._under_way()
        if not under_way:
            return StoppedError("Interrupted; nothing was under way.")
        left = tuple(under_way)
        try:
            if decide() == "cancel":
                left = cancel(self.api, self.journal, under_way, outcome=StoppedError.code)
        except KeyboardInterrupt:
            left = tuple(self._under_way())
        if not left:
            zones = ", ".join(entry.zone for entry in under_way)
            return StoppedError(f"Interrupted; {self.plan.name} in {zones} was cancelled.")
        zones = ", ".join(entry.zone for entry in left)
        return StoppedError(
            f"Interrupted; {self.plan.name} in {zones} was left as it is, and may cost money.",
            hint=f"tpuctl wait {self.plan.name} --zone {left[0].zone}, or: "
            f"tpuctl delete {self.plan.name} --zone {left[0].zone}",
        )

    def _offers(self) -> list[Offer]:
        """Note what is no use to try, and begin where an interrupted create has begun."""
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
                timeout_s=self.timeout_s or LAND_S,
                valid_for_s=self.timeout_s and min(self.timeout_s + VALID_LONGER_S, MOST_VALID_S),
                race=race,
            )
        except TpuctlError as error:
            self._note(failed_attempt(offer.zone, error, 0.0))
            return None
        return PendingRequest(self.api, entry)

    def _follow(self, contest: list[PendingRequest], timeout_s: float | None) -> Created | None:
        try:
            landed = follow(
                self.api,
                contest,
                timeout_s=timeout_s,
                on_lost=self._lose,
                on_progress=self.on_progress,
            )
        except TpuctlError as error:
            error.hint = f"{self.plan.name} was asked for, and may exist: tpuctl list. {error.hint}"
            raise
        if landed is None:
            return None
        winner, node = landed
        self._cancel([each for each in contest if each is not winner], f"{node.zone} was first")
        self._note(ZoneAttempt(node.zone, "ready", "", winner.waited_s))
        # Last of all: whoever is killed before has told nobody, and the same command goes on.
        known = {"node_id": node.id, "created": node.created}
        self.journal.update(winner.entry, phase="ready", outcome="ready", **known)
        return self._created(node)

    def _cancel(self, contest: list[PendingRequest], why: str) -> None:
        """Give up those that still are under way."""
        left = [pending for pending in contest if self._is_under_way(pending.entry)]
        seconds = [pending.waited_s for pending in left]
        self._give_up([pending.entry for pending in left], outcome="cancelled")
        for pending, waited_s in zip(left, seconds, strict=True):
            self._note(ZoneAttempt(pending.entry.zone, "cancelled", why, waited_s))

    def _lose(self, pending: PendingRequest, error: TpuctlError) -> None:
        seconds = pending.waited_s
        self._give_up([pending.entry], outcome=error.code)
        self._note(failed_attempt(pending.entry.zone, error, seconds))

    def _give_up(self, entries: list[JournalEntry], *, outcome: str) -> None:
        for entry in cancel(self.api, self.journal, entries, outcome=outcome):
            self.notes.append(
                f"{entry.name} in {entry.zone} was cancelled, but is not gone yet. "
                "Look again in a minute: tpuctl gc"
            )

    def _left_waiting(self, *contest: PendingRequest) -> Created | NotCreated:
        first = contest[0]
        there = read_named(self.api, first.entry)
        if there is None:
            self._lose(first, first.why_gone())
            return self._left_waiting(*contest[1:]) if contest[1:] else self._not_created()
        for pending in contest:
            self._note(
                ZoneAttempt(pending.entry.zone, "accepted", "not waited for", pending.waited_s)
            )
        if len(contest) > 1:
            self.notes.append(_several_in_line(self.plan.name, len(contest)))
        if isinstance(there, Node):
            return self._created(there)
        return replace(self._created(_as_node(there, self.plan)), usd_so_far=0.0)

    def _created(self, node: Node) -> Created:
        tpu = describe_node(node, now=self.api.clock.now(), emulated=self.api.emulated)
        known = {each.name: getattr(tpu, each.name) for each in fields(Tpu)}
        wanted = next(offer.ttl_s for offer in self.plan.offers if offer.zone == node.zone)
        if wanted is not None and node.labels.get(LABEL_TTL_S) != str(wanted):
            self.notes.append(
                f"{node.name} was asked for by an earlier create, and keeps what limits that gave "
                "it: the time to live of this one does not hold."
            )
        return Created(
            **known,
            attempts=tuple(self.attempts),
            notes=tuple(self.notes),
            because=self.plan.because,
        )

    def _not_created(self, error: TpuctlError | None = None) -> NotCreated:
        attempts = tuple(self.attempts)
        return NotCreated(
            self.plan.name,
            self.plan.accelerator_type,
            attempts,
            error or overall_error(self.plan, attempts),
            tuple(self.notes),
            self.plan.because,
        )

    def _note(self, attempt: ZoneAttempt) -> None:
        self.attempts.append(attempt)
        self.on_attempt(attempt)

    def _under_way(self) -> list[JournalEntry]:
        entries = self.journal.entries(self.api)
        return [
            e for e in entries if e.session == self.session and e.phase not in ("ready", "closed")
        ]

    def _is_under_way(self, entry: JournalEntry) -> bool:
        known = self.journal.find(entry.create_id)
        return known is not None and known.is_open


def _as_node(queued: QueuedResource, plan: CreatePlan) -> Node:
    """Show a place in a queue as the TPU that it will become."""
    return Node(
        name=queued.name,
        zone=queued.zone,
        id="",
        accelerator_type=queued.accelerator_type,
        runtime_version=plan.runtime_version,
        state=queued.state,
        health="UNKNOWN",
        created=queued.created,
        spot=queued.spot,
        queued_resource=queued.name,
        labels=queued.labels,
    )


def _several_in_line(name: str, zones: int) -> str:
    return (
        f"{name} is in line in {zones} zones, and every one that comes costs money. The same "
        "command without --no-wait goes on until the first is ready, and cancels the others; or "
        "then: tpuctl gc --yes"
    )
