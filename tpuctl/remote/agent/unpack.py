"""Receiving files: first into a separate folder, then each into its place in one step.

Nothing can leave the target folder, neither by `..` nor by links that exist or were received.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import unicodedata

from tpuctl.remote.agent.tree import (
    CHANGED,
    FOLDER,
    LINK,
    RECORD,
    TreeEntry,
    digest,
    is_part,
    part_name,
)
from tpuctl.remote.agent.wire import Refusal, WireError, send

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_FOLDERS = 128
# All files together may be this much larger than they were when they were listed.
_GROWTH_BYTES = 1 << 26


class Receiver:
    """Makes a folder contain some entries, given by number; other files in it are kept."""

    def __init__(self, root: str, entries: dict[int, TreeEntry]) -> None:
        _make_root(root)
        self._root, self._entries = root, entries
        # Every path is opened from its parent's descriptor: a path as text could be redirected by a
        # link that another process puts there between the check and the use.
        self._folders = {"": os.open(root, _OPEN_FOLDER)}
        self._umask = os.umask(0)
        os.umask(self._umask)
        # The folder for incoming files, on the same file system as the target.
        self._part, self._part_name = -1, ""
        self._expected: set[int] = set()
        self._arrived: list[int] = []
        self._links: list[int] = []
        # Folders that do not exist yet, those that have been created among the incoming files, and
        # the one that is open now.
        self._new: dict[str, int] = {}
        self._staged: set[int] = set()
        self._stage, self._stage_of = -1, -1
        self._modes: list[int] = []
        # Whether some files are in their place and others are not; an earlier attempt that ended so
        # left its folder for incoming files, and new folders without their modes.
        self._is_partial = False
        self._resumes = any(map(is_part, os.listdir(self._folders[""])))
        # The start of an incomplete record, and the file that is being received.
        self._rest = b""
        self._file, self._index, self._missing = -1, -1, 0
        self._place = (-1, "")
        self._growth = _GROWTH_BYTES
        self.changed: list[str] = []

    def compare(self) -> tuple[list[int], list[int]]:
        """Return which files are missing, and which have the same size but another time.

        Raises Refusal where something of another kind is in the way.
        """
        missing: list[int] = []
        doubtful: list[int] = []
        for index, entry in self._entries.items():
            folder, _, name = entry.path.rpartition("/")
            state = None if folder in self._new else self._state(folder, name)
            if state is not None:
                _check_kind(entry, state)
            if entry.kind == LINK:
                if state is None or self._read_link(entry) != entry.link:
                    self._links.append(index)
            elif entry.kind == FOLDER:
                self._compare_folder(index, state)
            elif state is None or not stat.S_ISREG(state.st_mode) or state.st_size != entry.size:
                missing.append(index)
            elif state.st_mtime_ns != entry.mtime_ns:
                doubtful.append(index)
            elif stat.S_IMODE(state.st_mode) & 0o777 != entry.mode:
                self._modes.append(index)
        return missing, doubtful

    def _compare_folder(self, index: int, state: os.stat_result | None) -> None:
        entry = self._entries[index]
        if state is None:
            self._new[entry.path] = index
        elif self._resumes and stat.S_IMODE(state.st_mode) & 0o777 != entry.mode:
            self._modes.append(index)

    def digests(self, indices: Iterable[int]) -> list[str]:
        """Return the digests of existing files."""
        return [digest(os.path.join(self._root, self._entries[index].path)) for index in indices]

    def expect(self, indices: Iterable[int]) -> None:
        """Prepare to receive these files; none is visible before `commit`."""
        self._expected = set(indices)
        self._remove_stale()
        if self._expected or self._links:
            name = part_name(os.urandom(6).hex())
            os.mkdir(name, 0o700, dir_fd=self._folders[""])
            self._part_name = name
            self._part = os.open(name, _OPEN_FOLDER, dir_fd=self._folders[""])
            fcntl.flock(self._part, fcntl.LOCK_EX)
            paths = [entry.path for entry in self._entries.values()]
            if self._state("", name.upper()) and (twins := same_without_case(paths)):
                raise Refusal("bad_path", f"{' and '.join(twins)} are the same name here")

    def feed(self, data: bytes) -> None:
        """Receive the next bytes of the stream that `pack` makes."""
        data, at = self._rest + data, 0
        while True:
            if self._index < 0:
                if len(data) - at < RECORD.size:
                    break
                self._begin(*RECORD.unpack_from(data, at))
                at += RECORD.size
            taken = data[at : at + self._missing]
            at += len(taken)
            self._missing -= len(taken)
            send(taken, self._file)
            if self._missing or at >= len(data):
                break
            self._end(data[at : at + 1])
            at += 1
        self._rest = data[at:]

    def commit(self, touched: list[int]) -> None:
        """Put everything into place: folders, files, links; then modes and times."""
        if self._index >= 0 or self._rest or self._expected:
            raise WireError("not every file has arrived")
        made = [index for index, entry in self._entries.items() if self._make_folder(entry)]
        for index in self._arrived:
            self._put_in_place(index)
        for index in self._links:
            os.symlink(self._entries[index].link, str(index), dir_fd=self._part)
            self._put_in_place(index)
        for index in touched:
            entry = self._entries[index]
            folder, name = self._where(entry)
            times = (entry.mtime_ns, entry.mtime_ns)
            os.utime(name, ns=times, dir_fd=folder, follow_symlinks=False)
        # Folders last, deepest first: a new mode may take away our own access.
        for index in sorted((*touched, *self._modes, *made), reverse=True):
            entry = self._entries[index]
            folder, name = self._where(entry)
            os.chmod(name, entry.mode, dir_fd=folder)
        self._is_partial = False

    def close(self) -> None:
        """Remove what was not put into place.

        The folder for incoming files is kept, empty, if only some were: the next attempt sees by it
        that the others are ours.
        """
        for descriptor in (self._file, self._stage):
            if descriptor >= 0:
                os.close(descriptor)
        if self._part >= 0 and self._is_partial:
            _empty(self._part)
            os.close(self._part)
        elif self._part >= 0:
            _remove_part(self._folders[""], self._part_name, self._part)
        for descriptor in self._folders.values():
            os.close(descriptor)
        self._file = self._part = self._stage = -1
        self._folders.clear()

    def _begin(self, index: int, size: int) -> None:
        if index not in self._expected:
            raise WireError("a file arrived that was not requested")
        self._growth -= max(0, size - self._entries[index].size)
        if self._growth < 0:
            raise WireError("the files are larger than was announced")
        self._expected.remove(index)
        mode = self._entries[index].mode
        folder, name = self._place = self._place_to_arrive(index)
        self._file = os.open(name, _NEW_FILE, mode, dir_fd=folder)
        if mode & self._umask:
            os.fchmod(self._file, mode)
        self._index, self._missing = index, size

    def _end(self, mark: bytes) -> None:
        """Close a file; one that changed while it was read is dropped."""
        index, entry = self._index, self._entries[self._index]
        os.utime(self._file, ns=(entry.mtime_ns, entry.mtime_ns))
        os.close(self._file)
        self._file, self._index = -1, -1
        folder, name = self._place
        if mark == CHANGED:
            self.changed.append(entry.path)
            os.unlink(name, dir_fd=folder)
        elif folder == self._part:
            self._arrived.append(index)

    def _place_to_arrive(self, index: int) -> tuple[int, str]:
        """Return the folder and name to receive a file under.

        A new folder is received as a whole, which is then renamed into place in one step: half the
        time for many small files.
        """
        parent, _, name = self._entries[index].path.rpartition("/")
        new = self._new.get(parent)
        if new is None:
            return self._part, str(index)
        if self._stage_of != new:
            if self._stage >= 0:
                os.close(self._stage)
            if new not in self._staged:
                os.mkdir(str(new), 0o700, dir_fd=self._part)
                self._staged.add(new)
            self._stage = os.open(str(new), _OPEN_FOLDER | os.O_NOFOLLOW, dir_fd=self._part)
            self._stage_of = new
        return self._stage, name

    def _put_in_place(self, index: int) -> None:
        folder, name = self._where(self._entries[index])
        os.replace(str(index), name, src_dir_fd=self._part, dst_dir_fd=folder)
        self._is_partial = True

    def _make_folder(self, entry: TreeEntry) -> bool:
        if entry.kind != FOLDER:
            return False
        folder, name = self._where(entry)
        staged = self._new.get(entry.path, -1)
        if staged in self._staged:
            return self._place_folder(staged, folder, name)
        try:
            os.mkdir(name, 0o700, dir_fd=folder)
        except FileExistsError:
            return False
        self._is_partial = True
        return True

    def _place_folder(self, staged: int, folder: int, name: str) -> bool:
        """Rename a new folder into place; if it exists by now, move its files one by one."""
        try:
            os.rename(str(staged), name, src_dir_fd=self._part, dst_dir_fd=folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
        else:
            self._is_partial = True
            return True
        target = self._existing_folder(self._entries[staged].path)
        source = os.open(str(staged), _OPEN_FOLDER | os.O_NOFOLLOW, dir_fd=self._part)
        try:
            for file in os.listdir(source):
                os.replace(file, file, src_dir_fd=source, dst_dir_fd=target)
                self._is_partial = True
        finally:
            os.close(source)
        return False

    def _state(self, folder: str, name: str) -> os.stat_result | None:
        descriptor = self._open_folder(folder)
        if descriptor is None:
            return None
        try:
            return os.stat(name, dir_fd=descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def _read_link(self, entry: TreeEntry) -> str | None:
        folder, name = self._where(entry)
        try:
            return os.readlink(name, dir_fd=folder)
        except OSError:
            return None

    def _where(self, entry: TreeEntry) -> tuple[int, str]:
        folder, _, name = entry.path.rpartition("/")
        return self._existing_folder(folder), name

    def _existing_folder(self, path: str) -> int:
        descriptor = self._open_folder(path)
        if descriptor is None:
            raise Refusal("bad_path", f"the folder {path!r} has disappeared")
        return descriptor

    def _open_folder(self, path: str) -> int | None:
        """Open a folder below the root without following a link; None if it does not exist."""
        known = self._folders.get(path)
        if known is not None:
            return known
        parent, _, name = path.rpartition("/")
        above = self._open_folder(parent)
        if above is None:
            return None
        try:
            descriptor = os.open(name, _OPEN_FOLDER | os.O_NOFOLLOW, dir_fd=above)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise Refusal("in_the_way", f"{path!r} is not a folder there") from None
            raise
        if len(self._folders) >= _OPEN_FOLDERS:
            for other in [other for other in self._folders if other]:
                if self._folders[other] != above:
                    os.close(self._folders.pop(other))
        self._folders[path] = descriptor
        return descriptor

    def _remove_stale(self) -> None:
        """Remove what a killed attempt has left; a running one holds a lock."""
        for name in filter(is_part, os.listdir(self._folders[""])):
            try:
                part = os.open(name, _OPEN_FOLDER | os.O_NOFOLLOW, dir_fd=self._folders[""])
            except OSError:
                continue
            try:
                fcntl.flock(part, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(part)
            else:
                _remove_part(self._folders[""], name, part)


def same_without_case(paths: Iterable[str]) -> tuple[str, str] | None:
    """Find two paths that are one where upper and lower case are the same: a link could stand in
    the place of a folder.
    """
    seen: dict[str, str] = {}
    for path in paths:
        other = seen.setdefault(unicodedata.normalize("NFC", path).casefold(), path)
        if other != path:
            return other, path
    return None


def _make_root(root: str) -> None:
    try:
        os.makedirs(root, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise Refusal(
            "in_the_way", f"{root!r} or one of its parents is not a folder there"
        ) from None


def _remove_part(root: int, name: str, part: int) -> None:
    _empty(part)
    os.rmdir(name, dir_fd=root)
    os.close(part)


def _empty(part: int) -> None:
    """Remove received files, and new folders with their files."""
    for left in os.listdir(part):
        try:
            os.unlink(left, dir_fd=part)
        except IsADirectoryError:
            folder = os.open(left, _OPEN_FOLDER | os.O_NOFOLLOW, dir_fd=part)
            try:
                _empty(folder)
            finally:
                os.close(folder)
            os.rmdir(left, dir_fd=part)


def _check_kind(entry: TreeEntry, state: os.stat_result) -> None:
    is_folder = stat.S_ISDIR(state.st_mode)
    if is_folder != (entry.kind == FOLDER):
        what = "is a folder" if is_folder else "is not a folder"
        raise Refusal("in_the_way", f"{entry.path!r} {what} there")
