"""A machine from a file: what `doctor --record` wrote, or a hand-made one."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

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

LOCKFILE_FIELDS = ("lockfile_inode", "lockfile_uid")


class RecordedMachine:
    """A machine that consists of one document; whatever the document omits is not there."""

    def __init__(self, document: Mapping[str, Any], *, name: str = "the recorded machine") -> None:
        self._name = name
        self.env = self._texts(document, "env")
        self._files = self._mapping(document, "files")
        self._proc = self._mapping(document, "proc")
        self._metadata = (
            None if document.get("metadata") is None else self._texts(document, "metadata")
        )
        self.packages = {normalized(k): v for k, v in self._texts(document, "packages").items()}
        self._requires = self._mapping(document, "requires")
        self.pci = tuple(self._pci(entry) for entry in self._list(document, "pci"))
        self.host = self._host(document)
        self._processes = self._mapping(self._proc, "processes")
        self._check_files()
        self._check_proc()

    @property
    def self_process(self) -> Process:
        """The process that asked when the machine was recorded."""
        entry = self._mapping(self._proc, "self")
        pid = self._integer(entry, "pid")
        return Process(
            pid=0 if pid is None else pid,
            ppid=self._integer(entry, "ppid"),
            uid=self._integer(entry, "uid"),
        )

    @property
    def locks(self) -> tuple[str, ...]:
        """The lines of `/proc/locks`."""
        return tuple(str(line) for line in self._list(self._proc, "locks"))

    @property
    def lockfile(self) -> LockFile | None:
        """libtpu's lock file, if the recording knows of one."""
        inode, uid = (self._integer(self._proc, field) for field in LOCKFILE_FIELDS)
        return None if inode is None and uid is None else LockFile(inode, uid)

    @property
    def metadata_answers(self) -> bool:
        """Whether the recording has a metadata server."""
        return self._metadata is not None

    def metadata(self, path: str) -> str | None:
        """Read a recorded value below `/computeMetadata/v1/`."""
        return (self._metadata or {}).get(path)

    def read(self, path: str) -> str | None:
        """Read a recorded text."""
        text = self._files.get(path)
        return text if isinstance(text, str) else None

    def exists(self, path: str) -> bool:
        """Whether the recording lists that path."""
        return path in self._files or self.is_dir(path)

    def is_dir(self, path: str) -> bool:
        """Whether the recording lists that folder, or something in it."""
        folder = path.rstrip("/") + "/"
        return any(name.startswith(folder) for name in self._files)

    def is_device(self, path: str) -> bool:
        """Whether the recording lists that character device."""
        return path.startswith("/dev/") and path in self._files and not path.endswith("/")

    def names(self, folder: str) -> tuple[str, ...]:
        """The names that the recording lists in a folder."""
        start = folder.rstrip("/") + "/"
        below = (name[len(start) :] for name in self._files if name.startswith(start))
        return tuple(dict.fromkeys(rest.partition("/")[0] for rest in below if rest))

    def requires(self, distribution: str) -> tuple[str, ...] | None:
        """What a recorded distribution declares to need."""
        lines = self._requires.get(normalized(distribution))
        return tuple(str(line) for line in lines) if isinstance(lines, list) else None

    def process(self, pid: int) -> Process | None:
        """Look at a recorded process."""
        entry = self._processes.get(str(pid))
        if not isinstance(entry, Mapping):
            return None
        comm, cmdline = entry.get("comm"), entry.get("cmdline")
        return Process(
            pid=pid,
            ppid=self._integer(entry, "ppid"),
            uid=self._integer(entry, "uid"),
            comm=comm if isinstance(comm, str) else None,
            cmdline=cmdline if isinstance(cmdline, str) else None,
        )

    def scan_open_files(self, wanted: Callable[[str], bool]) -> FdScan:
        """List the recorded processes that have a wanted file open."""
        found: dict[int, tuple[str, ...]] = {}
        refused = []
        for pid, entry in self._processes.items():
            fds = entry.get("fds", [])
            if not isinstance(fds, list):
                refused.append(int(pid))
            elif hits := tuple(sorted({fd for fd in map(str, fds) if wanted(fd)})):
                found[int(pid)] = hits
        return FdScan(found, tuple(refused))

    def is_listening(self, port: int) -> bool | None:
        """Whether a recorded port had a listener."""
        if "listening_ports" not in self._proc:
            return None
        return port in self._list(self._proc, "listening_ports")

    def is_reachable(self, address: str) -> bool | None:
        """Whether a recorded address accepted a connection."""
        answer = self._mapping(self._proc, "reachable_ports").get(address)
        return answer if isinstance(answer, bool) else None

    def _check_files(self) -> None:
        for path, text in self._files.items():
            if text is not None and not isinstance(text, str):
                self._refuse(f"files[{path!r}]", "text or null", text)

    def _check_proc(self) -> None:
        _ = self.self_process, self.locks, self.lockfile
        for pid, entry in self._processes.items():
            if parse_count(pid) is None:
                self._refuse("proc.processes", "process ids as keys", pid)
            if not isinstance(entry, Mapping):
                self._refuse(f"proc.processes[{pid}]", "an object", entry)
            self.process(int(pid))
        self._list(self._proc, "listening_ports")
        self._mapping(self._proc, "reachable_ports")

    def _pci(self, entry: Any) -> PciDevice:
        if not isinstance(entry, Mapping):
            self._refuse("pci[]", "an object", entry)
        return PciDevice(
            addr=self._text(entry, "addr").lower(),
            vendor=self._text(entry, "vendor").lower(),
            device=self._text(entry, "device").lower(),
            subsystem_device=self._optional_text(entry, "subsystem_device"),
            pci_class=self._optional_text(entry, "class"),
            driver=self._optional_text(entry, "driver"),
            iommu_group=self._integer(entry, "iommu_group"),
        )

    def _host(self, document: Mapping[str, Any]) -> HostFacts:
        entry = self._mapping(document, "host")
        return HostFacts(
            vcpus=self._integer(entry, "vcpus"),
            memory_bytes=self._integer(entry, "memory_bytes"),
            disk_free_bytes=self._integer(entry, "disk_free_bytes"),
            python=self._optional_text(document, "python"),
        )

    def _mapping(self, parent: Mapping[str, Any], key: str) -> Mapping[str, Any]:
        value = parent.get(key)
        if value is not None and not isinstance(value, Mapping):
            self._refuse(key, "an object", value)
        return {} if value is None else dict(value)

    def _texts(self, parent: Mapping[str, Any], key: str) -> dict[str, str]:
        values = self._mapping(parent, key)
        known = {name: value for name, value in values.items() if value is not None}
        for name, value in known.items():
            if not isinstance(value, str):
                self._refuse(f"{key}[{name!r}]", "text", value)
        return known

    def _list(self, parent: Mapping[str, Any], key: str) -> list[Any]:
        value = parent.get(key)
        if value is None:
            return []
        if not isinstance(value, list):
            self._refuse(key, "a list", value)
        return list(value)

    def _text(self, parent: Mapping[str, Any], key: str) -> str:
        value = parent.get(key)
        if not isinstance(value, str):
            self._refuse(key, "text", value)
        return str(value)

    def _optional_text(self, parent: Mapping[str, Any], key: str) -> str | None:
        return None if parent.get(key) is None else self._text(parent, key)

    def _integer(self, parent: Mapping[str, Any], key: str) -> int | None:
        value = parent.get(key)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            self._refuse(key, "a whole number", value)
        return value

    def _refuse(self, field: str, wanted: str, value: Any) -> None:
        raise InvalidInputError(
            f"Could not read {self._name}: {field} must be {wanted}, not {str(value)[:60]!r}.",
            hint="Make a recording with: tpuctl doctor --record machine.json",
        )


def open_recorded(path: Path) -> RecordedMachine:
    """Read a recorded machine.

    Raises NotFoundError for a missing file and InvalidInputError for one that is no recording.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        # JSON can spell half a character, which nobody can print afterwards.
        document = json.loads(json.dumps(document, ensure_ascii=False).encode(errors="replace"))
    except FileNotFoundError as error:
        raise NotFoundError(
            f"There is no recorded machine at {path}.",
            hint="Make one with: tpuctl doctor --record machine.json",
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidInputError(
            f"Could not read the recorded machine in {path}: {error}",
            hint="Make a recording with: tpuctl doctor --record machine.json",
        ) from error
    if not isinstance(document, dict) or not document.keys() & {"env", "files", "pci", "packages"}:
        raise InvalidInputError(
            f"{path} is JSON, but not a recorded machine (no env, files, pci or packages).",
            hint="Make a recording with: tpuctl doctor --record machine.json",
        )
    return RecordedMachine(document, name=f"the recorded machine in {path}")
