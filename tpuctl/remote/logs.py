"""Read a job's log from every worker, or follow it to its end across broken connections."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tpuctl.errors import JobLostError, TpuctlError, WorkerLostError, WorkerUnreachableError
from tpuctl.remote.access import Access
from tpuctl.remote.agent import wire
from tpuctl.remote.agent.jobs import LOST
from tpuctl.remote.connection import Connection, call_agent, connection_lost
from tpuctl.remote.fleet import Fleet, open_fleet, run_async
from tpuctl.remote.hosts import Host
from tpuctl.remote.jobs import check_job, find_job
from tpuctl.remote.results import CommandResult, CommandResults, Output, Sink, command_result
from tpuctl.units import format_bytes

_FIRST_RETRY_S = 0.2
_LAST_RETRY_S = 15.0


@dataclass(frozen=True)
class LogResult(CommandResult):
    """How far a worker's log was read, and the state of the job at that moment."""

    state: str | None = None
    offset_bytes: int = 0


@dataclass(frozen=True)
class Logs(CommandResults):
    """The log of a job on all workers."""

    job: str
    workers: tuple[LogResult, ...]


def read_logs(
    hosts: tuple[Host, ...],
    access: Access,
    *,
    sink: Sink,
    note: Callable[[str], None],
    job: str | None = None,
    follow: bool = False,
    tail: int | None = None,
) -> Logs:
    """Hand a job's log (default: the newest job's) to `sink`; with `follow` until the job ends.

    A connection that breaks is opened again where it broke, without losing or repeating a byte;
    `note` hears of it. Followed to its end, the result carries the job's exit code.
    """
    output = Output(tuple(host.index for host in hosts), sink)
    reading = _Reading(access, output, note, LogListener(), {})
    return run_async(reading.on_all(hosts, check_job(job), follow=follow, tail=tail))


class LogListener:
    """Hears, worker by worker, how the following of a log goes; this one does not care."""

    def heard(self, worker: int, offset_bytes: int) -> None:
        """It has said something; its log is handed on up to there."""

    def lost(self, worker: int, error: TpuctlError) -> None:
        """Its connection broke, and is being opened again."""

    def back(self, worker: int) -> None:
        """Its connection is there again."""

    def ended(self, worker: int, end: "LogResult | TpuctlError") -> None:
        """There is nothing more to read there."""


async def follow_log(
    hosts: tuple[Host, ...],
    access: Access,
    *,
    sink: Sink,
    note: Callable[[str], None],
    job: str,
    listener: LogListener,
    offsets: Mapping[int, int],
    tail: int | None,
    follow: bool = True,
) -> Logs:
    """Follow a job's log until it has ended everywhere; may be cancelled at any moment.

    Without `follow` only what there is now. A worker that has an offset (bytes) is read on from
    there, others from their last `tail` lines.
    """
    output = Output(tuple(host.index for host in hosts), sink)
    reading = _Reading(access, output, note, listener, offsets)
    return await reading.on_all(hosts, job, follow=follow, tail=tail)


class _Reading:
    def __init__(
        self,
        access: Access,
        output: Output,
        note: Callable[[str], None],
        listener: LogListener,
        offsets: Mapping[int, int],
    ) -> None:
        self._patience, self._access = access.patience, access
        self._output, self._note, self._listener = output, note, listener
        self._offsets = offsets

    async def on_all(
        self, hosts: tuple[Host, ...], job: str | None, *, follow: bool, tail: int | None
    ) -> Logs:
        async with self._output, open_fleet(hosts, self._access) as fleet:
            name = await find_job(fleet, job)
            for host, error in fleet.unreached:
                self._listener.ended(host.index, error)

            async def read(connection: Connection) -> LogResult:
                start = self._offsets.get(connection.host.index)
                log = _WorkerLog(connection.host, name, self._listener, self._note, follow=follow)
                log.begin(start, tail)
                try:
                    return await self._to_the_end(fleet, connection, log)
                except TpuctlError as error:
                    self._listener.ended(log.host.index, error)
                    raise
                finally:
                    await self._output.end(log.host.index)

            answers = await fleet.each(read)
        workers = (
            LogResult(host.index, host.address, None, None, str(answer), failure=answer)
            if isinstance(answer, TpuctlError)
            else answer
            for host, answer in zip(hosts, answers, strict=True)
        )
        return Logs(job=name or "", workers=tuple(workers))

    async def _to_the_end(
        self, fleet: Fleet, connection: Connection, log: "_WorkerLog"
    ) -> LogResult:
        while True:
            try:
                end = log.end(await log.read(connection, self._output))
                self._listener.ended(log.host.index, end)
                return end
            except WorkerLostError as error:
                if not log.follow:
                    raise
                self._note(f"{error} Trying again where it broke.")
                self._listener.lost(log.host.index, error)
                connection = await self._reconnect(fleet, log.host)
                self._listener.back(log.host.index)

    async def _reconnect(self, fleet: Fleet, host: Host) -> Connection:
        """Try again, ever less often; raises WorkerUnreachableError in the end."""
        deadline, wait_s = time.monotonic() + self._patience.reconnect_s, _FIRST_RETRY_S
        while True:
            try:
                return await fleet.reconnect(host)
            except (WorkerUnreachableError, WorkerLostError):
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _LAST_RETRY_S)


class _WorkerLog:
    """One worker's log, and how far we are in it."""

    def __init__(
        self,
        host: Host,
        job: str | None,
        listener: LogListener,
        note: Callable[[str], None],
        *,
        follow: bool,
    ) -> None:
        self.host, self.follow = host, follow
        self._job, self._listener, self._note = job, listener, note
        self._is_mid_line = False
        self._offset = 0
        self._tail: int | None = None

    def begin(self, offset: int | None, tail: int | None) -> None:
        """Say where to begin: at an offset, else with the last lines, else at the beginning."""
        self._offset = offset or 0
        self._tail = tail if offset is None else None

    async def read(self, connection: Connection, output: Output) -> dict[str, Any]:
        """Read on from where we are; the job's state at the end."""
        request = {"job": self._job, "offset": self._offset, "tail": self._tail}
        async with call_agent(
            connection, "jobs.logs", **request, follow=self.follow
        ) as conversation:
            async for kind, payload in conversation.frames():
                if kind != wire.NOTE:
                    data = wire.read_block(kind, payload)
                    await output.take(self.host.index, 1, data)
                    self._offset += len(data)
                    self._is_mid_line = not data.endswith(b"\n")
                    self._listener.heard(self.host.index, self._offset)
                    continue
                note = wire.read_note(payload)
                if "ended" in note:
                    return dict(note["ended"])
                await self._explain(note, output)
                # From here on we know where we are, and ask for no tail again.
                self._offset, self._tail = note["offset"], None
        raise connection_lost(self.host)

    async def _explain(self, note: dict[str, Any], output: Output) -> None:
        """Say what of a log is no longer there, and end a line whose rest is gone."""
        if dropped := note.get("dropped_bytes"):
            if self._is_mid_line:
                await output.take(self.host.index, 1, b"\n")
            size = format_bytes(dropped)
            self._note(
                f"{size} of the log of job {self._job} are gone from {self.host.label}, which "
                "keeps only its end (run --log-limit)."
            )
        elif note.get("too_large"):
            limit = format_bytes(note["keeps_bytes"])
            self._note(
                f"The log of job {self._job} on {self.host.label} is larger than its limit of "
                f"{limit}: the file system there cannot drop its beginning."
            )

    def end(self, state: dict[str, Any]) -> LogResult:
        """What the job's state means for this worker."""
        host, failure = self.host, None
        ended = CommandResult(host.index, host.address, None, None, None)
        if state["state"] == LOST:
            failure = JobLostError(
                f"Job {self._job} is gone from {host.label} and left no exit code.",
                hint="Was the machine restarted? Its log is still there.",
            )
        elif state["exit"] and self.follow:
            ended = command_result(host, f"Job {self._job}", state["exit"])
        return LogResult(
            host.index,
            host.address,
            ended.exit_code,
            ended.signal,
            str(failure) if failure else ended.error,
            failure=failure or ended.failure,
            state=state["state"],
            offset_bytes=self._offset,
        )
