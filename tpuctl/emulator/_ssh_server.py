"""The SSH server of an emulated worker: real commands, in its own folder and environment."""

import asyncio
import fcntl
import os
import pty
import signal
import sys
import termios
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import asyncssh

from tpuctl.emulator.confine import Confinement
from tpuctl.emulator.worker_processes import MARK, kill_everything
from tpuctl.storage.local import write_atomically

T = TypeVar("T")

_CHUNK_BYTES = 1 << 16
# As on a TPU VM, whatever the emulator's own one is.
_UMASK = 0o022


@dataclass
class EmulatedWorker:
    """A running SSH server."""

    addresses: Sequence[str]
    port: int
    confinement: Confinement
    acceptor: Any = field(repr=False)
    host_key: str = ""
    connections: set[Any] = field(default_factory=set, repr=False)
    sessions: "set[asyncio.Task[Any]]" = field(default_factory=set, repr=False)

    def drop(self) -> None:
        """Break all connections; their commands keep running."""
        for connection in list(self.connections):
            connection.abort()

    async def close(self) -> None:
        """Stop like a machine that is switched off: end all connections and processes."""
        self.acceptor.close()
        self.drop()
        kill_everything(self.confinement.home)
        self.confinement.close()
        await self.acceptor.wait_closed()
        await asyncio.gather(*self.sessions, return_exceptions=True)


async def serve_worker(
    addresses: Sequence[str],
    port: int,
    *,
    confinement: Confinement,
    env: Mapping[str, str],
    host_key: Path,
    authorized_keys: Callable[[str], Sequence[str]],
) -> EmulatedWorker:
    """Start a worker's SSH server on the given addresses of this machine.

    Commands run in the home of the `confinement`, as the user of this process, with `env` and
    little else. The file `host_key` is created if missing. `authorized_keys` returns a user's
    public keys at login. Port 0 means any free port.
    """
    folder = confinement.home
    folder.mkdir(parents=True, exist_ok=True)
    # Our Python comes first, because it has the packages that training scripts need.
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
    own = {"HOME": str(folder), "PATH": path, "LANG": "C.UTF-8", MARK: str(folder), **env}
    key = _host_key(host_key)
    public = " ".join(key.export_public_key().decode().split()[:2])
    worker = EmulatedWorker(addresses, port, confinement, None, public)
    worker.acceptor = await asyncssh.listen(
        list(addresses),
        port,
        server_factory=lambda: _Server(worker.connections, authorized_keys),
        server_host_keys=[key],
        process_factory=lambda process: _serve_session(process, worker, own),
        sftp_factory=lambda channel: _Files(channel, confinement),
        encoding=None,
        line_editor=False,
        gss_host=None,
        compression_algs=None,
        reuse_address=True,
    )
    worker.port = worker.acceptor.get_port()
    return worker


def _host_key(path: Path) -> Any:
    if not path.exists():
        key = asyncssh.generate_private_key("ssh-ed25519")
        write_atomically(path, key.export_private_key(), private=True)
    return asyncssh.read_private_key(str(path))


class WorkerServers:
    """The SSH servers of many workers, on one thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="workers", daemon=True)
        self._thread.start()
        self._workers: list[EmulatedWorker] = []

    def start(self, addresses: Sequence[str], port: int, **options: Any) -> EmulatedWorker:
        """Start a worker with `serve_worker`; raises OSError if an address is taken."""
        worker = self._run_on_loop(serve_worker(addresses, port, **options))
        self._workers.append(worker)
        return worker

    def stop(self, worker: EmulatedWorker) -> None:
        """Stop a worker."""
        self._workers.remove(worker)
        self._run_on_loop(worker.close())

    def drop(self, worker: EmulatedWorker) -> None:
        """Break the connections of a worker, which keeps running."""
        self._loop.call_soon_threadsafe(worker.drop)

    def close(self) -> None:
        """Stop every worker and end the thread."""
        for worker in list(self._workers):
            self.stop(worker)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run_on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


class _Server(asyncssh.SSHServer):
    def __init__(
        self, connections: set[Any], authorized_keys: Callable[[str], Sequence[str]]
    ) -> None:
        self._connections, self._authorized_keys = connections, authorized_keys
        self._connection: Any = None

    def connection_made(self, conn: Any) -> None:
        self._connection = conn
        self._connections.add(conn)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self._connection)

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: Any) -> bool:
        shown = key.export_public_key().decode().split()[:2]
        return any(line.split()[:2] == shown for line in self._authorized_keys(username))

    def connection_requested(self, *_: Any) -> bool:
        """Allow connections through this worker as a jump host."""
        return True

    def unix_connection_requested(self, dest_path: str) -> bool:
        """Allow the forwarding of socket files, as sshd does."""
        return True

    def unix_server_requested(self, listen_path: str) -> bool:
        return True


class _Files(asyncssh.SFTPServer):
    """The files that scp and sftp can access: the worker's home and /tmp, nothing else."""

    def __init__(self, channel: Any, confinement: Confinement) -> None:
        super().__init__(channel)
        own = confinement.temporary if confinement.is_supported else None
        roots = confinement.home, own or Path("/tmp")  # noqa: S108 (seen by scp)
        self._home, self._temporary = map(os.fsencode, roots)

    def open(self, path: bytes, pflags: int, attrs: Any) -> Any:
        is_new = not os.path.lexists(self.map_path(path))
        file: Any = super().open(path, pflags, attrs)
        if is_new:
            os.fchmod(file.fileno(), (attrs.permissions or 0o666) & 0o777 & ~_UMASK)
        return file

    def mkdir(self, path: bytes, attrs: Any) -> None:
        super().mkdir(path, attrs)
        os.chmod(self.map_path(path), (attrs.permissions or 0o777) & 0o777 & ~_UMASK)

    def exit(self) -> None:
        # Without an exit status, scp reports a failure.
        self.channel.exit(0)

    def map_path(self, path: bytes) -> bytes:
        full = os.path.normpath(os.path.join(self._home, path))
        if full == b"/tmp" or full.startswith(b"/tmp/"):
            return self._temporary + full[4:] if not self._is_home(full) else full
        if not self._is_home(full):
            raise asyncssh.SFTPPermissionDenied("An emulated worker has only its home and /tmp.")
        return full

    def reverse_map_path(self, path: bytes) -> bytes:
        inner = path.removeprefix(self._temporary)
        return path if inner == path else b"/tmp" + inner

    def _is_home(self, path: bytes) -> bool:
        return path == self._home or path.startswith(self._home + b"/")


async def _serve_session(process: Any, worker: EmulatedWorker, env: Mapping[str, str]) -> None:
    """Run a command or a shell and report its exit status."""
    task = asyncio.current_task()
    assert task
    worker.sessions.add(task)
    task.add_done_callback(worker.sessions.discard)
    sent = {_text(name): _text(value) for name, value in process.env.items()}
    env = {**env, **{name: value for name, value in sent.items() if name.startswith("LC_")}}
    run = _run_on_terminal if process.term_type else _run_on_pipes
    command = await asyncio.to_thread(worker.confinement.command, _argv(process))
    returncode = await run(process, command, worker.confinement.home, env)
    if returncode < 0:
        process.exit_with_signal(signal.Signals(-returncode).name[3:])
    else:
        process.exit(returncode)


async def _run_on_pipes(
    process: Any, command: Sequence[str], folder: Path, env: Mapping[str, str]
) -> int:
    """Run without a terminal; a command survives a broken connection, its pipes do not."""
    (in_read, in_write), (out_read, out_write), (err_read, err_write) = (os.pipe() for _ in "123")
    child = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder,
        env=env,
        stdin=in_read,
        stdout=out_write,
        stderr=err_write,
        start_new_session=True,
        umask=_UMASK,
    )
    for descriptor in (in_read, out_write, err_write):
        os.close(descriptor)
    feeding = asyncio.create_task(_feed(process.stdin, in_write))
    await asyncio.gather(_drain(out_read, process.stdout), _drain(err_read, process.stderr))
    returncode = await child.wait()
    feeding.cancel()
    return returncode


async def _run_on_terminal(
    process: Any, command: Sequence[str], folder: Path, env: Mapping[str, str]
) -> int:
    master, slave = pty.openpty()
    child = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder,
        env={**env, "TERM": _text(process.term_type)},
        stdin=slave,
        stdout=slave,
        stderr=slave,
        # Ctrl-C needs a controlling terminal, which only the leader of a session can have.
        start_new_session=True,
        umask=_UMASK,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(slave)
    # Each direction closes its own descriptor.
    feeding = asyncio.create_task(_feed(process.stdin, os.dup(master)))
    await _drain(master, process.stdout)
    returncode = await child.wait()
    feeding.cancel()
    return returncode


def _argv(process: Any) -> list[str]:
    shell = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"
    return [shell, "-c", _text(process.command)] if process.command else [shell]


async def _feed(source: Any, descriptor: int) -> None:
    """Copy the client's input to a command until either ends."""
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_write_pipe(
        asyncio.streams.FlowControlMixin, os.fdopen(descriptor, "wb", 0)
    )
    writer = asyncio.StreamWriter(transport, protocol, None, loop)
    try:
        while data := await _read(source):
            writer.write(data)
            await writer.drain()
    except (OSError, asyncssh.Error):
        return
    finally:
        transport.close()


async def _drain(descriptor: int, target: Any) -> None:
    """Copy the output of a command to the client until either ends."""
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", 0)
    )
    try:
        while data := await reader.read(_CHUNK_BYTES):
            target.write(data)
            await target.drain()
    except (OSError, asyncssh.Error):
        return
    finally:
        transport.close()


async def _read(source: Any) -> bytes:
    while True:
        try:
            data: bytes = await source.read(_CHUNK_BYTES)
        except asyncssh.TerminalSizeChanged:
            continue
        return data


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else os.fsdecode(value)
