"""The port: a connection to a worker, and a conversation with the agent over it."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from tpuctl.errors import (
    AlreadyExistsError,
    CommandNotFoundError,
    NotFoundError,
    TpuctlError,
    WorkerDiskFullError,
    WorkerError,
    WorkerLostError,
)
from tpuctl.remote.agent import wire
from tpuctl.remote.hosts import Host
from tpuctl.remote.payload import COMMAND, ROOT_COMMAND, request_bytes

HEARTBEAT_S = 10.0
LEASE_S = 120.0
"""A command that nobody was heard to watch for so long is stopped by its worker."""

_READ_BYTES = 1 << 18
_NOISE_BYTES = 1 << 16


@dataclass(frozen=True)
class Timeouts:
    """How long a worker may take: to let us in, between two signs of life, and to come back.

    `new_key_s` is for a key that was only just made known: workers hear of it a while later.
    """

    connect_s: float = 20.0
    keepalive_s: float = 10.0
    keepalives_missed: int = 3
    reconnect_s: float = 900.0
    new_key_s: float = 0.0


class Channel(Protocol):
    """A command that runs on a worker: its stdin, its stdout, and the end of its stderr."""

    async def read(self, size: int) -> bytes:
        """Read up to `size` bytes, b"" at the end; raises WorkerLostError."""

    async def write(self, data: bytes) -> None:
        """Write it all, at the pace of the other end; raises WorkerLostError."""

    def write_soon(self, data: bytes) -> None:
        """Write a few bytes without waiting."""

    def close_stdin(self) -> None:
        """Say that nothing more comes."""

    async def complaint(self) -> str:
        """What the command said on stderr, its end at most."""

    def close(self) -> None:
        """Be done with it."""


class Connection(Protocol):
    """One authenticated connection to one worker, over which many channels go."""

    host: Host

    async def open(self, command: str) -> Channel:
        """Start a command."""

    async def close(self) -> None:
        """Say goodbye."""


class AgentCall:
    """One request to the agent, and what it answers, frame by frame."""

    def __init__(self, host: Host, channel: Channel) -> None:
        self.host = host
        self._channel = channel
        self._buffer = bytearray()
        self._is_marked = False
        self._arrived: deque[tuple[bytes, bytes]] = deque()

    async def frames(self) -> AsyncIterator[tuple[bytes, bytes]]:
        """Yield every frame until the agent is done.

        Raises WorkerLostError when the connection breaks, and what the agent refuses with.
        """
        while True:
            while self._arrived:
                kind, payload = self._arrived.popleft()
                if kind == wire.NOTE and (refused := self._read(payload).get("refused")):
                    _refuse(self.host, refused)
                yield kind, payload
            data = await self._channel.read(_READ_BYTES)
            if not data:
                break
            self._buffer += data
            if self._is_marked or self._skip_noise():
                self._take_frames()
        if not self._is_marked:
            await self._complain()

    def _take_frames(self) -> None:
        try:
            self._arrived.extend(wire.split_frames(self._buffer))
        except wire.WireError as error:
            raise WorkerError(f"{self.host.label} does not make sense: {error}.") from error

    async def notes(self) -> AsyncIterator[dict[str, Any]]:
        """Yield every note, for operations that say nothing else."""
        async for kind, payload in self.frames():
            if kind == wire.NOTE:
                yield self._read(payload)

    async def answer(self) -> dict[str, Any]:
        """The first note; raises WorkerLostError when there is none."""
        async for note in self.notes():
            return note
        raise connection_lost(self.host)

    async def send(self, data: bytes) -> None:
        """Send frames at the pace of the worker."""
        await self._channel.write(data)

    def finish(self) -> None:
        """Close our side: a command that runs there is stopped."""
        self._channel.close_stdin()

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Say now and then that we still watch."""
        beat = asyncio.create_task(self._keep_alive())
        try:
            yield
        finally:
            beat.cancel()

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            self._channel.write_soon(wire.HEARTBEAT)

    def close(self) -> None:
        """Be done with it."""
        self._channel.close()

    def _read(self, payload: bytes) -> dict[str, Any]:
        try:
            return wire.read_note(payload)
        except wire.WireError as error:
            raise WorkerError(f"{self.host.label} does not make sense: {error}.") from error

    def _skip_noise(self) -> bool:
        """Drop what the shell's start-up files print before the agent speaks."""
        start = self._buffer.find(wire.MARK)
        if start < 0:
            del self._buffer[: max(0, len(self._buffer) - _NOISE_BYTES)]
            return False
        del self._buffer[: start + len(wire.MARK)]
        self._is_marked = True
        return True

    async def _complain(self) -> NoReturn:
        said = (await self._channel.complaint()).strip()
        last = said.splitlines()[-1] if said else "it said nothing"
        hint = f"Look yourself: ssh {self.host.user}@{self.host.address} -p {self.host.port}"
        if self.host.is_here:
            hint = "Look yourself: python3 --version"
        if "sudo" in last:
            hint = "Let that user use sudo without a password, or leave --sudo out."
        elif "python3" in said:
            hint = "Install Python 3.8 or newer there (apt-get install python3)."
        raise WorkerError(f"Could not start our agent on {self.host.label}: {last}", hint=hint)


@asynccontextmanager
async def call_agent(
    connection: Connection, operation: str, as_root: bool = False, /, **request: object
) -> AsyncIterator[AgentCall]:
    """Begin a conversation with the worker's agent, and end it whatever happens.

    With `as_root` the agent is root, by sudo; WorkerError where that wants a password.
    """
    async with call_agent_with(
        connection, request_bytes(operation, **request), as_root
    ) as conversation:
        yield conversation


@asynccontextmanager
async def call_agent_with(
    connection: Connection, first: bytes, as_root: bool = False
) -> AsyncIterator[AgentCall]:
    """The same with the first words prepared, which may then be the same for many workers."""
    channel = await connection.open(ROOT_COMMAND if as_root else COMMAND)
    conversation = AgentCall(connection.host, channel)
    try:
        await conversation.send(first)
        yield conversation
    finally:
        conversation.close()


def connection_lost(host: Host, why: str = "it ended without a word") -> WorkerLostError:
    """The error for a connection that broke."""
    return WorkerLostError(
        f"The connection to {host.label} broke: {why}.",
        hint="Is it still there? The same command again finds out; --detach survives this.",
    )


_REFUSALS: dict[str, tuple[type[TpuctlError], str]] = {
    "no_command": (CommandNotFoundError, "Is it installed there, and spelled right?"),
    "no_folder": (NotFoundError, "Copy it there first, with tpuctl cp."),
    "no_job": (NotFoundError, "List them: tpuctl logs {target} --list"),
    "job_exists": (AlreadyExistsError, "Choose another --job, or none: one is made up."),
    "no_path": (NotFoundError, "Look what is there: tpuctl run {target} -- ls -la"),
    "in_the_way": (AlreadyExistsError, "Move it away there, or copy to another place."),
    "disk_full": (WorkerDiskFullError, "See what fills it: tpuctl run {target} -- df -h"),
}


def _refuse(host: Host, refused: dict[str, Any]) -> NoReturn:
    kind, hint = _REFUSALS.get(str(refused["code"]), (WorkerError, ""))
    message = f"{host.label}: {refused['message']}."
    raise kind(message, hint=hint.format(target=host.target) or None)


_COMPLAINT_BYTES = 4096


class LocalConnector:
    """Opens what stands for a connection to this machine."""

    async def connect(self, host: Host) -> Connection:
        """There is nothing to authenticate."""
        return _LocalConnection(host)


class _LocalConnection:
    def __init__(self, host: Host) -> None:
        self.host = host
        self._channels: list[_LocalChannel] = []

    async def open(self, command: str) -> Channel:
        """Start a command in a session of its own, so that Ctrl-C is ours alone."""
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            "/bin/sh", "-c", command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
        )
        self._channels.append(_LocalChannel(process))
        return self._channels[-1]

    async def close(self) -> None:
        """Wait until nothing of it is left."""
        for channel in self._channels:
            await channel.end()


class _LocalChannel:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        self._process = process
        self._stdin, self._stdout, self._stderr = process.stdin, process.stdout, process.stderr

    async def read(self, size: int) -> bytes:
        """Read what there is, up to `size`."""
        return await self._stdout.read(size)

    async def write(self, data: bytes) -> None:
        """Write at the pace of the other end; that it is gone is found by reading."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self._stdin.write(data)
            await self._stdin.drain()

    def write_soon(self, data: bytes) -> None:
        """Write a few bytes, if anybody is still there."""
        if not self._stdin.is_closing():
            self._stdin.write(data)

    def close_stdin(self) -> None:
        """Say that nothing more comes."""
        self._stdin.close()

    async def complaint(self) -> str:
        """The end of what it said on stderr."""
        return (await self._stderr.read())[-_COMPLAINT_BYTES:].decode("utf-8", "replace")

    def close(self) -> None:
        """Be done with it: the agent ends when its stdin does."""
        self._stdin.close()

    async def end(self) -> None:
        """Wait for it, or end it."""
        self._stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), 5.0)
        except asyncio.TimeoutError:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
