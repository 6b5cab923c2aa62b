"""This machine as a worker: the same agent, spoken to through pipes instead of SSH."""

import asyncio
from contextlib import suppress

from tpuctl.remote.connection import Channel, Connection
from tpuctl.remote.hosts import Host

_COMPLAINT_BYTES = 4096


class HereConnector:
    """Opens what stands for a connection to this machine."""

    async def connect(self, host: Host) -> Connection:
        """There is nothing to authenticate."""
        return _Here(host)


class _Here:
    def __init__(self, host: Host) -> None:
        self.host = host
        self._channels: list[_Channel] = []

    async def open(self, command: str) -> Channel:
        """Start a command in a session of its own, so that Ctrl-C is ours alone."""
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            "/bin/sh", "-c", command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
        )
        self._channels.append(_Channel(process))
        return self._channels[-1]

    async def close(self) -> None:
        """Wait until nothing of it is left."""
        for channel in self._channels:
            await channel.end()


class _Channel:
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
