"""Local folders as `Storage`."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from tpuctl.codec import open_regular
from tpuctl.errors import AlreadyExistsError, InvalidInputError, NotFoundError
from tpuctl.storage.local import open_own, set_lock, sync_folder, translated_write_errors
from tpuctl.storage.port import StoredObject, check_name

_PART = ".part"


class Folder:
    """Files below a folder; writers exclude each other with a lock on the folder."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def address(self) -> str:
        """The folder."""
        return str(self._root)

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        """List files by name prefix; links to folders are not followed."""
        names = sorted(name for name in self._names(prefix) if name.startswith(prefix))
        for name in names:
            with suppress(OSError):
                yield _entry(name, (self._root / name).stat())

    def stat(self, name: str) -> StoredObject:
        """Return a file's size and version; raises NotFoundError."""
        with self._reading(name) as path, open_regular(path) as file:
            return _entry(name, os.fstat(file.fileno()))

    def read(
        self,
        name: str,
        *,
        start: int = 0,
        length: int | None = None,
        version: str | None = None,
    ) -> bytes:
        """Read a file or a range of it, cut at its end; raises NotFoundError."""
        with self._reading(name) as path, open_regular(path) as file:
            if version not in (None, _entry(name, os.fstat(file.fileno())).version):
                raise self._another(name)
            file.seek(start)
            return file.read() if length is None else file.read(length)

    def fetch(self, name: str, path: Path) -> StoredObject:
        """Copy a file; raises NotFoundError, WriteError."""
        with self._reading(name) as source:
            file = open_regular(source)
        with file, translated_write_errors(path), open_own(path, "wb") as target:
            shutil.copyfileobj(file, target)
            return _entry(name, os.fstat(file.fileno()))

    def write(
        self,
        name: str,
        content: bytes | Path,
        *,
        over: StoredObject | None = None,
        crc32c: str | None = None,
        move: bool = False,
    ) -> StoredObject:
        """Create a file, or replace this version; raises AlreadyExistsError for another one."""
        final = self._root / check_name(name)
        with self._part_of(final, content, crc32c, move) as part, _locked_folder(final.parent):
            is_expected = self.stat(name).version == over.version if over else not final.exists()
            if not is_expected:
                return self._same(name, part)
            os.replace(part, final)
            sync_folder(final.parent)
            return _entry(name, final.stat())

    def checksum(self, entry: StoredObject) -> str:
        """Compute the crc32c of a file, as hexadecimal."""
        from tpuctl.storage._checksum import crc32c_of

        with self._reading(entry.name) as path:
            return crc32c_of(path)

    def delete(self, entry: StoredObject) -> None:
        """Delete this version; raises AlreadyExistsError if another is there."""
        final = self._root / check_name(entry.name)
        with suppress(NotFoundError), translated_write_errors(final), _locked_folder(final.parent):
            if self.stat(entry.name).version != entry.version:
                raise self._another(entry.name)
            final.unlink(missing_ok=True)

    def location(self) -> None:
        """Return None: the folder is on this machine."""

    def _names(self, prefix: str) -> Iterator[str]:
        top = self._root / prefix.rpartition("/")[0]
        for folder, _, files in os.walk(top):
            below = os.path.relpath(folder, self._root)
            for file in files:
                if not (file.startswith(".") and file.endswith(_PART)):
                    yield file if below == "." else f"{below}/{file}"

    @contextmanager
    def _reading(self, name: str) -> Iterator[Path]:
        """Yield the path of a file; turns read errors into TpuctlErrors."""
        if name.startswith("/") or ".." in name.split("/"):
            raise InvalidInputError(f"{name!r} is not a valid object name in {self._root}.")
        try:
            yield self._root / name
        except (FileNotFoundError, NotADirectoryError):
            raise NotFoundError(
                f"{self._root} has no {name}.", hint=f"List what it has: ls {self._root}"
            ) from None
        except OSError as error:
            raise InvalidInputError(
                f"Could not read {self._root / name}: {error.strerror or error}."
            ) from error

    @contextmanager
    def _part_of(
        self, final: Path, content: bytes | Path, crc32c: str | None, move: bool
    ) -> Iterator[Path]:
        """Write the bytes next to the final path, under a temporary name."""
        part = final.with_name(f".{final.name[:100]}.{os.getpid()}.{os.urandom(4).hex()}{_PART}")
        with translated_write_errors(final):
            final.parent.mkdir(parents=True, exist_ok=True)
            device = final.parent.stat().st_dev
            if move and isinstance(content, Path) and content.stat().st_dev == device:
                # Nothing is copied, so there is no copy to compare with the checksum.
                with content.open("rb") as file:
                    os.fsync(file.fileno())
                yield content
                return
            try:
                with open_own(part, "xb") as file:
                    _fill(file, content)
                if crc32c:
                    from tpuctl.storage._checksum import check_checksum

                    check_checksum(part, crc32c)
                yield part
            finally:
                part.unlink(missing_ok=True)

    def _same(self, name: str, part: Path) -> StoredObject:
        """Return the existing file if it has the content that was to be written."""
        with open_regular(self._root / name) as there, part.open("rb") as ours:
            while (block := ours.read(1 << 20)) == there.read(1 << 20):
                if not block:
                    return _entry(name, os.fstat(there.fileno()))
        raise self._another(name)

    def _another(self, name: str) -> AlreadyExistsError:
        return AlreadyExistsError(
            f"{self._root / name} was modified concurrently.",
            hint="Check its content, then run the same command again.",
        )


def _fill(file: BinaryIO, content: bytes | Path) -> None:
    if isinstance(content, bytes):
        file.write(content)
    else:
        with open_regular(content) as source:
            shutil.copyfileobj(source, file)
    file.flush()
    os.fsync(file.fileno())


@contextmanager
def _locked_folder(folder: Path) -> Iterator[None]:
    """Lock a folder against other writers; the lock ends with the process that holds it."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise NotFoundError(f"The folder {folder} does not exist.") from None
    try:
        set_lock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _entry(name: str, state: os.stat_result) -> StoredObject:
    return StoredObject(name, state.st_size, f"{state.st_ino}-{state.st_mtime_ns}-{state.st_size}")
