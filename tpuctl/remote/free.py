"""Find the processes that hold the chips of every worker, and end them."""

from dataclasses import dataclass, field, replace
from typing import Literal

from tpuctl.errors import ChipsHeldError
from tpuctl.hardware.types import known_chips
from tpuctl.remote.access import Access
from tpuctl.remote.agent.chips import REFUSED, STILL_RUNNING
from tpuctl.remote.connection import REPLY_S, Connection, call_agent
from tpuctl.remote.fleet import on_every_worker, run_async
from tpuctl.remote.hosts import Host, ranges
from tpuctl.remote.results import Results, WorkerResult, with_failures

FREE_GRACE_S = 10.0
# Chips stay busy for up to half a minute after their process was killed (seen on Kaggle).
_SETTLE_S = 30.0

EndOutcome = Literal["ended", "killed", "gone", "refused", "stays", "left"]
"""Outcomes for a process: the constants of `agent.chips`."""


@dataclass(frozen=True)
class ChipHolder:
    """A process that has chips open, how that was found, and its outcome (None: not touched)."""

    pid: int
    user: str | None
    command: str | None
    device: str
    seen_by: str
    is_this_notebook: bool
    outcome: EndOutcome | None = None
    may_end: bool = field(default=True, metadata={"internal": True})
    started: int | None = field(default=None, metadata={"internal": True})


@dataclass(frozen=True, kw_only=True)
class WorkerHolders(WorkerResult):
    """The holders of a worker's chips; `uninspected` counts processes we may not look into."""

    chips: int = 0
    holders: tuple[ChipHolder, ...] = ()
    uninspected: int = 0
    stale_lockfile: bool = False
    lockfile_removed: bool | None = None
    outcomes: tuple[tuple[int, EndOutcome], ...] = field(default=(), metadata={"internal": True})


@dataclass(frozen=True)
class Holders(Results):
    """The holders of the chips of some workers, before or after they were ended."""

    workers: tuple[WorkerHolders, ...]

    @property
    def to_end(self) -> list[tuple[WorkerHolders, ChipHolder]]:
        """The processes that may be ended."""
        return [(w, holder) for w in self.workers for holder in w.holders if holder.may_end]

    @property
    def needs_work(self) -> bool:
        """Whether there is a process to end or a lock file to remove."""
        return bool(self.to_end) or any(worker.stale_lockfile for worker in self.workers)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Workers on which not every process could be inspected."""
        unseen = [worker for worker in self.workers if worker.uninspected]
        if not unseen:
            return ()
        where = ranges([worker.index for worker in unseen])
        most = max(worker.uninspected for worker in unseen)
        return (
            f"Up to {most} processes of other users could not be inspected (worker {where}) and "
            "may hold chips. Use --sudo to inspect them as root.",
        )


def find_holders(
    hosts: tuple[Host, ...], access: Access | None, *, as_root: bool = False
) -> Holders:
    """Find the processes that have chips open on every worker; changes nothing."""

    async def read(connection: Connection) -> WorkerHolders:
        async with call_agent(connection, "chips.look", as_root, known=known_chips()) as call:
            return call.read(WorkerHolders, await call.reply())

    answers = run_async(on_every_worker(hosts, access, read))
    return Holders(with_failures(WorkerHolders, hosts, answers))


def free_chips(
    held: Holders,
    hosts: tuple[Host, ...],
    access: Access | None,
    *,
    as_root: bool = False,
    grace_s: float = FREE_GRACE_S,
) -> Holders:
    """End exactly the processes that were found: TERM, and KILL after `grace_s`.

    Parents of this process and reused process ids are left alone. A stale libtpu lock file of
    another user is removed. A worker whose chips are still held has failed.
    """
    before = {worker.index: worker for worker in held.workers}

    async def free(connection: Connection) -> WorkerHolders:
        found = before[connection.host.index]
        ending = [(one.pid, one.started) for one in found.holders if one.may_end]
        request = {"known": known_chips(), "processes": ending, "grace_s": grace_s}
        async with call_agent(
            connection, "chips.release", as_root, **request, settle_s=_SETTLE_S
        ) as call:
            after = call.read(WorkerHolders, await call.reply(grace_s + _SETTLE_S + REPLY_S))
        return _freed(connection.host, found, after)

    answers = run_async(on_every_worker(hosts, access, free))
    return Holders(with_failures(WorkerHolders, hosts, answers))


def _freed(host: Host, before: WorkerHolders, after: WorkerHolders) -> WorkerHolders:
    """Combine the holders found before, with their outcomes, and those found after."""
    outcomes: dict[int, EndOutcome] = dict(after.outcomes)
    touched = [
        replace(holder, outcome=outcomes.get(holder.pid, "left")) for holder in before.holders
    ]
    # A process id alone may have been reused, so the start time is part of the identity.
    known = {(holder.pid, holder.started) for holder in before.holders}
    still = {(holder.pid, holder.started) for holder in after.holders}
    new = [one for one in after.holders if (one.pid, one.started) not in known]
    left = [one for one in touched if (one.pid, one.started) in still]
    failure = _failure(host, left, new, after.lockfile_removed)
    return replace(after, holders=(*touched, *new), failure=failure)


def _failure(
    host: Host, left: list[ChipHolder], new: list[ChipHolder], lockfile_removed: bool | None
) -> ChipsHeldError | None:
    again = f"tpuctl free {host.target}"
    if host.index:
        again += f" --worker {host.index}"
    # One error is enough: the holders themselves are all in the result.
    if left:
        what, hint = _why_left(left[0], again)
    elif new:
        what = f"process {new[0].pid} ({new[0].command}) has opened chips in the meantime"
        hint = f"Check whether something restarts it, then: {again}"
    elif lockfile_removed is False:
        what, hint = "libtpu's lock file belongs to another user", f"{again} --sudo"
    else:
        return None
    return ChipsHeldError(f"{host.label}: {what}.", hint=hint)


def _why_left(holder: ChipHolder, again: str) -> tuple[str, str]:
    process = f"process {holder.pid}"
    if holder.outcome == REFUSED:
        owner = holder.user or "another user"
        return f"{process} belongs to {owner}, and we may not end it", f"{again} --sudo"
    if holder.outcome == STILL_RUNNING:
        return f"{process} was killed but does not end", "Restart that machine."
    if holder.is_this_notebook:
        return f"{process} is this notebook", "Restart its kernel."
    if holder.may_end:
        return f"{process} could not be identified", again
    return (
        f"{process} was left alone ({holder.seen_by}, or a parent of this process)",
        "End it yourself, on the host if this is a container.",
    )
