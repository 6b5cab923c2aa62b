"""Workers for tests: real SSH servers on addresses of this machine, each in its own folder."""

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tpuctl.emulator._ssh_server import EmulatedWorker, WorkerServers, new_host_key
from tpuctl.remote.access import Access
from tpuctl.remote.connection import Patience
from tpuctl.remote.host_keys import HostKeys
from tpuctl.remote.hosts import Host, parse_hosts

IMPATIENT = Patience(connect_s=5.0, keepalive_s=0.2, keepalives_missed=3)


class Slice:
    """Some workers, how to reach them, and ways to do them harm."""

    def __init__(self, servers: WorkerServers, root: Path, count: int) -> None:
        self._servers, self.root = servers, root
        self.key = root / "key"
        self.host_key = new_host_key()
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.key)], check=True
        )
        self.running: list[EmulatedWorker] = []
        for index in range(count):
            self.running.append(self.start(index))

    def start(
        self,
        index: int,
        port: int = 0,
        host_key: Any = None,
        env: Mapping[str, str] | None = None,
    ) -> EmulatedWorker:
        return self._servers.start(
            f"127.0.3.{index + 1}",
            port,
            folder=self.folder(index),
            env={"TPU_WORKER_ID": str(index), **(env or {})},
            host_key=host_key or self.host_key,
            authorized_keys=[self.key.with_suffix(".pub").read_text()],
        )

    def folder(self, index: int) -> Path:
        return self.root / f"worker-{index}"

    @property
    def option(self) -> str:
        """What --host is given."""
        return ",".join(f"me@{worker.address}:{worker.port}" for worker in self.running)

    @property
    def hosts(self) -> tuple[Host, ...]:
        return parse_hosts(self.option)

    @property
    def access(self) -> Access:
        return Access((self.key,), HostKeys(self.root / "known_hosts"), patience=IMPATIENT)

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
def running_slice(root: Path, count: int) -> Iterator[Slice]:
    servers = WorkerServers()
    try:
        yield Slice(servers, root, count)
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
