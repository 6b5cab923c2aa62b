"""What detection and checks can ask about a machine; no answer opens a device or a lock file.

This module is sent to workers, so it must run on Python 3.8 with nothing else installed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LOCKFILE = "/tmp/libtpu_lockfile"  # noqa: S108 (libtpu's choice)


@dataclass(frozen=True)
class PciDevice:
    """One function on the PCI bus, as sysfs shows it; None is unknown or absent."""

    addr: str
    vendor: str
    device: str
    subsystem_device: str | None = None
    pci_class: str | None = None
    driver: str | None = None
    iommu_group: int | None = None

    @property
    def slot(self) -> str:
        """Domain, bus and device without the function: one per chip."""
        return self.addr.rpartition(".")[0] or self.addr


@dataclass(frozen=True)
class Process:
    """A process, as far as it is visible."""

    pid: int
    ppid: int | None = None
    uid: int | None = None
    comm: str | None = None
    cmdline: str | None = None


@dataclass(frozen=True)
class FdScan:
    """Which processes have which files open, and which could not be inspected."""

    open_files: Mapping[int, tuple[str, ...]]
    refused: tuple[int, ...]


@dataclass(frozen=True)
class LockFile:
    """The identity of libtpu's lock file, without opening it."""

    inode: int | None
    uid: int | None


@dataclass(frozen=True)
class HostFacts:
    """Processors, memory, disk and Python; None is unknown."""

    vcpus: int | None = None
    memory_bytes: int | None = None
    disk_free_bytes: int | None = None
    python: str | None = None


class HostView(Protocol):
    """The files, devices and processes of a machine: enough to find out who holds its chips."""

    @property
    def pci(self) -> tuple[PciDevice, ...]:
        """The devices of Google and of GPU makers on the PCI bus."""

    @property
    def self_process(self) -> Process:
        """The current process."""

    @property
    def locks(self) -> tuple[str, ...]:
        """The lines of `/proc/locks`."""

    @property
    def lockfile(self) -> LockFile | None:
        """libtpu's lock file, if it exists."""

    def read(self, path: str) -> str | None:
        """Read a small text file; None if that is not possible."""

    def is_device(self, path: str) -> bool:
        """Whether the path is a character device."""

    def names(self, folder: str) -> tuple[str, ...]:
        """List the names in a folder; empty if it cannot be listed."""

    def process(self, pid: int) -> Process | None:
        """Look up a process."""

    def scan_open_files(self, wanted: Callable[[str], bool]) -> FdScan:
        """List the processes that have a wanted file open."""

    def is_listening(self, port: int) -> bool | None:
        """Whether something listens on a local TCP port; None if unknown."""


class Machine(HostView, Protocol):
    """A machine to diagnose: the real one, a recorded one or one made for a test."""

    @property
    def env(self) -> Mapping[str, str]:
        """The environment variables of this process."""

    @property
    def packages(self) -> Mapping[str, str]:
        """Installed distributions by normalized name, with their versions."""

    @property
    def host(self) -> HostFacts:
        """Processors, memory, disk and Python."""

    @property
    def metadata_answers(self) -> bool:
        """Whether a metadata server may be queried, and answers."""

    def metadata(self, path: str) -> str | None:
        """Read a value below `/computeMetadata/v1/`; None for a 404 or no server."""

    def exists(self, path: str) -> bool:
        """Whether the path exists."""

    def is_dir(self, path: str) -> bool:
        """Whether the path is a folder."""

    def requires(self, distribution: str) -> tuple[str, ...] | None:
        """Return the declared requirements of a distribution; None if unknown."""

    def is_reachable(self, address: str) -> bool | None:
        """Whether `host:port` accepts a connection; None if it was not tried."""


def parse_count(text: str | None) -> int | None:
    """Parse a number as the kernel prints it; None for anything else, or over 18 digits."""
    clean = (text or "").strip()
    return int(clean) if clean.isascii() and clean.isdigit() and len(clean) <= 18 else None


def normalized(distribution: str) -> str:
    """Normalize the name of a distribution as packaging tools do (PEP 503)."""
    return distribution.lower().replace("_", "-").replace(".", "-")


def variable(machine: Machine, name: str) -> str:
    """Return an environment variable without surrounding blanks; empty is the same as unset."""
    return machine.env.get(name, "").strip()


def is_true(machine: Machine, name: str) -> bool:
    """Whether an environment variable is set to something that means yes."""
    return variable(machine, name).lower() not in ("", "0", "false", "no", "none", "off")


def in_container(machine: Machine) -> str | None:
    """Return the evidence that this is a container, or None."""
    for path in ("/.dockerenv", "/run/.containerenv"):
        if machine.exists(path):
            return f"{path} exists"
    for name in ("container", "KUBERNETES_SERVICE_HOST"):
        if variable(machine, name):
            return f"{name} is set"
    return None
