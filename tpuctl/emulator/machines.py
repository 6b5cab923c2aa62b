"""The workers of emulated nodes: each worker of a running node has an SSH server."""

import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from tpuctl.emulator.confine import HOSTS, Confinement
from tpuctl.emulator.resources import INSTANCE, Host, Node
from tpuctl.emulator.worker_processes import DEVICES, HBM_BYTES, MARK, PORTS, kill_everything
from tpuctl.emulator.world import World
from tpuctl.errors import UnavailableError
from tpuctl.start_python import child_environment, python_command
from tpuctl.storage.local import write_atomically
from tpuctl.units import GIB

_TICK_S = 0.1
_METADATA_VARIABLES = ("GCE_METADATA_HOST", "GCE_METADATA_IP", "GCE_METADATA_ROOT")

OsLogin = Mapping[str, Sequence[str]]
"""The public keys registered with OS Login, by user."""


class _Machine(NamedTuple):
    """One worker of one node; a recreated node has other workers."""

    node: int
    worker: int


class Machines:
    """Runs an SSH server for every worker of every running node, all on one port.

    The home of a worker is removed with its node; a later node of the same name has a new one.
    """

    def __init__(self, folder: Path, metadata_url: str) -> None:
        from tpuctl.emulator._ssh_server import WorkerServers

        self._folder, self._metadata_url = folder, metadata_url
        self._servers = WorkerServers()
        self._running: dict[_Machine, Any] = {}
        self._busy: dict[_Machine, subprocess.Popen[bytes]] = {}
        self._metrics: dict[_Machine, dict[str, str]] = {}
        # Reuse the port of the last run, so that known_hosts and SSH configurations stay valid.
        kept = folder / "port"
        last = kept.read_text(encoding="ascii") if kept.exists() else ""
        self.port = _free_port(int(last) if last.isdecimal() else 0)
        write_atomically(kept, str(self.port), private=True)
        self._names, known = folder / "hosts", Path(HOSTS)
        self._own_names = known.read_text(encoding="utf-8").rstrip() if known.is_file() else ""
        self._names.write_text(self._own_names, encoding="utf-8")

    def sync(self, world: World) -> None:
        """Start and stop workers to match the nodes of the world."""
        wanted = {
            _Machine(node.id, worker): node
            for node in world.hosts()
            if node.is_running
            for worker in range(len(node.addresses))
            if worker not in node.down_workers
        }
        for machine in [*self._running.keys() - wanted.keys()]:
            self._servers.stop(self._running.pop(machine))
            if holder := self._busy.pop(machine, None):
                holder.wait()
        for holder in self._busy.values():
            # A process that a user killed is a zombie until someone waits for it.
            holder.poll()
        self._write_names(world)
        for machine in sorted(wanted.keys() - self._running.keys()):
            self._start(machine, wanted[machine], world.scenario.os_login)
        for machine in [*wanted.keys() - self._busy.keys()]:
            if machine.worker in wanted[machine].busy_workers:
                self._keep_busy(machine, wanted[machine].busy_workers[machine.worker])
        for node in world.hosts():
            node.ssh_port = self.port
        self._remove_others({str(node.id) for node in world.hosts()})

    def close(self) -> None:
        """Stop all workers; their files are kept."""
        self._servers.close()
        for holder in self._busy.values():
            holder.wait()

    def _start(self, machine: _Machine, node: Host, os_login: OsLogin) -> None:
        place = self._folder_of(machine)
        devices = place / "dev" / "vfio"
        devices.mkdir(parents=True, exist_ok=True)
        for chip in range(node.chips_per_worker):
            (devices / str(chip)).touch()
        env = {**self._environment(node, machine.worker), DEVICES: str(devices.parent)}
        self._metrics[machine] = {name: env[name] for name in (DEVICES, HBM_BYTES, PORTS)}
        home = place / "home"
        marked = {**env, MARK: str(home)}
        confinement = Confinement(home, place / "tmp", marked, self._names)
        self._running[machine] = self._servers.start(
            [address for address in node.addresses[machine.worker] if address],
            self.port,
            confinement=confinement,
            env=env,
            host_key=place / "host_key",
            authorized_keys=lambda user: ssh_keys(node, user, os_login),
        )
        node.host_keys[machine.worker] = self._running[machine].host_key

    def _write_names(self, world: World) -> None:
        """Write the host names of Compute Engine's VMs, as its DNS has them, for all workers."""
        lines = [self._own_names]
        for node in world.compute.instances.values():
            project, zone, name = node.key
            full = f"{name}.{zone}.c.{project}.internal"
            lines += [f"{internal} {full} {name}" for internal, _ in node.addresses]
        # In place, because running workers have it mounted, and never empty.
        if (text := "\n".join(lines) + "\n") != self._names.read_text(encoding="utf-8"):
            with self._names.open("r+", encoding="utf-8") as file:
                file.write(text)
                file.truncate()

    def _keep_busy(self, machine: _Machine, duty_cycle_percent: float | None) -> None:
        """Start a process that holds the first chip of a worker, like a forgotten program.

        With a duty cycle, it holds all chips and serves metrics like libtpu.
        """
        place, command = self._folder_of(machine), ["sleep", "infinity"]
        if duty_cycle_percent is not None:
            command = python_command("tpuctl.emulator.worker_processes")
            command += ["--duty-cycle-percent", str(duty_cycle_percent)]
        with (place / "dev" / "vfio" / "0").open("rb") as chip:
            self._busy[machine] = subprocess.Popen(  # noqa: S603 (our own program)
                self._running[machine].confinement.command(command),
                stdin=chip,
                env=child_environment({**self._metrics[machine], MARK: str(place / "home")}),
                start_new_session=True,
            )

    def _folder_of(self, machine: _Machine) -> Path:
        return self._folder / str(machine.node) / str(machine.worker)

    def _environment(self, node: Host, worker: int) -> dict[str, str]:
        project, zone, name = node.key
        is_node = isinstance(node, Node)
        metadata = (
            f"{self._metadata_url}/vm/{project}/{zone}/{name}/{worker if is_node else INSTANCE}"
        )
        of_slice = {
            "TPU_WORKER_ID": str(worker),
            "TPU_WORKER_HOSTNAMES": ",".join(internal for internal, _ in node.addresses),
            "TPU_NAME": name,
            "TPU_ACCELERATOR_TYPE": node.accelerator_type,
        }
        return {
            # A Compute Engine VM has no such variables.
            **(of_slice if is_node else {}),
            HBM_BYTES: str(int((node.hbm_gib_per_chip or 16) * GIB)),
            PORTS: str(_free_port()),
            "TPUCTL_METADATA_URL": metadata,
            # Without the scheme, as Google's libraries expect.
            **dict.fromkeys(_METADATA_VARIABLES, metadata.partition("://")[2]),
            "STORAGE_EMULATOR_HOST": self._metadata_url,
        }

    def _remove_others(self, alive: set[str]) -> None:
        """Remove the files of deleted nodes, and kill processes that an emulator left there."""
        for folder in self._folder.iterdir():
            if folder.is_dir() and folder.name not in alive:
                for place in folder.iterdir():
                    kill_everything(place / "home")
                shutil.rmtree(folder, ignore_errors=True)


def ssh_keys(node: Host, user: str, os_login: OsLogin) -> Sequence[str]:
    """Return the public keys that may log in as a user, from OS Login or the node's metadata."""
    if str(node.metadata.get("enable-oslogin", "")).upper() == "TRUE":
        return os_login.get(user, ())
    text = str(node.metadata.get("ssh-keys", ""))
    pairs = (line.strip().partition(":") for line in text.splitlines())
    return [key for name, _, key in pairs if name == user]


@contextmanager
def ticking(tick: Callable[[], object]) -> Iterator[None]:
    """Call `tick` repeatedly while the block runs, so that events happen without requests."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(_TICK_S):
            tick()

    thread = threading.Thread(target=run, name="machines", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _free_port(wanted: int = 0) -> int:
    """Return the free loopback port that all workers share: `wanted` if it is free, or another."""
    for port in (wanted, 0):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)) as probe:
            return int(probe.getsockname()[1])
    raise UnavailableError("Could not find a free port for an emulated worker.")
