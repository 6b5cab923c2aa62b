"""The load of every worker: CPU, memory, chips and the processes that hold them."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tpuctl.errors import TpuctlError, WorkerLostError, WorkerUnreachableError
from tpuctl.hardware.types import known_chips
from tpuctl.remote.access import Access
from tpuctl.remote.connection import LEASE_S, Connection, call_agent, connection_lost
from tpuctl.remote.fleet import Fleet, on_every_worker, open_fleet, run_async
from tpuctl.remote.hosts import Host
from tpuctl.remote.results import Results, WorkerResult, with_failures

INTERVAL_S = 2.0
_SAMPLE_S = 0.5
_RETRY_S = 5.0


@dataclass(frozen=True)
class ChipUse:
    """One chip; unknown values are None, and `why_null` says why."""

    index: int
    device: str
    duty_cycle_percent: float | None
    hbm_used_bytes: int | None
    hbm_bytes: int | None
    holder_pid: int | None
    holder_user: str | None
    holder_command: str | None
    why_null: str | None


@dataclass(frozen=True, kw_only=True)
class WorkerUse(WorkerResult):
    """One worker; the load is the average of all vCPUs since the last sample."""

    vcpus: int | None = None
    vcpu_percent: float | None = None
    memory_bytes: int | None = None
    memory_used_bytes: int | None = None
    chips: tuple[ChipUse, ...] = ()
    why_null: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "why_null", self.error or self.why_null)


@dataclass(frozen=True)
class Usage(Results):
    """The load of some workers at one moment."""

    workers: tuple[WorkerUse, ...]


def read_usage(hosts: tuple[Host, ...], access: Access | None, *, as_root: bool = False) -> Usage:
    """Read the usage of every worker once; takes half a second to measure the load."""

    async def read(connection: Connection) -> WorkerUse:
        async with call_agent(connection, "top.watch", as_root, **_request(_SAMPLE_S, 1)) as call:
            return call.read(WorkerUse, await call.reply())

    answers = run_async(on_every_worker(hosts, access, read))
    return Usage(with_failures(WorkerUse, hosts, answers))


def follow_usage(
    hosts: tuple[Host, ...],
    access: Access | None,
    on_usage: Callable[[Usage], None],
    *,
    as_root: bool = False,
    interval_s: float = INTERVAL_S,
) -> None:
    """Pass the usage of every worker to `on_usage` at each interval, until Ctrl-C.

    A lost worker's error is part of the usage, and it is reconnected every few seconds.
    """
    latest: dict[Host, WorkerUse | TpuctlError] = {}

    async def report() -> None:
        while True:
            await asyncio.sleep(interval_s)
            if len(latest) == len(hosts):
                answers = [latest[host] for host in hosts]
                usage = Usage(with_failures(WorkerUse, hosts, answers))
                await asyncio.to_thread(on_usage, usage)

    async def follow() -> None:
        async with open_fleet(hosts, access) as fleet:
            watching = (_watch(fleet, host, latest, as_root, interval_s) for host in hosts)
            reporting = asyncio.create_task(report())
            try:
                await asyncio.gather(*watching, reporting)
            finally:
                reporting.cancel()

    run_async(follow())


async def _watch(
    fleet: Fleet,
    host: Host,
    latest: dict[Host, WorkerUse | TpuctlError],
    as_root: bool,
    interval_s: float,
) -> None:
    """Keep a worker's latest usage or error up to date; reconnect when it is lost."""
    request, connection = _request(interval_s, None), fleet.connection(host)
    while True:
        try:
            if isinstance(connection, TpuctlError):
                raise connection
            calling = call_agent(connection, "top.watch", as_root, **request)
            async with calling as call, call.heartbeats():
                async for note in call.notes():
                    latest[host] = call.read(WorkerUse, note)
            raise connection_lost(host)
        except (WorkerLostError, WorkerUnreachableError) as error:
            latest[host] = error
        except TpuctlError as error:
            latest[host] = error
            return
        await asyncio.sleep(_RETRY_S)
        try:
            connection = await fleet.reconnect(host)
        except TpuctlError as error:
            connection = error


def _request(interval_s: float, count: int | None) -> dict[str, Any]:
    return {
        "known": known_chips(),
        "interval_s": interval_s,
        "count": count,
        "lease_s": LEASE_S,
    }
