"""The proxy command of SSH to a runtime: a WebSocket that carries the bytes; run as a program.

The token of the runtime is read from Colab here, so that it is in no command line.
"""

import argparse
import asyncio
import base64
import os
import ssl
import struct
import sys
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlencode, urlsplit

from tpuctl.errors import (
    NotFoundError,
    TpuctlError,
    WorkerAuthError,
    WorkerError,
    WorkerUnreachableError,
)
from tpuctl.providers.colab._control_planes import open_control_plane
from tpuctl.providers.colab.api import Runtime
from tpuctl.providers.colab.records import Records
from tpuctl.storage.local import write_atomically

_CHUNK = 1 << 16
_CONNECT_S = 30.0
_CLOSE, _PING, _PONG, _BINARY = 8, 9, 10, 2
_REFUSALS: dict[int, tuple[type[TpuctlError], str, str]] = {
    400: (WorkerAuthError, "refuses our key", "It takes ed25519 and ecdsa keys only."),
    401: (WorkerUnreachableError, "refuses the token", "The same command again gets a new one."),
    403: (WorkerAuthError, "forbids SSH", "Colab may not allow it for this account."),
    404: (WorkerError, "has no SSH", "That is decided when it is created: delete it, create it."),
    429: (
        WorkerUnreachableError,
        "has another SSH connection open, and takes one at a time",
        "End that of the other tool, such as `colab ssh`.",
    ),
    502: (WorkerUnreachableError, "has an SSH server that does not run", "Try again in a minute."),
}


def find_runtime(name: str) -> Runtime:
    """Read a runtime with a fresh token; raises NotFoundError where it is gone."""
    record = Records().find(name)
    if record:
        for runtime in open_control_plane(record.plane or None).list():
            if runtime.id == record.runtime_id:
                return runtime
    raise NotFoundError(f"The runtime {name} is gone.", hint="tpuctl list --provider colab")


async def connect(
    runtime: Runtime, name: str, public_key: str
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open the WebSocket; raises the error that the answer means."""
    where = urlsplit(runtime.url)
    is_tls = where.scheme == "https"
    port = where.port or (443 if is_tls else 80)
    host = where.hostname or ""
    try:
        reader, writer = await asyncio.wait_for(
            asyncio.open_connection(
                host, port, ssl=ssl.create_default_context() if is_tls else None
            ),
            _CONNECT_S,
        )
        query = urlencode({"colab-runtime-proxy-token": runtime.token})
        lines = [
            f"GET {where.path.rstrip('/')}/colab/ssh?{query} HTTP/1.1",
            f"Host: {where.netloc}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}",
            "Sec-WebSocket-Version: 13",
            f"X-Colab-Ssh-Pubkey: {public_key}",
        ]
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _CONNECT_S)
    except (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError) as error:
        raise WorkerUnreachableError(
            f"Could not reach {name} on Colab: {error or type(error).__name__}."
        ) from error
    words = head.split(b"\r\n", 1)[0].split()
    status = int(words[1]) if len(words) > 1 and words[1].isdigit() else 0
    if status != 101:
        writer.close()
        unknown = (WorkerUnreachableError, f"answers with status {status}", "Try again later.")
        kind, what, hint = _REFUSALS.get(status, unknown)
        raise kind(f"{name} on Colab {what}. {hint}")
    return reader, writer


def frame(data: bytes, kind: int = _BINARY) -> bytes:
    """Make a masked frame, as clients have to."""
    size = len(data)
    if size < 126:
        head = struct.pack("!BB", 0x80 | kind, 0x80 | size)
    elif size < 1 << 16:
        head = struct.pack("!BBH", 0x80 | kind, 0x80 | 126, size)
    else:
        head = struct.pack("!BBQ", 0x80 | kind, 0x80 | 127, size)
    mask = os.urandom(4)
    repeated = (mask * (size // 4 + 1))[:size]
    masked = int.from_bytes(data, "big") ^ int.from_bytes(repeated, "big")
    return head + mask + masked.to_bytes(size, "big")


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carry bytes between the WebSocket and our stdin and stdout until either ends."""
    tasks = [asyncio.ensure_future(_up(writer)), asyncio.ensure_future(_down(reader, writer))]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    writer.close()


async def _up(writer: asyncio.StreamWriter) -> None:
    given = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(given)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin.buffer)
    while data := await given.read(_CHUNK):
        writer.write(frame(data))
        await writer.drain()


async def _down(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        first, second = await reader.readexactly(2)
        kind, size = first & 0x0F, second & 0x7F
        if size >= 126:
            size = int.from_bytes(await reader.readexactly(2 if size == 126 else 8), "big")
        if kind == _CLOSE:
            return
        if kind in (_PING, _PONG):
            data = await reader.readexactly(size)
            if kind == _PING:
                writer.write(frame(data, _PONG))
            continue
        while size:
            data = await reader.readexactly(min(size, _CHUNK))
            size -= len(data)
            await asyncio.get_running_loop().run_in_executor(None, _write_all, data)


def _write_all(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


def main() -> None:
    """Connect, and carry bytes; what fails is written to the file of errors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("public_key", type=Path)
    parser.add_argument("errors", type=Path)
    options = parser.parse_args()

    async def work() -> None:
        key = " ".join(options.public_key.read_text(encoding="utf-8").split()[:2])
        runtime = await asyncio.get_running_loop().run_in_executor(None, find_runtime, options.name)
        reader, writer = await connect(runtime, options.name, key)
        with suppress(asyncio.IncompleteReadError, OSError):
            await _forward(reader, writer)

    try:
        asyncio.run(work())
    except TpuctlError as error:
        hint = f" {error.hint}" if error.hint else ""
        write_atomically(options.errors, f"{error.code} {error}{hint}", private=True)
        raise SystemExit(1) from error
