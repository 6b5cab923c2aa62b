"""Workers for tests: real SSH servers on addresses of this machine, each in its own folder."""

import os
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncssh

from tpuctl.emulator._ssh_server import EmulatedWorker, WorkerServers
from tpuctl.emulator.confine import Confinement
from tpuctl.remote.access import Access, HostKeys
from tpuctl.remote.connection import Timeouts
from tpuctl.remote.hosts import Host, parse_hosts

IMPATIENT = Timeouts(connect_s=5.0, keepalive_s=1.0, keepalives_missed=4)


def new_key(path: Path, kind: str = "ssh-ed25519") -> None:
    """Make a key pair: FILE and FILE.pub."""
    key = asyncssh.generate_private_key(kind)
    path.write_bytes(key.export_private_key())
    path.chmod(0o600)
    path.with_suffix(".pub").write_bytes(key.export_public_key())


def sshd_environment(**env: str) -> str:
    """Return the line of sshd's configuration that starts our Python, and little else.

    On a first level, bash reads the developer's start-up file, which may start many programs.
    """
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    pairs = {"SHLVL": "1", "PATH": path, **env}
    return f"SetEnv {' '.join(f'{name}={value}' for name, value in pairs.items())}\n"


class Slice:
    """Some workers, how to reach them, and ways to do them harm."""

    def __init__(self, servers: WorkerServers, root: Path, count: int, homes: Path) -> None:
        self._servers, self.root, self._homes = servers, root, homes
        self.key = root / "key"
        root.mkdir(exist_ok=True)
        new_key(self.key)
        self.running: list[EmulatedWorker] = []
        for index in range(count):
            self.running.append(self.start(index))

    def start(
        self,
        index: int,
        port: int = 0,
        host_key: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> EmulatedWorker:
        public = self.key.with_suffix(".pub").read_text()
        return self._servers.start(
            [f"127.0.3.{index + 1}"],
            port,
            confinement=Confinement(self.folder(index)),
            env={"TPU_WORKER_ID": str(index), **(env or {})},
            host_key=host_key or self.root / "host_key",
            authorized_keys=lambda user: [public] if user == "me" else [],
        )

    def folder(self, index: int) -> Path:
        return self._homes / f"worker-{index}"

    @property
    def option(self) -> str:
        """What --host is given."""
        return ",".join(f"me@{worker.addresses[0]}:{worker.port}" for worker in self.running)

    @property
    def hosts(self) -> tuple[Host, ...]:
        return parse_hosts(self.option)

    @property
    def access(self) -> Access:
        return Access((self.key,), HostKeys(self.root / "known_hosts"), timeouts=IMPATIENT)

    def refuse(self, index: int) -> None:
        """Stop listening on a worker's port."""
        self._servers.stop(self.running[index])

    def drop(self, index: int) -> None:
        """Break the connections of a worker."""
        self._servers.drop(self.running[index])

    def come_back(self, index: int, **changed: Any) -> None:
        """Listen again on the port of before."""
        self.running[index] = self.start(index, self.running[index].port, **changed)


@contextmanager
def running_slice(root: Path, count: int, homes: Path | None = None) -> Iterator[Slice]:
    servers = WorkerServers()
    try:
        yield Slice(servers, root, count, homes or root)
    finally:
        servers.close()


class Heard:
    """A sink that keeps what it is given."""

    def __init__(self) -> None:
        self.streams = {1: bytearray(), 2: bytearray()}

    def __call__(self, stream: int, data: bytes) -> None:
        self.streams[stream] += data

    @property
    def out(self) -> bytes:
        return bytes(self.streams[1])

    @property
    def err(self) -> bytes:
        return bytes(self.streams[2])


def alive(marker: str) -> list[int]:
    """The living processes that have a word among their arguments."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
            state = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if marker.encode() in words and state != "Z":
            found.append(int(name))
    return found


class Cable:
    """A way to a server that can be slow, or go dead without a word as when a laptop sleeps."""

    def __init__(self, address: str, port: int, *, answers_after_s: float = 0.0) -> None:
        self._target = (address, port)
        self._answers_after_s = answers_after_s
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._dead: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Let nothing more pass over the connections there are; nobody is told."""
        self._dead |= {end for pair in self._pairs for end in pair}

    def close(self) -> None:
        self._listener.close()
        for end in [end for pair in self._pairs for end in pair]:
            end.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Event().wait(self._answers_after_s)
            far = socket.create_connection(self._target)
            self._pairs.append((near, far))
            for source, target in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=(source, target), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                if source not in self._dead:
                    target.sendall(data)
            if source not in self._dead:
                target.shutdown(socket.SHUT_WR)
        except OSError:
            return
