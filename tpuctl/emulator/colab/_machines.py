"""The machines of emulated Colab runtimes, with real SSH, kernels, files and terminals."""

import base64
import os
import pty
import shutil
import socket
import subprocess
import threading
import uuid
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from tpuctl.emulator._ssh_server import WorkerServers
from tpuctl.emulator.colab.account import Account, Refusal, Runtime
from tpuctl.emulator.colab.kernel import Kernel
from tpuctl.emulator.colab.websocket import TEXT, WebSocket
from tpuctl.emulator.confine import Confinement
from tpuctl.emulator.worker_processes import DEVICES, HBM_BYTES, MARK, PORTS, kill_everything
from tpuctl.start_python import child_environment
from tpuctl.storage.local import open_own
from tpuctl.units import GIB

_CHUNK = 1 << 16
_HBM_GIB = {"V5E1": 16, "V6E1": 32}


class Machine:
    """One runtime's machine."""

    def __init__(self, folder: Path, runtime: Runtime, servers: WorkerServers) -> None:
        self.folder, self.home = folder, folder / "home"
        self._servers = servers
        self._keys: list[str] = []
        self.ssh_open = threading.Lock()
        self.kernels: dict[str, Kernel] = {}
        devices = folder / "dev" / "vfio"
        devices.mkdir(parents=True, exist_ok=True)
        (self.home / "content").mkdir(parents=True, exist_ok=True)
        if runtime.accelerator in _HBM_GIB:
            (devices / "0").touch()
        self.env = {
            "COLAB_RELEASE_TAG": "release-colab-emulated",
            DEVICES: str(devices.parent),
            HBM_BYTES: str(_HBM_GIB.get(runtime.accelerator, 0) * GIB),
            PORTS: str(_free_port()),
        }
        self._confinement = Confinement(
            self.home, folder / "tmp", {**self.env, MARK: str(self.home)}
        )
        self.worker = servers.start(
            ["127.0.0.1"],
            0,
            confinement=self._confinement,
            env=self.env,
            host_key=folder / "host_key",
            authorized_keys=lambda user: tuple(self._keys) if user == "root" else (),
        )

    def close(self) -> None:
        """Switch it off, and delete its files."""
        for kernel in self.kernels.values():
            kernel.close()
        self._servers.stop(self.worker)
        kill_everything(self.home)
        shutil.rmtree(self.folder, ignore_errors=True)

    def ssh(self, web: WebSocket, public_key: str) -> None:
        """Relay an SSH connection until either side ends it."""
        self._keys.append(public_key)
        with socket.create_connection(("127.0.0.1", self.worker.port)) as server:

            def down() -> None:
                while data := _receive(server):
                    web.send(data)
                web.cut()

            thread = threading.Thread(target=down, daemon=True)
            thread.start()
            while message := web.receive():
                try:
                    server.sendall(message[1])
                except OSError:
                    break
            try:
                server.shutdown(socket.SHUT_RDWR)
            except OSError:
                return

    def process_environment(self) -> dict[str, str]:
        """Return the environment of kernels and terminals."""
        own = {"HOME": str(self.home), MARK: str(self.home), "LANG": "C.UTF-8"}
        return child_environment({**own, **self.env})

    def new_kernel(self) -> str:
        """Start a kernel."""
        name = str(uuid.uuid4())
        self.kernels[name] = Kernel(
            self.home, self.process_environment(), self._confinement.command
        )
        return name

    def tty(self, web: WebSocket, read: Any, write: Any) -> None:
        """Run a shell on a terminal; `read` and `write` convert its messages."""
        master, slave = pty.openpty()
        shell = subprocess.Popen(  # noqa: S603 (a shell on the machine)
            self._confinement.command(["/bin/sh", "-i"]),
            cwd=self.home,
            env={**self.process_environment(), "TERM": "xterm"},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)

        def down() -> None:
            try:
                while data := os.read(master, _CHUNK):
                    web.send(write(data), TEXT)
            except OSError:
                pass
            web.cut()

        threading.Thread(target=down, daemon=True).start()
        while message := web.receive():
            os.write(master, read(message[1]))
        shell.kill()
        shell.wait()
        os.close(master)


class Machines:
    """The machines of all runtimes, which start at first use and stop with their runtime."""

    def __init__(self, folder: Path, account: Account) -> None:
        self._folder, self._account = folder, account
        self._servers = WorkerServers()
        self._machines: dict[str, Machine] = {}
        self._lock = threading.Lock()

    def of(self, runtime: Runtime) -> Machine:
        """Return the machine of a runtime."""
        with self._lock:
            if runtime.endpoint not in self._machines:
                place = self._folder / runtime.endpoint
                self._machines[runtime.endpoint] = Machine(place, runtime, self._servers)
            return self._machines[runtime.endpoint]

    def sync(self) -> None:
        """Advance the account, and switch off the machines of deleted runtimes."""
        with self._account.lock:
            self._account.advance()
            alive = set(self._account.runtimes)
        with self._lock:
            gone = [self._machines.pop(name) for name in set(self._machines) - alive]
        for machine in gone:
            machine.close()

    def close(self) -> None:
        """Switch all off; their files are kept for the next start."""
        for machine in self._machines.values():
            for kernel in machine.kernels.values():
                kernel.close()
        self._servers.close()


def read_contents(machine: Machine, path: str, *, with_content: bool) -> dict[str, Any]:
    """Describe a file or a folder like Jupyter's contents API."""
    place = confined(machine, path)
    if not place.exists():
        raise Refusal(404, message=f"no such file: {path}")
    model = _model(place, path)
    if place.is_dir():
        below = (_model(each, f"{path}/{each.name}") for each in sorted(place.iterdir()))
        return {**model, "content": list(below), "format": "json"}
    if with_content:
        model["content"] = base64.b64encode(place.read_bytes()).decode()
        model["format"] = "base64"
    return model


def write_contents(machine: Machine, path: str, document: dict[str, Any]) -> dict[str, Any]:
    """Write a file or make a folder."""
    place = confined(machine, path)
    if document.get("type") == "directory":
        place.mkdir(parents=True, exist_ok=True)
        return _model(place, path)
    text = str(document.get("content", ""))
    is_base64 = document.get("format") == "base64"
    place.parent.mkdir(parents=True, exist_ok=True)
    with open_own(place, "wb") as file:
        file.write(base64.b64decode(text) if is_base64 else text.encode())
    return _model(place, path)


def confined(machine: Machine, path: str) -> Path:
    """Return the place of a path below the machine's own root; raises Refusal."""
    place = (machine.home / path.strip("/")).resolve()
    if not place.is_relative_to(machine.home.resolve()):
        raise Refusal(403, message=f"{path} is outside")
    return place


def _model(place: Path, path: str) -> dict[str, Any]:
    state = place.stat()
    changed = datetime.fromtimestamp(state.st_mtime, timezone.utc).isoformat()
    return {
        "name": place.name,
        "path": path.strip("/"),
        "type": "directory" if place.is_dir() else "file",
        "size": None if place.is_dir() else state.st_size,
        "created": changed,
        "last_modified": changed,
        "writable": True,
        "content": None,
        "format": None,
        "mimetype": None,
    }


def _receive(server: socket.socket) -> bytes:
    try:
        return server.recv(_CHUNK)
    except OSError:
        return b""


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
