"""Who has the chips of every worker, and ending these processes."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tpuctl.errors import ChipsHeldError, TpuctlError
from tpuctl.hardware.types import known_chips
from tpuctl.remote.access import Access
from tpuctl.remote.agent.chips import LEFT_ALONE, REFUSED, STILL_RUNNING
from tpuctl.remote.connection import Connection, call_agent
from tpuctl.remote.fleet import open_fleet, run_async
from tpuctl.remote.hosts import Host, ranges
from tpuctl.remote.results import Results, WorkerResult

FREE_GRACE_S = 10.0
# Chips stay busy for up to half a minute after their process was killed (seen on Kaggle).
_SETTLE_S = 30.0


@dataclass(frozen=True)
class ChipHolder:
    """A process that has chips, how that is known, and what became of it (None: not touched)."""

    pid: int
    user: str | None
    command: str | None
    device: str
    seen_by: str
    is_this_notebook: bool
    outcome: str | None = None
    may_end: bool = field(default=True, metadata={"internal": True})
    started: int | None = field(default=None, metadata={"internal": True})


@dataclass(frozen=True)
class WorkerHolders(WorkerResult):
    """The chips of a worker; `uninspected` processes did not let us see what they have open."""

    chips: int = 0
    holders: tuple[ChipHolder, ...] = ()
    uninspected: int = 0
    stale_lockfile: bool = False
    lockfile_removed: bool | None = None


@dataclass(frozen=True)
class Holders(Results):
    """Who has the chips of some workers, before or after they were freed."""

    workers: tuple[WorkerHolders, ...]

    @property
    def to_end(self) -> list[tuple[WorkerHolders, ChipHolder]]:
        """The processes that may be ended."""
        return [(w, holder) for w in self.workers for holder in w.holders if holder.may_end]

    @property
    def needs_work(self) -> bool:
        """Whether there is anything to end or to remove."""
        return bool(self.to_end) or any(worker.stale_lockfile for worker in self.workers)

    @property
    def warnings(self) -> tuple[str, ...]:
        """On which workers not every process could be looked into."""
        unseen = [worker for worker in self.workers if worker.uninspected]
        if not unseen:
            return ()
        where = ranges([worker.index for worker in unseen])
        most = max(worker.uninspected for worker in unseen)
        return (
            f"Up to {most} processes of other users could not be looked into (worker {where}): "
            "they may have chips. --sudo looks as root.",
        )


def find_holders(
    hosts: tuple[Host, ...], access: Access | None, *, as_root: bool = False
) -> Holders:
    """Find the processes that have chips open, on every worker; nothing is touched."""

    async def look(connection: Connection) -> WorkerHolders:
        known = known_chips()
        async with call_agent(connection, "chips.look", as_root, known=known) as conversation:
            return _seen(connection.host, await conversation.answer())

    async def look_everywhere() -> list[WorkerHolders | TpuctlError]:
        async with open_fleet(hosts, access) as fleet:
            return await fleet.each(look)

    return _held(hosts, run_async(look_everywhere()))


def free_chips(
    held: Holders,
    hosts: tuple[Host, ...],
    access: Access | None,
    *,
    as_root: bool = False,
    grace_s: float = FREE_GRACE_S,
) -> Holders:
    """End exactly the processes that were found: TERM, and KILL after `grace_s`.

    Never a parent of ours, nor one whose id belongs to somebody else by now. libtpu's lock file is
    removed where it is another user's and nobody has it. What still has chips is a failure.
    """
    before = {worker.index: worker for worker in held.workers}

    async def free(connection: Connection) -> WorkerHolders:
        host = connection.host
        ending = [(one.pid, one.started) for one in before[host.index].holders if one.may_end]
        request = {"known": known_chips(), "processes": ending, "grace_s": grace_s}
        async with call_agent(
            connection, "chips.release", as_root, **request, settle_s=_SETTLE_S
        ) as conversation:
            return _freed(host, before[host.index], await conversation.answer())

    async def free_everywhere() -> list[WorkerHolders | TpuctlError]:
        async with open_fleet(hosts, access) as fleet:
            return await fleet.each(free)

    return _held(hosts, run_async(free_everywhere()))


def _held(hosts: tuple[Host, ...], answers: list[WorkerHolders | TpuctlError]) -> Holders:
    workers = (
        WorkerHolders(host.index, host.address, str(answer), answer)
        if isinstance(answer, TpuctlError)
        else answer
        for host, answer in zip(hosts, answers, strict=True)
    )
    return Holders(tuple(workers))


def _seen(host: Host, answer: Mapping[str, Any]) -> WorkerHolders:
    return WorkerHolders(
        host.index,
        host.address,
        None,
        chips=answer["chips"],
        holders=tuple(ChipHolder(**line) for line in answer["holders"]),
        uninspected=answer["uninspected"],
        stale_lockfile=answer["stale_lockfile"],
    )


def _freed(host: Host, before: WorkerHolders, answer: Mapping[str, Any]) -> WorkerHolders:
    """What was found, with what became of it, and who has chips nevertheless."""
    outcomes = dict(answer["outcomes"])
    after = _seen(host, answer)
    touched = tuple(
        replace(holder, outcome=outcomes.get(holder.pid, LEFT_ALONE)) for holder in before.holders
    )
    known = {(holder.pid, holder.started) for holder in before.holders}
    new = tuple(one for one in after.holders if (one.pid, one.started) not in known)
    still = {(one.pid, one.started) for one in after.holders}
    left = [one for one in touched if (one.pid, one.started) in still]
    failure = _failure(host, left, new, answer["lockfile_removed"])
    return replace(
        after,
        holders=(*touched, *new),
        lockfile_removed=answer["lockfile_removed"],
        error=str(failure) if failure else None,
        failure=failure,
    )


def _failure(
    host: Host, left: list[ChipHolder], new: tuple[ChipHolder, ...], lockfile: bool | None
) -> ChipsHeldError | None:
    again = f"tpuctl free {host.target}"
    if host.index:
        again += f" --worker {host.index}"
    for holder in left:
        who = f"process {holder.pid}"
        if holder.outcome == REFUSED:
            what = f"{who} belongs to {holder.user or 'somebody else'}, and is not ours to end"
            return ChipsHeldError(f"{host.label}: {what}.", hint=f"{again} --sudo")
        if holder.outcome == STILL_RUNNING:
            what, hint = f"{who} does not end although it was killed", "Restart that machine."
        elif holder.is_this_notebook:
            what, hint = f"{who} is this very notebook", "Restart its kernel."
        elif holder.may_end:
            what, hint = f"{who} could not be told from another", again
        else:
            what = f"{who} was left alone ({holder.seen_by}, or a parent of ours)"
            hint = "Look for it on the host, outside this container; or end it yourself."
        return ChipsHeldError(f"{host.label}: {what}.", hint=hint)
    for holder in new:
        what = f"process {holder.pid} ({holder.command}) has taken chips meanwhile"
        return ChipsHeldError(f"{host.label}: {what}.", hint=f"Does something restart it? {again}")
    if lockfile is False:
        what = "libtpu's lock file is another user's and cannot be removed"
        return ChipsHeldError(f"{host.label}: {what}.", hint=f"{again} --sudo")
    return None
