"""A folder as a list of entries, and the contents of files as one stream of bytes."""

from __future__ import annotations

import os
import stat
import struct

from tpuctl.remote.agent.wire import BLOCK_BYTES, Refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

FILE, FOLDER, LINK = "f", "d", "l"
RECORD = struct.Struct(">IQ")
WHOLE, CHANGED = b"\x01", b"\x00"
"""Follows a file's bytes: whether they are its complete content."""

_NO_NAMES = ("", ".", "..")
_TYPES = (str, str, int, int, int, str)
_PART = (".tpuctl-", ".part")
# How far a file that is being written may have grown since it was listed.
_MAX_GROWTH_BYTES = 1 << 20
_PERMISSIONS = 0o777
# Folders within folders, and bytes: what Linux allows, and what our own recursion does.
_DEEPEST, _LONGEST_NAME, _LONGEST_PATH = 200, 255, 4095


class TreeEntry:
    """A file, folder or link: `path` is relative, with slashes; `link` is a link's target."""

    __slots__ = ("kind", "link", "mode", "mtime_ns", "path", "size")

    def __init__(
        self, path: str, kind: str, mode: int, size: int, mtime_ns: int, link: str
    ) -> None:
        self.path, self.kind, self.mode = path, kind, mode
        self.size, self.mtime_ns, self.link = size, mtime_ns, link

    def as_list(self) -> list[object]:
        """The entry for a note."""
        return [self.path, self.kind, self.mode, self.size, self.mtime_ns, self.link]


def read_entries(rows: object) -> list[TreeEntry]:
    """Read entries from a note; raises Refusal for invalid ones and for paths out of the folder.

    Every entry must be in a folder that is itself in the list, so never behind a link.
    """
    entries: list[TreeEntry] = []
    folders, seen = {""}, set()
    if not isinstance(rows, list):
        raise Refusal("bad_path", "the list of files is missing")
    for row in rows:
        entry = _read_entry(row)
        path = entry.path
        # The parent is in the list and was checked itself, so only the last part is new.
        parent, _, name = path.rpartition("/")
        bad = name in _NO_NAMES or "\0" in name or (not parent and is_part(name))
        if bad or path[:1] == "/" or parent not in folders or path in seen or _is_too_long(path):
            raise Refusal("bad_path", f"{path[:80]!r} is not a valid path in that folder")
        seen.add(path)
        if entry.kind == FOLDER:
            folders.add(path)
        entries.append(entry)
    return entries


def _is_too_long(path: str) -> bool:
    name = path.rpartition("/")[2]
    sizes = [len(text.encode("utf-8", "surrogateescape")) for text in (name, path)]
    return sizes[0] > _LONGEST_NAME or sizes[1] > _LONGEST_PATH or path.count("/") >= _DEEPEST


def _read_entry(row: object) -> TreeEntry:
    if not isinstance(row, list) or tuple(map(type, row)) != _TYPES:
        raise Refusal("bad_path", "an entry is malformed")
    entry = TreeEntry(*row)
    try:
        (entry.path + entry.link).encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise Refusal("bad_path", f"{entry.path[:80]!r} is not a valid name") from None
    is_link = entry.kind == LINK
    bad_link = "\0" in entry.link or not is_link <= len(entry.link) <= is_link * _LONGEST_PATH
    if entry.kind not in (FILE, FOLDER, LINK) or entry.size < 0 or bad_link:
        raise Refusal("bad_path", f"{entry.path[:80]!r} is not a valid file, folder or link")
    entry.mode &= _PERMISSIONS
    return entry


def is_part(name: str) -> bool:
    """Whether this is the name of a folder for incoming files."""
    return name.startswith(_PART[0]) and name.endswith(_PART[1])


def part_name(word: str) -> str:
    """Return a name for a folder for incoming files."""
    return word.join(_PART)


def scan(root: str, keep: Callable[[str, bool], bool]) -> tuple[list[TreeEntry], list[str]]:
    """List a folder, parents before children; also returns what is neither file, folder nor link.

    `keep` takes each path and whether it is a folder; a folder that it rejects is not read.
    """
    entries: list[TreeEntry] = []
    odd: list[str] = []
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        with os.scandir(os.path.join(root, folder)) as found:
            children = sorted(found, key=lambda child: child.name)
        for child in children:
            path = f"{folder}/{child.name}" if folder else child.name
            is_folder = child.is_dir(follow_symlinks=False)
            if is_part(child.name) or not keep(path, is_folder):
                continue
            entry = _entry_of(path, child)
            if entry is None:
                odd.append(path)
                continue
            entries.append(entry)
            if is_folder:
                waiting.append(path)
    return entries, odd


def _entry_of(path: str, child: os.DirEntry[str]) -> TreeEntry | None:
    state = child.stat(follow_symlinks=False)
    if stat.S_ISLNK(state.st_mode):
        return TreeEntry(path, LINK, _PERMISSIONS, 0, 0, os.readlink(child.path))
    return entry_of_file(path, state)


def entry_of_file(path: str, state: os.stat_result) -> TreeEntry | None:
    """Make the entry for a file or folder; None for anything else."""
    mode = state.st_mode & _PERMISSIONS
    if stat.S_ISDIR(state.st_mode):
        return TreeEntry(path, FOLDER, mode, 0, 0, "")
    if stat.S_ISREG(state.st_mode):
        return TreeEntry(path, FILE, mode, state.st_size, state.st_mtime_ns, "")
    return None


def digest(path: str) -> str:
    """Return a digest of a file's content."""
    from hashlib import blake2b

    total = blake2b(digest_size=16)
    with open(path, "rb") as file:
        while data := file.read(BLOCK_BYTES):
            total.update(data)
    return total.hexdigest()


def pack(root: str, entries: list[TreeEntry], wanted: Iterable[int]) -> Iterator[bytes]:
    """Join the contents of some files into blocks; a file that changes while read is marked."""
    waiting, waiting_bytes = [], 0
    for index in wanted:
        entry = entries[index]
        for piece in _pieces(os.path.join(root, entry.path), index, entry.size):
            waiting.append(piece)
            waiting_bytes += len(piece)
            if waiting_bytes >= BLOCK_BYTES:
                yield b"".join(waiting)
                waiting, waiting_bytes = [], 0
    if waiting:
        yield b"".join(waiting)


def _pieces(path: str, index: int, listed_bytes: int) -> Iterator[bytes]:
    """Yield a file's record: its header, its bytes, and whether they are complete."""
    # The file may be gone by now, or replaced by a link to somewhere else.
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        yield RECORD.pack(index, 0) + CHANGED
        return
    try:
        before = os.fstat(file)
        missing = before.st_size
        if missing > listed_bytes + _MAX_GROWTH_BYTES:
            yield RECORD.pack(index, 0) + CHANGED
            return
        yield RECORD.pack(index, missing)
        while missing:
            data = os.read(file, min(missing, BLOCK_BYTES))
            if not data:
                break
            missing -= len(data)
            yield data
        # The size was sent already, so a file that has shrunk is filled up with zeros.
        for start in range(0, missing, BLOCK_BYTES):
            yield bytes(min(BLOCK_BYTES, missing - start))
        same = not missing and os.fstat(file).st_mtime_ns == before.st_mtime_ns
        yield WHOLE if same else CHANGED
    finally:
        os.close(file)
