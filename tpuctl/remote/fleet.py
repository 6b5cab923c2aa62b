"""The same work on all workers at once, and a way to cancel it that reaches every worker."""

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from typing import Any, TypeVar

from tpuctl.errors import NotStartedError, TpuctlError, WorkerError
from tpuctl.remote.access import Access
from tpuctl.remote.connection import Connect, Connection, connect_locally
from tpuctl.remote.hosts import Host, name_workers

T = TypeVar("T")
Answers = list[T | TpuctlError]

_LAST_TURNS = 3
# What data can cause that no check expected: it must not take the other workers' results away.
_MALFORMED = (ValueError, TypeError, LookupError, OverflowError, RecursionError, MemoryError)
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def require_extra(*, for_folders: bool) -> None:
    """Raise MissingExtraError now rather than after something was created that needs it."""
    import tpuctl.remote._asyncssh

    if for_folders:
        import tpuctl.remote._ignore  # noqa: F401


def _open_transport(access: Access | None, workers: int) -> AbstractAsyncContextManager[Connect]:
    if access is None:
        return nullcontext(connect_locally)
    if access.shared:
        return access.shared.transport()
    from tpuctl.remote._asyncssh import open_ssh

    return open_ssh(access, workers)


class Fleet:
    """One connection each to some workers, or the error if it failed."""

    def __init__(
        self, connect: Connect, hosts: tuple[Host, ...], connections: Answers[Connection]
    ) -> None:
        self.hosts = hosts
        self._connect, self._connections = connect, connections

    @property
    def unreached(self) -> list[tuple[Host, TpuctlError]]:
        """Workers without a connection, and why."""
        pairs = zip(self.hosts, self._connections, strict=True)
        return [(host, found) for host, found in pairs if isinstance(found, TpuctlError)]

    async def each(self, work: Callable[[Connection], Awaitable[T]]) -> Answers[T]:
        """Do the work on every worker; an error is that worker's answer."""

        async def on_one(connection: Connection | TpuctlError) -> T | TpuctlError:
            if isinstance(connection, TpuctlError):
                return connection
            try:
                return await work(connection)
            except TpuctlError as error:
                return error
            except _MALFORMED as error:
                return _unexpected(connection.host, error)

        return await await_all(map(on_one, self._connections))

    def connection(self, host: Host) -> Connection | TpuctlError:
        """Return the connection to a worker, or why there is none."""
        return self._connections[self.hosts.index(host)]

    async def reconnect(self, host: Host) -> Connection:
        """Replace a worker's broken connection by a new one."""
        place = self.hosts.index(host)
        await _close(self._connections[place])
        connection = self._connections[place] = await self._connect(host)
        return connection

    async def close(self) -> None:
        """Close all connections."""
        await await_all(map(_close, self._connections))


@asynccontextmanager
async def open_fleet(
    hosts: tuple[Host, ...], access: Access | None, *, together: bool = False
) -> AsyncIterator[Fleet]:
    """Connect to every worker at once; without `access`, to this machine.

    With `together`, all or none: if one cannot be reached, the others' answer is NotStartedError,
    because a program for a whole slice would wait for the missing worker forever.
    """
    async with _open_transport(access, len(hosts)) as connect:

        async def try_to_connect(host: Host) -> Connection | TpuctlError:
            try:
                return await connect(host)
            except TpuctlError as error:
                return error
            except _MALFORMED as error:
                return _unexpected(host, error)

        fleet = Fleet(connect, hosts, await await_all(map(try_to_connect, hosts)))
        if together and (unreached := dict(fleet.unreached)):
            await fleet.close()
            why = f"because {name_workers(host.index for host in unreached)} cannot be reached"
            answers: Answers[Connection] = [
                unreached.get(host)
                or NotStartedError(f"Nothing was started on {host.label}, {why}.")
                for host in hosts
            ]
            fleet = Fleet(connect, hosts, answers)
        try:
            if access and (new_keys := access.host_keys.describe_new()):
                access.on_warning(new_keys)
            yield fleet
        finally:
            await fleet.close()


async def on_every_worker(
    hosts: tuple[Host, ...],
    access: Access | None,
    work: Callable[[Connection], Awaitable[T]],
    *,
    together: bool = False,
) -> Answers[T]:
    """Connect to every worker, do the work there, and return each one's answer in order."""
    async with open_fleet(hosts, access, together=together) as fleet:
        return await fleet.each(work)


def _unexpected(host: Host, error: Exception) -> WorkerError:
    what = f"{type(error).__name__}: {error}"[:200]
    return WorkerError(f"{host.label} sent something unexpected: {what}.")


async def await_all(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Await all at once; if one raises or we are cancelled, the others are cancelled first."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        # Wait for them: each may still have to stop a command on its worker.
        await asyncio.gather(*tasks, return_exceptions=True)
    # What one raised comes first: the others end as cancelled, which would read as Ctrl-C.
    failed = [task for task in done if task.exception()]
    return [task.result() for task in failed or tasks]


async def _close(connection: Connection | TpuctlError) -> None:
    if not isinstance(connection, TpuctlError):
        await connection.close()


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, from anywhere, including a notebook.

    SIGINT, SIGTERM and SIGHUP cancel it, so that it can clean up on the workers; then
    KeyboardInterrupt (or SystemExit) is raised. A second signal ends the clean-up.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _run_in_new_loop(work)
    # A notebook has a running loop already, so ours needs its own thread.
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


def _run_in_new_loop(work: Coroutine[Any, Any, T]) -> T:
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
        loop.run_until_complete(_cancel_remaining_tasks())
        loop.close()


@contextmanager
def _cancelled_by_signals(
    loop: asyncio.AbstractEventLoop, task: "asyncio.Task[T]", received: list[int]
) -> Iterator[None]:
    # Only the main thread may set signal handlers.
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
        # loop.stop() makes run_until_complete() raise RuntimeError.
        if len(received) < 2:
            raise
        raise asyncio.CancelledError from None
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


async def _cancel_remaining_tasks() -> None:
    """Cancel the tasks that a second Ctrl-C has left running."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
    # A transport that was just closed needs a few more iterations to release its socket.
    for _ in range(_LAST_TURNS):
        await asyncio.sleep(0)
