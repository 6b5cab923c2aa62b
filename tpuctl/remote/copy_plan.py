"""Copies: what goes where, and what came of it."""

import enum
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from tpuctl.errors import InvalidInputError, NotFoundError, TpuctlError, UsageError
from tpuctl.remote.agent.tree import FILE, TreeEntry, digest, entry_of_file, scan
from tpuctl.remote.hosts import Host, name_workers
from tpuctl.remote.results import CommandResult, CommandResults

_REMOTE = re.compile(r"(?P<name>[^/:]*):(?P<path>.*)", re.DOTALL)
_NAMED = 3


class Direction(enum.Enum):
    """Which way the files go."""

    UP = "to"
    DOWN = "from"


@dataclass(frozen=True)
class CopyResult(CommandResult):
    """What was copied to or from one worker; `files` is how many there are, sent or not."""

    path: str | None = None
    files: int = 0
    sent: int = 0
    sent_bytes: int = 0
    changed: tuple[str, ...] = ()
    odd: tuple[str, ...] = ()


@dataclass(frozen=True)
class CopyResults(CommandResults):
    """A copy to or from all workers."""

    workers: tuple[CopyResult, ...]
    direction: Direction
    seconds: float
    odd: tuple[str, ...] = ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """What could not be copied, and is no failure."""
        said = []
        odd = sorted({*self.odd, *(name for worker in self.workers for name in worker.odd)})
        if odd:
            said.append(f"Neither file, folder nor link, so not copied: {_some(odd)}.")
        messy = [worker for worker in self.workers if worker.changed]
        if messy:
            names = sorted({name for worker in messy for name in worker.changed})
            where = name_workers(worker.index for worker in messy)
            said.append(
                f"Could not be read whole, so not copied ({where}): {_some(names)}. "
                "If it was written meanwhile, the same command again takes it."
            )
        return tuple(said)


@dataclass(frozen=True)
class CopyPlan:
    """Which path of the workers, which one here, and which way."""

    direction: Direction
    name: str | None
    remote: str
    local: str


def plan_copy(source: str, target: str, *, has_hosts: bool) -> CopyPlan:
    """Read `NAME:path` on exactly one side; raises UsageError.

    With machines given by address the name is empty: `:path`.
    """
    from_there, to_there = _REMOTE.fullmatch(source), _REMOTE.fullmatch(target)
    there = from_there or to_there
    if there is None or (from_there and to_there):
        raise UsageError(
            "Exactly one side must be on the workers.",
            hint="Write it like NAME:path (with --host like :path), and ./a:b for a local file.",
        )
    name = there["name"] or None
    if has_hosts and name:
        raise UsageError(
            f"With --host, {name}:{there['path']} names no machine.", hint="Write only :path."
        )
    if "\0" in source + target:
        raise UsageError("No path can hold a NUL character.")
    direction = Direction.DOWN if from_there else Direction.UP
    return CopyPlan(direction, name, there["path"], target if from_there else source)


def copy_failed(host: Host, error: TpuctlError) -> CopyResult:
    """What came of a copy that failed."""
    return CopyResult(host.index, host.address, None, None, str(error), failure=error)


def _some(names: list[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


@dataclass(frozen=True)
class LocalTree:
    """What is to be copied, and what of it cannot be: sockets, pipes and devices.

    `rows` are the entries as they are sent, a single file under the name that it was given by.
    """

    root: str
    entries: tuple[TreeEntry, ...]
    is_file: bool
    rows: list[list[object]]
    odd: tuple[str, ...] = ()
    _digests: dict[int, str] = field(default_factory=dict, repr=False)

    def digest(self, number: int) -> str:
        """The fingerprint of a file, made once however many workers ask."""
        if number not in self._digests:
            path = os.path.join(self.root, self.entries[number].path)
            self._digests[number] = digest(path)
        return self._digests[number]

    def size_bytes(self, numbers: tuple[int, ...]) -> int:
        """How large some of the files are together."""
        return sum([self.entries[number].size for number in numbers])

    def count_files(self) -> int:
        """How many of the entries are files."""
        return sum([entry.kind == FILE for entry in self.entries])


def check_source_exists(path: Path) -> None:
    """Raise NotFoundError for what is missing, before anybody is asked for anything."""
    if not os.path.exists(path):
        raise NotFoundError(f"There is no {path} to copy.")


def read_tree(path: Path) -> LocalTree:
    """List a file or a folder, without what its `.gitignore` and `.tpuignore` name.

    Raises NotFoundError, and InvalidInputError for what can be neither listed nor copied.
    """
    try:
        if path.is_dir():
            from tpuctl.remote._ignore import local_rules

            entries, odd = scan(str(path), local_rules(path))
            rows = [entry.as_list() for entry in entries]
            return LocalTree(str(path), tuple(entries), False, rows, tuple(odd))
        real = path.resolve()
        entry = entry_of_file(real.name, path.stat())
    except FileNotFoundError as error:
        raise NotFoundError(f"There is no {path} to copy.") from error
    except OSError as error:
        raise InvalidInputError(f"Could not list {path}: {error}.") from error
    if entry is None:
        raise InvalidInputError(f"{path} is neither a file nor a folder.")
    return LocalTree(str(real.parent), (entry,), True, [[path.name, *entry.as_list()[1:]]])
