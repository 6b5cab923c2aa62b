"""This machine, as it is now."""

import os
import stat
import sys
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path

from tpuctl.runtime.installed import installed, requirements
from tpuctl.runtime.machine import (
    LOCKFILE,
    FdScan,
    HostFacts,
    LockFile,
    PciDevice,
    Process,
    whole_number,
)
from tpuctl.runtime.metadata_server import MetadataServer

_LARGEST_FILE = 1 << 16
_VENDORS = ("0x1ae0", "0x10de", "0x1002")


class LiveMachine:
    """The machine that this process runs on; `root` lets a test stand in for its file system."""

    def __init__(
        self,
        *,
        root: Path = Path("/"),
        env: Mapping[str, str] | None = None,
        path: list[str] | None = None,
        server: MetadataServer | None = None,
    ) -> None:
        self.root = root
        self._root = str(root).rstrip("/")
        given = os.environ if env is None else env
        self.env: Mapping[str, str] = {_text(k): _text(v) for k, v in given.items()}
        self._path = sys.path if path is None else path
        self._server = server

    def again(self) -> "LiveMachine":
        """The same machine looked at afresh: what was cached may have changed."""
        return LiveMachine(root=self.root, env=self.env, path=self._path, server=self._server)

    @cached_property
    def pci(self) -> tuple[PciDevice, ...]:
        """The devices of Google and of GPU makers on the PCI bus."""
        found = (self._pci(addr) for addr in sorted(self.names("/sys/bus/pci/devices")))
        return tuple(device for device in found if device)

    @cached_property
    def packages(self) -> Mapping[str, str]:
        """Installed distributions by normalized name, with their versions."""
        return {name: version for name, (version, _) in self._installed.items()}

    @cached_property
    def host(self) -> HostFacts:
        """Processors, memory, disk and Python."""
        return HostFacts(
            vcpus=_vcpus(),
            memory_bytes=self._memory_bytes(),
            disk_free_bytes=_disk_free_bytes(),
            python=".".join(map(str, sys.version_info[:3])),
        )

    @cached_property
    def self_process(self) -> Process:
        """This very process."""
        return Process(pid=os.getpid(), ppid=os.getppid(), uid=os.geteuid())

    @cached_property
    def locks(self) -> tuple[str, ...]:
        """The lines of `/proc/locks`."""
        return tuple((self.read("/proc/locks") or "").splitlines())

    @cached_property
    def lockfile(self) -> LockFile | None:
        """libtpu's lock file; looked at, never opened, since closing it would drop its lock."""
        try:
            found = os.stat(self._root + LOCKFILE)
        except OSError:
            return None
        return LockFile(found.st_ino, found.st_uid)

    @cached_property
    def _installed(self) -> dict[str, tuple[str, str]]:
        return installed(self._path)

    @cached_property
    def metadata_server(self) -> MetadataServer:
        """The metadata server that this machine would ask."""
        return self._server or MetadataServer(self.env)

    @property
    def metadata_answers(self) -> bool:
        """Whether a metadata server answers; asks it once, for half a second at most."""
        return self._may_ask and self.metadata_server.answers

    def metadata(self, path: str) -> str | None:
        """Read a value below `/computeMetadata/v1/`."""
        return self.metadata_server.get(path) if self.metadata_answers else None

    @cached_property
    def _may_ask(self) -> bool:
        """Ask only where there is a server, or chips that libtpu would ask it about."""
        if any(self.env.get(name) for name in ("KAGGLE_KERNEL_RUN_TYPE", "TBE_RUNTIME_ADDR")):
            return False
        if self.exists("/var/colab/hostname"):
            return False
        dmi = (
            self.read("/sys/class/dmi/id/product_name"),
            self.read("/sys/class/dmi/id/sys_vendor"),
        )
        named = any(self.env.get(name) for name in ("GCE_METADATA_IP", "GCE_METADATA_HOST"))
        chips = any(device.vendor == "0x1ae0" for device in self.pci)
        return named or chips or any("Google" in (text or "") for text in dmi)

    def read(self, path: str) -> str | None:
        """Read a small regular file; anything else, devices above all, stays closed."""
        try:
            if not stat.S_ISREG(os.stat(self._root + path).st_mode):
                return None
            with open(self._root + path, "rb") as file:
                return file.read(_LARGEST_FILE).decode(errors="replace")
        except (OSError, ValueError):
            return None

    def exists(self, path: str) -> bool:
        """Whether there is anything at that path."""
        return self._mode(path) is not None

    def is_dir(self, path: str) -> bool:
        """Whether that path is a folder."""
        return stat.S_ISDIR(self._mode(path) or 0)

    def is_device(self, path: str) -> bool:
        """Whether that path is a character device."""
        return stat.S_ISCHR(self._mode(path) or 0)

    def names(self, folder: str) -> tuple[str, ...]:
        """The names in a folder."""
        try:
            return tuple(map(_text, os.listdir(self._root + folder)))
        except (OSError, ValueError):
            return ()

    def requires(self, distribution: str) -> tuple[str, ...] | None:
        """What an installed distribution declares to need."""
        found = self._installed.get(distribution)
        return requirements(found[1]) if found else None

    def process(self, pid: int) -> Process | None:
        """Look at one process."""
        status = self.read(f"/proc/{pid}/status")
        if status is None:
            return None
        fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        cmdline = self.read(f"/proc/{pid}/cmdline") or ""
        return Process(
            pid=pid,
            ppid=_first_number(fields.get("PPid")),
            uid=_first_number(fields.get("Uid")),
            comm=(self.read(f"/proc/{pid}/comm") or "").strip() or None,
            cmdline=cmdline.replace("\0", " ").strip() or None,
        )

    def scan_open_files(self, wanted: Callable[[str], bool]) -> FdScan:
        """List the processes that have a wanted file open."""
        found: dict[int, tuple[str, ...]] = {}
        refused = []
        for name in self.names("/proc"):
            pid = whole_number(name)
            if pid is None:
                continue
            try:
                hits = self._open_files(name, wanted)
            except PermissionError:
                if self.read(f"/proc/{name}/cmdline"):
                    refused.append(pid)
                continue
            except OSError:
                continue
            if hits:
                found[pid] = tuple(sorted(hits))
        return FdScan(found, tuple(refused))

    def _open_files(self, pid: str, wanted: Callable[[str], bool]) -> set[str]:
        folder = f"{self._root}/proc/{pid}/fd"
        hits = set()
        for descriptor in os.listdir(folder):
            try:
                target = _text(os.readlink(f"{folder}/{descriptor}"))
            except OSError:
                continue
            if wanted(target):
                hits.add(target)
        return hits

    def is_listening(self, port: int) -> bool | None:
        """Whether something listens on a local TCP port, by `/proc/net/tcp`."""
        tables = [self.read(f"/proc/net/{name}") for name in ("tcp", "tcp6")]
        if tables == [None, None]:
            return None
        rows = (line.split() for table in tables if table for line in table.splitlines()[1:])
        return any(
            len(row) > 3 and row[3] == "0A" and row[1].endswith(f":{port:04X}") for row in rows
        )

    def is_reachable(self, address: str) -> bool | None:
        """Whether `host:port` accepts a connection within a second."""
        import socket

        host, _, port = address.rpartition(":")
        try:
            with socket.create_connection((host.strip("[]") or "::", int(port)), timeout=1):
                return True
        except (OSError, ValueError, OverflowError):
            return False

    def _mode(self, path: str) -> int | None:
        try:
            return os.stat(self._root + path).st_mode
        except (OSError, ValueError):
            return None

    def _pci(self, addr: str) -> PciDevice | None:
        folder = f"/sys/bus/pci/devices/{addr}"
        vendor = self._word(f"{folder}/vendor")
        device = self._word(f"{folder}/device")
        if vendor not in _VENDORS or device is None:
            return None
        group = self._link(f"{folder}/iommu_group")
        return PciDevice(
            addr=addr,
            vendor=vendor,
            device=device,
            subsystem_device=self._word(f"{folder}/subsystem_device"),
            pci_class=self._word(f"{folder}/class"),
            driver=self._link(f"{folder}/driver"),
            iommu_group=whole_number(group),
        )

    def _word(self, path: str) -> str | None:
        return (self.read(path) or "").strip().lower() or None

    def _link(self, path: str) -> str | None:
        try:
            return os.path.basename(os.readlink(self._root + path)) or None
        except OSError:
            return None

    def _memory_bytes(self) -> int | None:
        for line in (self.read("/proc/meminfo") or "").splitlines():
            if line.startswith("MemTotal:"):
                kib = _first_number(line.partition(":")[2])
                return None if kib is None else kib * 1024
        return None


def live_machine() -> LiveMachine:
    """The machine that this process runs on."""
    return LiveMachine()


def _text(value: str) -> str:
    """Bytes that are no text come from the system as lone surrogates, which nobody can print."""
    return value if value.isascii() else value.encode(errors="replace").decode()


def _first_number(text: str | None) -> int | None:
    words = (text or "").split()
    return whole_number(words[0]) if words else None


def _vcpus() -> int | None:
    try:
        return len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return os.cpu_count()


def _disk_free_bytes() -> int | None:
    try:
        found = os.statvfs(".")
    except (AttributeError, OSError):
        return None
    return found.f_bavail * found.f_frsize
