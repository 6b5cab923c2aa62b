"""Read a job's log from every worker, or follow it to its end across broken connections."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tpuctl.clock import RetryPolicy
from tpuctl.errors import JobLostError, TpuctlError, WorkerLostError, WorkerUnreachableError
from tpuctl.remote.access import Access
from tpuctl.remote.agent import wire
from tpuctl.remote.agent.jobs import LOST
from tpuctl.remote.connection import Connection, call_agent, connection_lost
from tpuctl.remote.fleet import Fleet, open_fleet, run_async
from tpuctl.remote.hosts import Host
from tpuctl.remote.jobs import JobReport, check_job, find_job
from tpuctl.remote.output import Output, Sink
from tpuctl.remote.results import CommandResult, Results, command_result, with_failures
from tpuctl.units import format_bytes

_RECONNECT = RetryPolicy(0.2, 15.0)


@dataclass(frozen=True, kw_only=True)
class LogResult(CommandResult):
    """How far a worker's log was read, and the job's state at that moment."""

    state: str | None = None
    offset_bytes: int = 0


@dataclass(frozen=True)
class Logs(Results):
    """The log of a job on all workers."""

    job: str
    workers: tuple[LogResult, ...]


class LogListener:
    """Told about each worker while a log is followed; this base class ignores it."""

    def received(self, worker: int, offset_bytes: int) -> None:
        """The worker's log was passed on up to this offset."""

    def lost(self, worker: int, error: TpuctlError) -> None:
        """The worker's connection broke, and is being opened again."""

    def back(self, worker: int) -> None:
        """The worker's connection is open again."""

    def ended(self, worker: int, end: LogResult | TpuctlError) -> None:
        """The worker's log has ended."""


def read_logs(
    hosts: tuple[Host, ...],
    access: Access,
    *,
    sink: Sink,
    note: Callable[[str], None],
    job: str | None = None,
    follow: bool = False,
    offsets: Mapping[int, int] | None = None,
    tail: int | None = None,
) -> Logs:
    """Pass a job's log (default: the newest job's) to `sink`; with `follow` until the job ends.

    A broken connection is reopened without losing or repeating a byte, and reported to `note`. With
    `follow`, the result has the job's exit code. For `offsets` and `tail` see `follow_log`.
    """
    return run_async(
        follow_log(
            hosts,
            access,
            sink=sink,
            note=note,
            job=check_job(job),
            offsets=offsets or {},
            tail=tail,
            follow=follow,
        )
    )


async def follow_log(
    hosts: tuple[Host, ...],
    access: Access,
    *,
    sink: Sink,
    note: Callable[[str], None],
    job: str | None,
    listener: LogListener | None = None,
    offsets: Mapping[int, int],
    tail: int | None,
    follow: bool = True,
) -> Logs:
    """Pass a job's log to `sink` until it has ended everywhere; without `follow`, what exists now.

    A worker with an offset (bytes) is read from there, the others from their last `tail` lines.
    """
    listener = listener or LogListener()
    output = Output(tuple(host.index for host in hosts), sink)
    async with output, open_fleet(hosts, access) as fleet:
        name = await find_job(fleet, job)
        for host, error in fleet.unreached:
            listener.ended(host.index, error)

        async def read(connection: Connection) -> LogResult:
            worker = connection.host.index
            offset = offsets.get(worker)
            log = _WorkerLog(
                connection.host,
                name,
                output,
                note,
                listener,
                follow,
                offset=offset or 0,
                tail=tail if offset is None else None,
            )
            try:
                result = await log.read_to_end(fleet, connection, access.timeouts.reconnect_s)
            except TpuctlError as error:
                listener.ended(worker, error)
                raise
            finally:
                await output.end(worker)
            listener.ended(worker, result)
            return result

        answers = await fleet.each(read)
    return Logs(job=name or "", workers=with_failures(LogResult, hosts, answers))


@dataclass
class _WorkerLog:
    """One worker's log, and how far it has been read."""

    host: Host
    job: str | None
    output: Output
    note: Callable[[str], None]
    listener: LogListener
    follow: bool
    offset: int
    tail: int | None
    is_mid_line: bool = False

    async def read_to_end(
        self, fleet: Fleet, connection: Connection, reconnect_s: float
    ) -> LogResult:
        """Read to the end of the log, across broken connections."""
        while True:
            try:
                return self._result(await self._read(connection))
            except WorkerLostError as error:
                if not self.follow:
                    raise
                self.note(f"{error} Reconnecting; the log continues where it stopped.")
                self.listener.lost(self.host.index, error)
                connection = await _reconnect(fleet, self.host, reconnect_s)
                self.listener.back(self.host.index)

    async def _read(self, connection: Connection) -> JobReport:
        """Read from the current offset; returns the job's state at the end."""
        request = {"job": self.job, "offset": self.offset, "tail": self.tail}
        async with call_agent(connection, "jobs.logs", **request, follow=self.follow) as call:
            async for kind, content in call.frames():
                if kind != wire.NOTE:
                    await self.output.take(self.host.index, 1, content)
                    self.offset += len(content)
                    self.is_mid_line = not content.endswith(b"\n")
                    self.listener.received(self.host.index, self.offset)
                elif "ended" in content:
                    return call.read(JobReport, content["ended"])
                else:
                    position = call.read(_Position, content)
                    await self._report_gaps(position)
                    # The offset is known from here on, so a reconnect asks for no tail again.
                    self.offset, self.tail = position.offset, None
        raise connection_lost(self.host)

    async def _report_gaps(self, position: "_Position") -> None:
        """Report dropped parts of the log, and end a line whose rest was dropped."""
        if not position.dropped_bytes:
            return
        if self.is_mid_line:
            await self.output.take(self.host.index, 1, b"\n")
        self.note(
            f"{self.host.label} has dropped {format_bytes(position.dropped_bytes)} of the log of "
            f"job {self.job}: it keeps only the end (run --log-limit)."
        )

    def _result(self, status: JobReport) -> LogResult:
        host = self.host
        place: dict[str, Any] = {"state": status.state, "offset_bytes": self.offset}
        if status.state == LOST:
            error = JobLostError(
                f"Job {self.job} disappeared from {host.label} and left no exit code.",
                hint="The machine may have been restarted. The job's log is still there.",
            )
            return LogResult(index=host.index, address=host.address, failure=error, **place)
        if status.exit and self.follow:
            return command_result(LogResult, host, f"Job {self.job}", status.exit, **place)
        return LogResult(index=host.index, address=host.address, **place)


@dataclass(frozen=True)
class _Position:
    """Where the agent continues, and what was dropped before that."""

    offset: int
    dropped_bytes: int = 0


async def _reconnect(fleet: Fleet, host: Host, reconnect_s: float) -> Connection:
    """Reconnect with growing pauses; raises WorkerUnreachableError after `reconnect_s`."""
    deadline, failures = time.monotonic() + reconnect_s, 0
    while True:
        try:
            return await fleet.reconnect(host)
        except (WorkerUnreachableError, WorkerLostError):
            if time.monotonic() > deadline:
                raise
        failures += 1
        await asyncio.sleep(_RECONNECT.longest_pause_s(failures))
