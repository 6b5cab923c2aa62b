"""The files, devices and processes of the machine that this process runs on.

This module is sent to workers, so it must run on Python 3.8 with nothing else installed.
"""

from __future__ import annotations

import os
import re
import stat
from functools import cached_property

from tpuctl.runtime.machine import (
    LOCKFILE,
    FdScan,
    LockFile,
    PciDevice,
    Process,
    normalized,
    parse_count,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tpuctl.runtime.machine import HostView

_MAX_FILE_BYTES = 1 << 16
# Google, NVIDIA and AMD.
_VENDORS = ("0x1ae0", "0x10de", "0x1002")
_ACCEL = re.compile(r"accel[0-9]+")
_VFIO = re.compile(r"[0-9]{1,9}")
_NUMBER = re.compile(r"[0-9]+$")


class LocalMachine:
    """The machine that this process runs on; `root` replaces its file system in tests."""

    def __init__(self, root: str = "/") -> None:
        self._root = root.rstrip("/")

    @cached_property
    def pci(self) -> tuple[PciDevice, ...]:
        """The devices of Google and of GPU makers on the PCI bus."""
        found = (self._pci(addr) for addr in sorted(self.names("/sys/bus/pci/devices")))
        return tuple(device for device in found if device)

    @cached_property
    def self_process(self) -> Process:
        """This process."""
        return Process(pid=os.getpid(), ppid=os.getppid(), uid=os.geteuid())

    @cached_property
    def locks(self) -> tuple[str, ...]:
        """The lines of `/proc/locks`."""
        return tuple((self.read("/proc/locks") or "").splitlines())

    @cached_property
    def lockfile(self) -> LockFile | None:
        """The identity of libtpu's lock file."""
        # Only stat: POSIX locks of this process would be dropped when it closes the file.
        try:
            found = os.stat(self._root + LOCKFILE)
        except OSError:
            return None
        return LockFile(found.st_ino, found.st_uid)

    def read(self, path: str) -> str | None:
        """Read a small regular file; nothing else is opened, least of all a device."""
        try:
            if not stat.S_ISREG(os.stat(self._root + path).st_mode):
                return None
            with open(self._root + path, "rb") as file:
                return file.read(_MAX_FILE_BYTES).decode(errors="replace")
        except (OSError, ValueError):
            return None

    def exists(self, path: str) -> bool:
        """Whether the path exists."""
        return self._mode(path) is not None

    def is_dir(self, path: str) -> bool:
        """Whether the path is a folder."""
        return stat.S_ISDIR(self._mode(path) or 0)

    def is_device(self, path: str) -> bool:
        """Whether the path is a character device."""
        return stat.S_ISCHR(self._mode(path) or 0)

    def names(self, folder: str) -> tuple[str, ...]:
        """List the names in a folder."""
        try:
            return tuple(map(as_text, os.listdir(self._root + folder)))
        except (OSError, ValueError):
            return ()

    def process(self, pid: int) -> Process | None:
        """Look up a process."""
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
            pid = parse_count(name)
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
        # State 0A is LISTEN.
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
            iommu_group=parse_count(group),
        )

    def _word(self, path: str) -> str | None:
        return (self.read(path) or "").strip().lower() or None

    def _link(self, path: str) -> str | None:
        try:
            return os.path.basename(os.readlink(self._root + path)) or None
        except OSError:
            return None


def device_nodes(machine: HostView, tpus: Sequence[PciDevice]) -> tuple[str, ...]:
    """Return the device nodes of chips, without control nodes and other devices' groups."""
    accel = [f"/dev/{name}" for name in machine.names("/dev") if _ACCEL.fullmatch(name)]
    groups = {device.iommu_group for device in tpus}
    vfio = [
        f"/dev/vfio/{name}"
        for name in machine.names("/dev/vfio")
        if _VFIO.fullmatch(name) and (None in groups or int(name) in groups)
    ]
    return tuple(sorted(path for path in accel + vfio if machine.is_device(path)))


def nodes_of_chips(machine: HostView, tpus: Sequence[PciDevice]) -> list[tuple[str, ...]]:
    """Group device nodes by chip, in the order in which libtpu counts chips.

    `tpus` are the PCI functions of the chips; a TPU7x has two, with a node each. Chips without a
    node are left out.
    """
    nodes = sorted(device_nodes(machine, tpus), key=number_of)
    groups: dict[str, set[int | None]] = {}
    for device in tpus:
        groups.setdefault(device.slot, set()).add(device.iommu_group)
    if any(node.startswith("/dev/accel") for node in nodes):
        return [(node,) for node in nodes if node.startswith("/dev/accel")]
    if any(None in known for known in groups.values()):
        # Some containers hide the iommu groups: assume that every chip has as many nodes.
        each = max(1, len(nodes) // max(1, len(groups)))
        return [tuple(nodes[at : at + each]) for at in range(0, len(nodes), each)]
    chips = (tuple(n for n in nodes if number_of(n) in known) for known in groups.values())
    return sorted(filter(None, chips), key=lambda chip: number_of(chip[0]))


def number_of(node: str) -> int:
    """Return the number at the end of a device node's name."""
    match = _NUMBER.search(node)
    return int(match[0]) if match else 0


def as_text(value: str) -> str:
    """Replace lone surrogates, which stand for bytes that are not UTF-8 and cannot be printed."""
    return value if value.isascii() else value.encode(errors="replace").decode()


def first_number(text: str | None) -> int | None:
    """Return the number at the start of a text."""
    words = (text or "").split()
    return parse_count(words[0]) if words else None


def installed(path: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Find all distributions on `path`: normalized name to version and metadata folder.

    Reads what `importlib.metadata` reads, which alone takes 60 ms to import. The first one found
    wins, as it does on import.
    """
    found: dict[str, tuple[str, str]] = {}
    for folder in dict.fromkeys(path):
        try:
            entries = os.listdir(folder or ".")
        except OSError:
            continue
        for entry in entries:
            stem, suffix = os.path.splitext(entry)
            if suffix not in (".dist-info", ".egg-info") or "-" not in stem:
                continue
            name, version = stem.split("-")[:2]
            found.setdefault(normalized(name), (version, os.path.join(folder or ".", entry)))
    return found
