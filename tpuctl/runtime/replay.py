"""A machine read from a file: what `doctor --record` wrote, or a hand-made one."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tpuctl.codec import from_plain, read_json
from tpuctl.errors import InvalidInputError, NotFoundError
from tpuctl.runtime.machine import (
    FdScan,
    HostFacts,
    LockFile,
    PciDevice,
    Process,
    normalized,
    parse_count,
)

_HINT = "Make a recording with: tpuctl doctor --record machine.json"


@dataclass(frozen=True)
class RecordedProcess:
    """A process of a recorded machine; `fds` is a list, or text such as `unreadable`."""

    comm: str | None = None
    cmdline: str | None = None
    ppid: int | None = None
    uid: int | None = None
    fds: tuple[str, ...] | str | None = None


@dataclass(frozen=True)
class RecordedSelf:
    """The process that made the recording."""

    pid: int | None = None
    ppid: int | None = None
    uid: int | None = None


@dataclass(frozen=True)
class RecordedProc:
    """The part of a recording that comes from `/proc`."""

    self: RecordedSelf | None = None
    processes: dict[str, RecordedProcess] | None = None
    locks: tuple[str, ...] | None = None
    lockfile_inode: int | None = None
    lockfile_uid: int | None = None
    listening_ports: tuple[int, ...] | None = None
    reachable_ports: dict[str, bool] | None = None


@dataclass(frozen=True)
class Recording:
    """The file format: null means the same as a missing field."""

    env: dict[str, str | None] | None = None
    files: dict[str, str | None] | None = None
    pci: tuple[PciDevice, ...] | None = None
    metadata: dict[str, str | None] | None = None
    packages: dict[str, str | None] | None = None
    requires: dict[str, tuple[str, ...] | None] | None = None
    python: str | None = None
    host: HostFacts | None = None
    proc: RecordedProc | None = None


class RecordedMachine:
    """A machine that consists of one document; what the document omits does not exist."""

    def __init__(self, document: Mapping[str, Any], *, name: str = "the recorded machine") -> None:
        try:
            recording = from_plain(Recording, _with_pci_class(dict(document)))
            processes = (recording.proc and recording.proc.processes) or {}
            if wrong := [pid for pid in processes if parse_count(pid) is None]:
                raise ValueError(f"proc.processes has {wrong[0][:60]!r} as a process id")
        except ValueError as error:
            raise InvalidInputError(f"Could not read {name}: {error}.", hint=_HINT) from error
        self._proc = recording.proc or RecordedProc()
        self._processes = {int(pid): process for pid, process in processes.items()}
        self._files = recording.files or {}
        self._metadata = _without_nulls(recording.metadata)
        self._requires = recording.requires or {}
        self.metadata_answers = recording.metadata is not None
        self.env = _without_nulls(recording.env)
        packages = _without_nulls(recording.packages)
        self.packages = {normalized(dist): version for dist, version in packages.items()}
        self.pci = tuple(
            replace(d, addr=d.addr.lower(), vendor=d.vendor.lower(), device=d.device.lower())
            for d in recording.pci or ()
        )
        self.host = replace(recording.host or HostFacts(), python=recording.python)
        self.locks = self._proc.locks or ()
        me = self._proc.self or RecordedSelf()
        self.self_process = Process(me.pid or 0, ppid=me.ppid, uid=me.uid)

    @property
    def lockfile(self) -> LockFile | None:
        """libtpu's lock file, if it was recorded."""
        inode, uid = self._proc.lockfile_inode, self._proc.lockfile_uid
        return None if inode is None and uid is None else LockFile(inode, uid)

    def metadata(self, path: str) -> str | None:
        """Read a recorded value below `/computeMetadata/v1/`."""
        return self._metadata.get(path)

    def read(self, path: str) -> str | None:
        """Read a recorded file."""
        return self._files.get(path)

    def exists(self, path: str) -> bool:
        """Whether that path was recorded."""
        return path in self._files or self.is_dir(path)

    def is_dir(self, path: str) -> bool:
        """Whether that folder, or something in it, was recorded."""
        folder = path.rstrip("/") + "/"
        return any(name.startswith(folder) for name in self._files)

    def is_device(self, path: str) -> bool:
        """Whether that character device was recorded."""
        return path.startswith("/dev/") and path in self._files and not path.endswith("/")

    def names(self, folder: str) -> tuple[str, ...]:
        """List the recorded names in a folder."""
        start = folder.rstrip("/") + "/"
        below = (name[len(start) :] for name in self._files if name.startswith(start))
        return tuple(dict.fromkeys(rest.partition("/")[0] for rest in below if rest))

    def requires(self, distribution: str) -> tuple[str, ...] | None:
        """Return the recorded requirements of a distribution."""
        return self._requires.get(normalized(distribution))

    def process(self, pid: int) -> Process | None:
        """Look up a recorded process."""
        known = self._processes.get(pid)
        return Process(pid, known.ppid, known.uid, known.comm, known.cmdline) if known else None

    def scan_open_files(self, wanted: Callable[[str], bool]) -> FdScan:
        """List the recorded processes that have a wanted file open."""
        found: dict[int, tuple[str, ...]] = {}
        refused = []
        for pid, process in self._processes.items():
            if isinstance(process.fds, str):
                refused.append(pid)
            elif hits := tuple(sorted({fd for fd in process.fds or () if wanted(fd)})):
                found[pid] = hits
        return FdScan(found, tuple(refused))

    def is_listening(self, port: int) -> bool | None:
        """Whether a port had a listener; None if that was not recorded."""
        ports = self._proc.listening_ports
        return None if ports is None else port in ports

    def is_reachable(self, address: str) -> bool | None:
        """Whether an address accepted a connection; None if that was not recorded."""
        return (self._proc.reachable_ports or {}).get(address)


def open_recorded(path: Path) -> RecordedMachine:
    """Read a recorded machine.

    Raises NotFoundError for a missing file and InvalidInputError for one that is not a recording.
    """
    try:
        document = read_json(path)
        # JSON can escape lone surrogates, which cannot be printed later.
        document = json.loads(json.dumps(document, ensure_ascii=False).encode(errors="replace"))
    except FileNotFoundError as error:
        raise NotFoundError(
            f"Could not read a recorded machine from {path}: the file does not exist.", hint=_HINT
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidInputError(
            f"Could not read the recorded machine in {path}: {error}", hint=_HINT
        ) from error
    if not isinstance(document, dict) or not document.keys() & {"env", "files", "pci", "packages"}:
        raise InvalidInputError(
            f"{path} is JSON, but not a recorded machine (no env, files, pci or packages).",
            hint=_HINT,
        )
    return RecordedMachine(document, name=f"the recorded machine in {path}")


def _with_pci_class(document: dict[str, Any]) -> dict[str, Any]:
    """Rename the key `class` of PCI entries, which cannot be the name of a field."""
    entries = document.get("pci")
    if not isinstance(entries, list):
        return document
    renamed = [
        {**entry, "pci_class": entry.get("class")} if isinstance(entry, dict) else entry
        for entry in entries
    ]
    return {**document, "pci": renamed}


def _without_nulls(values: Mapping[str, str | None] | None) -> dict[str, str]:
    return {name: value for name, value in (values or {}).items() if value is not None}
