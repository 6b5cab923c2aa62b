"""This machine, as it is now."""

import os
import sys
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path

from tpuctl.runtime.local import LocalMachine, as_text, first_number
from tpuctl.runtime.machine import HostFacts, normalized
from tpuctl.runtime.metadata_server import MetadataServer


class LiveMachine(LocalMachine):
    """The machine that this process runs on; `root` lets a test stand in for its file system."""

    def __init__(
        self,
        *,
        root: Path = Path("/"),
        env: Mapping[str, str] | None = None,
        path: list[str] | None = None,
        server: MetadataServer | None = None,
    ) -> None:
        super().__init__(str(root))
        self.root = root
        given = os.environ if env is None else env
        self.env: Mapping[str, str] = {as_text(k): as_text(v) for k, v in given.items()}
        self._path = sys.path if path is None else path
        self._server = server

    def refreshed(self) -> "LiveMachine":
        """Return the same machine without cached answers."""
        return LiveMachine(root=self.root, env=self.env, path=self._path, server=self._server)

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

    def requires(self, distribution: str) -> tuple[str, ...] | None:
        """What an installed distribution declares to need."""
        found = self._installed.get(distribution)
        return requirements(found[1]) if found else None

    def is_reachable(self, address: str) -> bool | None:
        """Whether `host:port` accepts a connection within a second."""
        import socket

        host, _, port = address.rpartition(":")
        try:
            with socket.create_connection((host.strip("[]") or "::", int(port)), timeout=1):
                return True
        except (OSError, ValueError, OverflowError):
            return False

    def _memory_bytes(self) -> int | None:
        for line in (self.read("/proc/meminfo") or "").splitlines():
            if line.startswith("MemTotal:"):
                kib = first_number(line.partition(":")[2])
                return None if kib is None else kib * 1024
        return None


def live_machine() -> LiveMachine:
    """The machine that this process runs on."""
    return LiveMachine()


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


_FOLDERS = (".dist-info", ".egg-info")


def installed(path: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Find all distributions on `path`: normalized name to version and metadata folder.

    The first one found wins, as it does on import.
    """
    found: dict[str, tuple[str, str]] = {}
    for folder in dict.fromkeys(path):
        for entry in _entries(folder or "."):
            stem, suffix = os.path.splitext(entry)
            if suffix not in _FOLDERS or "-" not in stem:
                continue
            name, version = stem.split("-")[:2]
            found.setdefault(normalized(name), (version, os.path.join(folder or ".", entry)))
    return found


def requirements(folder: str) -> tuple[str, ...] | None:
    """Read what a distribution declares to need (`Requires-Dist`); None when it cannot be read."""
    try:
        with open(os.path.join(folder, "METADATA"), encoding="utf-8", errors="replace") as file:
            return tuple(_requires(file))
    except OSError:
        return None


def _requires(lines: Iterable[str]) -> Iterable[str]:
    for line in lines:
        if not line.strip():
            return
        key, _, value = line.partition(":")
        if key.lower() == "requires-dist":
            yield value.strip()


def _entries(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
