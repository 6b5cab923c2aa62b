"""A folder or file of this machine that is to be copied to workers."""

import os
from dataclasses import dataclass, field
from pathlib import Path

from tpuctl.errors import InvalidInputError, NotFoundError
from tpuctl.remote.agent.tree import FILE, Entry, digest, entry_of_file, scan


@dataclass(frozen=True)
class LocalTree:
    """What is to be copied, and what of it cannot be: sockets, pipes and devices.

    `rows` are the entries as they are sent, a single file under the name that it was given by.
    """

    root: str
    entries: tuple[Entry, ...]
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


def check_that_it_is_there(path: Path) -> None:
    """Raise NotFoundError for what is missing, before anybody is asked for anything."""
    if not os.path.exists(path):
        raise NotFoundError(f"There is no {path} to copy.")


def read_tree(path: Path) -> LocalTree:
    """List a file or a folder, without what its `.gitignore` and `.tpuignore` name.

    Raises NotFoundError, and InvalidInputError for what can be neither listed nor copied.
    """
    try:
        if path.is_dir():
            from tpuctl.remote._ignore import keep_here

            entries, odd = scan(str(path), keep_here(path))
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
