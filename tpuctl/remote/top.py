"""What every worker is doing: processors, memory, chips and who has them."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tpuctl.errors import TpuctlError, WorkerLostError, WorkerUnreachableError
from tpuctl.hardware.types import known_chips
from tpuctl.remote.access import Access
from tpuctl.remote.connection import LEASE_S, Connection, call_agent, connection_lost
from tpuctl.remote.fleet import Fleet, open_fleet, run_async
from tpuctl.remote.hosts import Host
from tpuctl.remote.results import Results, WorkerResult

INTERVAL_S = 2.0
_SAMPLE_S = 0.5
_RETRY_S = 5.0


@dataclass(frozen=True)
class ChipUse:
    """One chip; what nobody tells is None, and `why_null` says why."""

    index: int
    device: str
    duty_cycle_percent: float | None
    hbm_used_bytes: int | None
    hbm_bytes: int | None
    holder_pid: int | None
    holder_user: str | None
    holder_command: str | None
    why_null: str | None


@dataclass(frozen=True)
class WorkerUse(WorkerResult):
    """One worker; the load is of all its processors together, over the last moment."""

    vcpus: int | None = None
    vcpu_percent: float | None = None
    memory_bytes: int | None = None
    memory_used_bytes: int | None = None
    chips: tuple[ChipUse, ...] = ()
    why_null: str | None = None


@dataclass(frozen=True)
class Usage(Results):
    """What some workers are doing at one moment."""

    workers: tuple[WorkerUse, ...]


def read_usage(hosts: tuple[Host, ...], access: Access | None, *, as_root: bool = False) -> Usage:
    """Look at every worker once; takes half a second, over which the load is measured."""

    async def look(connection: Connection) -> WorkerUse:
        async with call_agent(
            connection, "top.watch", as_root, **_request(_SAMPLE_S, 1)
        ) as conversation:
            return _use(connection.host, await conversation.answer())

    async def look_everywhere() -> Usage:
        async with open_fleet(hosts, access) as fleet:
            return _usage(hosts, await fleet.each(look))

    return run_async(look_everywhere())


def follow_usage(
    hosts: tuple[Host, ...],
    access: Access | None,
    on_usage: Callable[[Usage], None],
    *,
    as_root: bool = False,
    interval_s: float = INTERVAL_S,
) -> None:
    """Hand on what every worker is doing, again and again, until Ctrl-C.

    A worker that is lost is shown so, and asked again every few seconds.
    """
    run_async(_Following(hosts, access, on_usage, as_root, interval_s).on_all())


class _Following:
    def __init__(
        self,
        hosts: tuple[Host, ...],
        access: Access | None,
        on_usage: Callable[[Usage], None],
        as_root: bool,
        interval_s: float,
    ) -> None:
        self._hosts, self._access, self._on_usage = hosts, access, on_usage
        self._as_root, self._interval_s = as_root, interval_s
        self._latest: dict[int, WorkerUse | TpuctlError] = {}

    async def on_all(self) -> None:
        async with open_fleet(self._hosts, self._access) as fleet:
            telling = asyncio.create_task(self._tell())
            try:
                # One that could not be reached at first is worth another try later on.
                await asyncio.gather(*(self._on_one(fleet, host) for host in self._hosts), telling)
            finally:
                telling.cancel()

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            if len(self._latest) == len(self._hosts):
                answers = [self._latest[host.index] for host in self._hosts]
                await asyncio.to_thread(self._on_usage, _usage(self._hosts, answers))

    async def _on_one(self, fleet: Fleet, host: Host) -> None:
        async def watch(connection: Connection) -> None:
            request = _request(self._interval_s, None)
            asked = call_agent(connection, "top.watch", self._as_root, **request)
            async with asked as conversation, conversation.watched():
                async for note in conversation.notes():
                    self._latest[host.index] = _use(host, note)
            raise connection_lost(host)

        connection = fleet.found(host)
        while True:
            try:
                if isinstance(connection, TpuctlError):
                    raise connection
                await watch(connection)
            except TpuctlError as error:
                self._latest[host.index] = error
                if not isinstance(error, (WorkerLostError, WorkerUnreachableError)):
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


def _usage(hosts: tuple[Host, ...], answers: list[WorkerUse | TpuctlError]) -> Usage:
    workers = (
        WorkerUse(host.index, host.address, str(answer), answer, why_null=str(answer))
        if isinstance(answer, TpuctlError)
        else answer
        for host, answer in zip(hosts, answers, strict=True)
    )
    return Usage(tuple(workers))


def _use(host: Host, note: Mapping[str, Any]) -> WorkerUse:
    chips = tuple(ChipUse(**chip) for chip in note["chips"])
    machine = {name: note[name] for name in _MACHINE}
    return WorkerUse(host.index, host.address, None, chips=chips, **machine)


_MACHINE = ("vcpus", "vcpu_percent", "memory_bytes", "memory_used_bytes", "why_null")
