"""The files of a local folder that are copied to workers."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tpuctl.errors import InvalidInputError, NotFoundError
from tpuctl.remote.agent.tree import FILE, TreeEntry, digest, entry_of_file, scan
from tpuctl.remote.copy_plan import LeftOut


@dataclass(frozen=True)
class LocalTree:
    """A file or folder to copy; `odd` names sockets, pipes and devices, which are not copied.

    `rows` are the entries as they are sent; a single file has the name that the user gave.
    """

    root: str
    entries: tuple[TreeEntry, ...]
    is_file: bool
    rows: list[list[object]]
    odd: tuple[str, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    _digests: dict[int, str] = field(default_factory=dict, repr=False)

    def digest(self, number: int) -> str:
        """Return the digest of a file, computed once for all workers."""
        if number not in self._digests:
            path = os.path.join(self.root, self.entries[number].path)
            self._digests[number] = digest(path)
        return self._digests[number]

    def size_bytes(self, numbers: tuple[int, ...]) -> int:
        """Return the total size of some files."""
        return sum(self.entries[number].size for number in numbers)

    def count_files(self) -> int:
        """Return the number of files."""
        return sum(entry.kind == FILE for entry in self.entries)

    def has_files(self, numbers: Iterable[int]) -> bool:
        """Whether all numbers are those of files."""
        count = len(self.entries)
        return all(0 <= n < count and self.entries[n].kind == FILE for n in numbers)


def read_tree(path: Path, *, include_secrets: bool = False) -> LocalTree:
    """List a file, or a folder without ignored files and those that may hold secrets.

    Raises NotFoundError, and InvalidInputError for a source that cannot be listed or copied.
    """
    try:
        if path.is_dir():
            from tpuctl.remote._ignore import local_rules

            why_not = local_rules(path, include_secrets=include_secrets)
            left_out: list[LeftOut] = []

            def keep(name: str, is_folder: bool) -> bool:
                if why := why_not(name, is_folder):
                    left_out.append(why)
                return why is None

            entries, odd = scan(str(path), keep)
            rows = [entry.as_list() for entry in entries]
            return LocalTree(str(path), tuple(entries), False, rows, tuple(odd), tuple(left_out))
        real = path.resolve()
        entry = entry_of_file(real.name, path.stat())
    except FileNotFoundError as error:
        raise NotFoundError(f"{path} does not exist.") from error
    except OSError as error:
        raise InvalidInputError(f"Could not list {path}: {error}.") from error
    if entry is None:
        raise InvalidInputError(f"{path} is neither a file nor a folder.")
    return LocalTree(str(real.parent), (entry,), True, [[path.name, *entry.as_list()[1:]]])
