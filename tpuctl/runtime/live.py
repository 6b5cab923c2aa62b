"""The machine that this process runs on, with its packages, host facts and metadata server."""

import os
import sys
from collections.abc import Mapping
from functools import cached_property
from itertools import takewhile
from pathlib import Path

from tpuctl.runtime.local import LocalMachine, as_text, first_number, installed
from tpuctl.runtime.machine import HostFacts
from tpuctl.runtime.metadata_server import MetadataServer


class LiveMachine(LocalMachine):
    """The machine that this process runs on; tests replace its parts."""

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
            vcpus=len(os.sched_getaffinity(0))
            if hasattr(os, "sched_getaffinity")
            else os.cpu_count(),
            memory_bytes=self._memory_bytes(),
            disk_free_bytes=_disk_free_bytes(),
            python=".".join(map(str, sys.version_info[:3])),
        )

    @cached_property
    def _installed(self) -> dict[str, tuple[str, str]]:
        return installed(self._path)

    @cached_property
    def metadata_server(self) -> MetadataServer:
        """The metadata server to query."""
        return self._server or MetadataServer(self.env)

    @property
    def metadata_answers(self) -> bool:
        """Whether a metadata server answers; queried once, for at most half a second."""
        return self._may_ask and self.metadata_server.answers

    def metadata(self, path: str) -> str | None:
        """Read a value below `/computeMetadata/v1/`."""
        return self.metadata_server.get(path) if self.metadata_answers else None

    @cached_property
    def _may_ask(self) -> bool:
        """Query it only on Google's machines, or with chips, for which libtpu would query it."""
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
        """Return the declared requirements of an installed distribution."""
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
    """Return the machine that this process runs on."""
    return LiveMachine()


def _disk_free_bytes() -> int | None:
    try:
        found = os.statvfs(".")
    except (AttributeError, OSError):
        return None
    return found.f_bavail * found.f_frsize


def requirements(folder: str) -> tuple[str, ...] | None:
    """Read the `Requires-Dist` lines of a distribution; None if its metadata is unreadable."""
    found = []
    try:
        with open(os.path.join(folder, "METADATA"), encoding="utf-8", errors="replace") as file:
            # The headers end at the first empty line; the rest is the description.
            for line in takewhile(str.strip, file):
                key, _, value = line.partition(":")
                if key.lower() == "requires-dist":
                    found.append(value.strip())
    except OSError:
        return None
    return tuple(found)
