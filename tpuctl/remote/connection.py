"""A connection to a worker, and calls to the agent that runs over it."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, TypeVar

from tpuctl.codec import from_plain
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

Record = TypeVar("Record")

HEARTBEAT_S = 10.0
LEASE_S = 120.0
"""A worker stops a command when it has heard no heartbeat for this long."""

START_S = 120.0
"""How long a worker's agent may take to start."""

REPLY_S = 120.0
"""How long it may take to reply, where that does not depend on the user's files or commands."""

STDERR_BYTES = 4096
"""How much of an agent's stderr is kept for the error message."""

_READ_BYTES = 1 << 18
_NOISE_BYTES = 1 << 20


@dataclass(frozen=True)
class Timeouts:
    """How long to wait for a connection, a keepalive reply and a lost worker's return.

    `new_key_s` is how long to retry a login with a key that was only just added to the metadata.
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
        """Write all of it, waiting while the other end is busy; raises WorkerLostError."""

    def write_soon(self, data: bytes) -> None:
        """Write a few bytes without waiting."""

    def close_stdin(self) -> None:
        """Send end of file."""

    async def stderr_tail(self) -> str:
        """Wait for the end of stderr and return its last bytes."""

    def close(self) -> None:
        """Close the channel."""


class Connection(Protocol):
    """One authenticated connection to one worker, with any number of channels."""

    host: Host

    async def open(self, command: str) -> Channel:
        """Start a command."""

    async def forward_socket(self, path: str, *, from_worker: bool) -> None:
        """Make a socket file reachable at the same path on the other machine.

        It is the worker's if `from_worker`, else ours. Raises WorkerError where the SSH server
        does not allow it.
        """

    async def close(self) -> None:
        """Close the connection."""


Connect = Callable[[Host], Awaitable[Connection]]
"""Connects to a worker and authenticates; raises a TpuctlError that names the worker."""


class AgentCall:
    """One request to a worker's agent, and its replies frame by frame."""

    def __init__(self, host: Host, channel: Channel) -> None:
        self.host = host
        self._channel = channel
        self._buffer = bytearray()
        self._has_started = False
        self._skipped_bytes = 0
        self._frames: deque[tuple[bytes, bytes]] = deque()
        self.most_bytes = wire.SMALL_FRAME_BYTES

    async def frames(self) -> AsyncIterator[tuple[bytes, Any]]:
        """Yield each frame's kind and content: a dict for a note, bytes for any other kind.

        Raises WorkerLostError when the connection breaks, WorkerError for malformed frames, and
        the error that the agent reports.
        """
        start_by = time.monotonic() + START_S
        while True:
            while self._frames:
                yield self._decode(*self._frames.popleft())
            data = await self._read(start_by)
            if not data:
                break
            self._buffer += data
            if self._has_started or self._skip_noise():
                try:
                    self._frames.extend(wire.split_frames(self._buffer, self.most_bytes))
                except wire.WireError as error:
                    raise self.malformed(error) from error
        if not self._has_started:
            await self._raise_start_error()

    async def _read(self, start_by: float) -> bytes:
        reading = self._channel.read(_READ_BYTES)
        if self._has_started:
            return await reading
        try:
            return await asyncio.wait_for(reading, max(0.1, start_by - time.monotonic()))
        except asyncio.TimeoutError as error:
            why = f"it does not answer within {START_S:g} s"
            raise self._start_error(why) from error

    def _decode(self, kind: bytes, payload: bytes) -> tuple[bytes, Any]:
        if kind in (wire.STDOUT, wire.STDERR):
            return kind, payload
        try:
            if kind != wire.NOTE:
                return kind, wire.read_block(kind, payload)
            note = wire.read_note(payload, self.most_bytes)
        except wire.WireError as error:
            raise self.malformed(error) from error
        if "refused" in note:
            refused = self.read(_Refusal, note["refused"])
            error_class, hint = _REFUSALS.get(refused.code, (WorkerError, ""))
            message = f"{self.host.label}: {refused.message}."
            raise error_class(message, hint=hint.format(target=self.host.target) or None)
        return kind, note

    async def notes(self) -> AsyncIterator[dict[str, Any]]:
        """Yield every note, for operations that send nothing else."""
        async for kind, content in self.frames():
            if kind != wire.NOTE:
                raise self.malformed(ValueError("output where there should be none"))
            yield content

    async def reply(self, within_s: float | None = REPLY_S) -> dict[str, Any]:
        """Return the first note; raises WorkerLostError when there is none in that time."""
        try:
            return await asyncio.wait_for(self._first_note(), within_s)
        except asyncio.TimeoutError as error:
            raise connection_lost(self.host, f"no reply within {within_s:g} s") from error

    async def _first_note(self) -> dict[str, Any]:
        async for note in self.notes():
            return note
        raise connection_lost(self.host)

    def read(self, kind: type[Record], value: Any) -> Record:
        """Make a dataclass of what a worker sent; raises WorkerError for missing or wrong fields.

        Fields `index` and `address` are this worker's, whatever was sent.
        """
        try:
            if isinstance(value, dict):
                value = {**value, "index": self.host.index, "address": self.host.address}
            return from_plain(kind, value)
        except (ValueError, OverflowError) as error:
            raise self.malformed(error) from error

    def malformed(self, error: Exception) -> WorkerError:
        """Make the error for something that our agent would not have sent."""
        return WorkerError(f"{self.host.label} sent a malformed reply: {error}.")

    async def send(self, data: bytes) -> None:
        """Send frames, waiting while the worker is busy."""
        await self._channel.write(data)

    def close_stdin(self) -> None:
        """Close our side, which stops a command that runs there."""
        self._channel.close_stdin()

    @asynccontextmanager
    async def heartbeats(self) -> AsyncIterator[None]:
        """Renew the lease of a running command for as long as the block lasts."""

        async def beat() -> None:
            while True:
                await asyncio.sleep(HEARTBEAT_S)
                self._channel.write_soon(wire.HEARTBEAT)

        task = asyncio.create_task(beat())
        try:
            yield
        finally:
            task.cancel()

    def _skip_noise(self) -> bool:
        """Drop what the shell's start-up files print before the agent starts."""
        start = self._buffer.find(wire.MARK)
        if start < 0:
            # The mark may have arrived in part, so the end of the buffer is kept.
            skipped = max(0, len(self._buffer) - len(wire.MARK))
            self._skipped_bytes += skipped
            if self._skipped_bytes > _NOISE_BYTES:
                raise self._start_error("its shell prints more than 1 MiB before that")
            del self._buffer[:skipped]
            return False
        del self._buffer[: start + len(wire.MARK)]
        self._has_started = True
        return True

    async def _raise_start_error(self) -> NoReturn:
        stderr = (await self._channel.stderr_tail()).strip()
        raise self._start_error(stderr.splitlines()[-1] if stderr else "no error message", stderr)

    def _start_error(self, last: str, stderr: str = "") -> WorkerError:
        hint = f"Log in to check: ssh {self.host.user}@{self.host.address} -p {self.host.port}"
        if self.host.is_local:
            hint = "Check your Python: python3 --version"
        if "sudo" in last:
            hint = "Allow that user to use sudo without a password, or leave --sudo out."
        elif "python3" in stderr:
            hint = "Install Python 3.8 or newer there (apt-get install python3)."
        return WorkerError(f"Could not start the agent on {self.host.label}: {last}", hint=hint)


@dataclass(frozen=True)
class _Refusal:
    code: str
    message: str


_REFUSALS: dict[str, tuple[type[TpuctlError], str]] = {
    "no_command": (CommandNotFoundError, "Check the spelling, and that it is installed there."),
    "no_shell": (CommandNotFoundError, "Give its words one by one, or to a shell: sh -c 'CMD'"),
    "no_folder": (NotFoundError, "Copy the folder there first with tpuctl cp."),
    "no_job": (NotFoundError, "List the jobs: tpuctl logs {target} --list"),
    "job_exists": (AlreadyExistsError, "Choose another name, or leave --job out to get one."),
    "no_path": (NotFoundError, "List what is there: tpuctl run {target} -- ls -la"),
    "in_the_way": (AlreadyExistsError, "Move it away there, or copy to another path."),
    "disk_full": (WorkerDiskFullError, "Find out what fills it: tpuctl run {target} -- df -h"),
}


@asynccontextmanager
async def call_agent(
    connection: Connection, operation: str, as_root: bool = False, /, **request: object
) -> AsyncIterator[AgentCall]:
    """Send a request to the worker's agent; the agent ends with the block.

    With `as_root` the agent runs under sudo; raises WorkerError if that asks for a password.
    """
    async with start_agent(connection, request_bytes(operation, **request), as_root) as call:
        yield call


@asynccontextmanager
async def start_agent(
    connection: Connection, first: bytes, as_root: bool = False
) -> AsyncIterator[AgentCall]:
    """Start the agent with bytes that were prepared once for many workers."""
    channel = await connection.open(ROOT_COMMAND if as_root else COMMAND)
    call = AgentCall(connection.host, channel)
    try:
        await call.send(first)
        yield call
    finally:
        channel.close()


def connection_lost(host: Host, why: str = "it ended without an error message") -> WorkerLostError:
    """Make the error for a connection that broke."""
    return WorkerLostError(
        f"The connection to {host.label} broke: {why}.",
        hint="Run the command again: it reconnects, or says that the TPU is gone. With --detach a "
        "command survives a broken connection.",
    )


async def connect_locally(host: Host) -> Connection:
    """Return a connection to this machine, without SSH; nothing can fail yet."""
    return LocalConnection(host)


class LocalConnection:
    """A connection of which every channel is a process on this machine."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self._channels: list[_LocalChannel] = []

    async def open(self, command: str) -> Channel:
        """Start a command."""
        return await self.start("/bin/sh", "-c", command)

    async def start(self, *argv: str) -> Channel:
        """Start a process as a channel."""
        # A new session keeps the terminal's Ctrl-C away from it: we stop it ourselves.
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
        )
        self._channels.append(_LocalChannel(process))
        return self._channels[-1]

    async def forward_socket(self, path: str, *, from_worker: bool) -> None:
        """Do nothing: it is the same machine."""

    async def close(self) -> None:
        """Wait for all processes to end."""
        for channel in self._channels:
            await channel.wait()


class _LocalChannel:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        self._process = process
        self._stdin, self._stderr = process.stdin, process.stderr
        self.read = process.stdout.read
        self.close_stdin = self.close = process.stdin.close

    async def write(self, data: bytes) -> None:
        # That the process is gone shows when its output is read, with its error message.
        with suppress(BrokenPipeError, ConnectionResetError):
            self._stdin.write(data)
            await self._stdin.drain()

    def write_soon(self, data: bytes) -> None:
        if not self._stdin.is_closing():
            self._stdin.write(data)

    async def stderr_tail(self) -> str:
        return (await self._stderr.read())[-STDERR_BYTES:].decode("utf-8", "replace")

    async def wait(self) -> None:
        """Wait for the process to end, or kill it after five seconds."""
        self._stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), 5.0)
        except asyncio.TimeoutError:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
