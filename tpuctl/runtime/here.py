"""This machine's files, devices and processes, as far as anybody may see them.

Travels to workers, so it needs nothing but Python 3.8.
"""

from __future__ import annotations

import os
import stat
from functools import cached_property

from tpuctl.runtime.machine import LOCKFILE, FdScan, LockFile, PciDevice, Process, whole_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_LARGEST_FILE = 1 << 16
_VENDORS = ("0x1ae0", "0x10de", "0x1002")


class Here:
    """The machine that this process runs on; `root` lets something stand in for its files."""

    def __init__(self, root: str = "/") -> None:
        self._root = root.rstrip("/")

    @cached_property
    def pci(self) -> tuple[PciDevice, ...]:
        """The devices of Google and of GPU makers on the PCI bus."""
        found = (self._pci(addr) for addr in sorted(self.names("/sys/bus/pci/devices")))
        return tuple(device for device in found if device)

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
            return tuple(map(as_text, os.listdir(self._root + folder)))
        except (OSError, ValueError):
            return ()

    def process(self, pid: int) -> Process | None:
        """Look at one process."""
        status = self.read(f"/proc/{pid}/status")
        if status is None:
            return None
        fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        cmdline = self.read(f"/proc/{pid}/cmdline") or ""
        return Process(
            pid=pid,
            ppid=first_number(fields.get("PPid")),
            uid=first_number(fields.get("Uid")),
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
                target = as_text(os.readlink(f"{folder}/{descriptor}"))
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


def as_text(value: str) -> str:
    """Bytes that are no text come from the system as lone surrogates, which nobody can print."""
    return value if value.isascii() else value.encode(errors="replace").decode()


def first_number(text: str | None) -> int | None:
    """The number at the beginning of a text."""
    words = (text or "").split()
    return whole_number(words[0]) if words else None
