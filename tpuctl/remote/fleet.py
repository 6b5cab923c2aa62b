"""The same work on all workers at once, and a way to stop it that reaches every one of them."""

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

from tpuctl.errors import NotStartedError, TpuctlError
from tpuctl.remote.access import Access, Connector, connector
from tpuctl.remote.connection import Connection
from tpuctl.remote.hosts import Host, name_workers

T = TypeVar("T")

_LAST_TURNS = 3
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Fleet:
    """Connections to some workers, one each, over which they all do the same at once."""

    def __init__(
        self, ssh: Connector, hosts: tuple[Host, ...], found: list[Connection | TpuctlError]
    ) -> None:
        self.hosts = hosts
        self._ssh, self._found = ssh, found

    @property
    def unreached(self) -> list[tuple[Host, TpuctlError]]:
        """Every worker to which there is no connection, and why."""
        pairs = zip(self.hosts, self._found, strict=True)
        return [(host, found) for host, found in pairs if isinstance(found, TpuctlError)]

    async def each(self, work: Callable[[Connection], Awaitable[T]]) -> list[T | TpuctlError]:
        """Do the work on every worker; what fails, or could not be reached, is a result too."""

        async def on_one(place: int) -> T | TpuctlError:
            connection = self._found[place]
            if isinstance(connection, TpuctlError):
                return connection
            try:
                return await work(connection)
            except TpuctlError as error:
                return error

        return await _all(on_one(place) for place in range(len(self.hosts)))

    def found(self, host: Host) -> Connection | TpuctlError:
        """The connection to a worker, or why there is none."""
        return self._found[self.hosts.index(host)]

    async def reconnect(self, host: Host) -> Connection:
        """Open another connection in place of a worker's broken one."""
        place = self.hosts.index(host)
        await _close(self._found[place])
        connection = self._found[place] = await self._ssh.connect(host)
        return connection

    async def close(self) -> None:
        """Say goodbye to everybody."""
        await _all(_close(connection) for connection in self._found)


@asynccontextmanager
async def open_fleet(
    hosts: tuple[Host, ...], access: Access | None, *, together: bool = False
) -> AsyncIterator[Fleet]:
    """Connect to every worker at once; without an access, to this machine.

    With `together`, nobody takes part when one cannot be reached, for a program for a slice would
    wait for it for ever; the others' result is then NotStartedError.
    """
    async with connector(access, len(hosts)) as ssh:
        found = await _all(_connect(ssh, host) for host in hosts)
        fleet = Fleet(ssh, hosts, found)
        if together and (missing := _missing(hosts, found)):
            await fleet.close()
            pairs = zip(hosts, found, strict=True)
            fleet = Fleet(ssh, hosts, [_not_started(*pair, missing) for pair in pairs])
        try:
            yield fleet
        finally:
            await fleet.close()


async def _all(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Do it all at once; when one raises or we are cancelled, the others are stopped first."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        # Each may need a moment to stop what it has started over there.
        await asyncio.gather(*tasks, return_exceptions=True)
    return [task.result() for task in tasks]


async def _connect(ssh: Connector, host: Host) -> Connection | TpuctlError:
    try:
        return await ssh.connect(host)
    except TpuctlError as error:
        return error


async def _close(connection: Connection | TpuctlError) -> None:
    if not isinstance(connection, TpuctlError):
        await connection.close()


def _missing(hosts: tuple[Host, ...], found: list[Connection | TpuctlError]) -> list[int]:
    pairs = zip(hosts, found, strict=True)
    return [host.index for host, one in pairs if isinstance(one, TpuctlError)]


def _not_started(
    host: Host, found: Connection | TpuctlError, missing: list[int]
) -> Connection | TpuctlError:
    if isinstance(found, TpuctlError):
        return found
    them = name_workers(missing)
    return NotStartedError(f"Nothing was started on {host.label}, for {them} cannot be reached.")


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run asynchronous work to its end, from anywhere, a notebook included.

    Ctrl-C (and TERM, HUP) cancels it, which it may use to leave nothing behind; then
    KeyboardInterrupt (or SystemExit) is raised. A second Ctrl-C is not waited for.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _drive_here(work)
    return _drive_in_thread(work)


def _drive_here(work: Coroutine[Any, Any, T]) -> T:
    received: list[int] = []
    loop = asyncio.new_event_loop()
    try:
        task = loop.create_task(work)
        with _cancelled_by_signals(loop, task, received):
            return loop.run_until_complete(task)
    except asyncio.CancelledError:
        if received and received[0] != signal.SIGINT:
            raise SystemExit(128 + received[0]) from None
        raise KeyboardInterrupt from None
    finally:
        loop.run_until_complete(_leave_nothing())
        loop.close()


@contextmanager
def _cancelled_by_signals(
    loop: asyncio.AbstractEventLoop, task: "asyncio.Task[T]", received: list[int]
) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def cancel(number: int) -> None:
        received.append(number)
        if len(received) == 1:
            task.cancel()
        else:
            loop.stop()

    before = {number: signal.getsignal(number) for number in _SIGNALS}
    for number in _SIGNALS:
        loop.add_signal_handler(number, cancel, number)
    try:
        yield
    except RuntimeError:
        if len(received) < 2:
            raise
        raise asyncio.CancelledError from None
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


async def _leave_nothing() -> None:
    """Cancel what a second Ctrl-C has left over."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
    # A transport that was closed just now needs some more turns to let go of its socket.
    for _ in range(_LAST_TURNS):
        await asyncio.sleep(0)


def _drive_in_thread(work: Coroutine[Any, Any, T]) -> T:
    """A notebook has a loop of its own: leave it alone."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()
