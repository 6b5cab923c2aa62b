"""Local files, written so that a crash leaves either the old content or the new."""

import errno
import fcntl
import os
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, cast

from tpuctl.errors import InvalidInputError, TryAgainError, WriteError

_REASONS = {
    errno.ENOSPC: "no space left on the disk",
    errno.EDQUOT: "disk quota exceeded",
    errno.EIO: "the disk reports an input/output error",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.ENOENT: "the folder does not exist",
    errno.ENOTDIR: "part of the path is a file, not a folder",
    errno.EISDIR: "it is a folder",
    errno.EEXIST: "a file with that name exists",
    errno.EFBIG: "the file would exceed the size limit (ulimit -f)",
}
# Network file systems without locks: there, nothing stops two runs at the same time.
_NO_LOCKS_HERE = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)
_EXISTING = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
LOCK_FLAGS = _EXISTING | os.O_CREAT
_LOCK_POLL_S = 0.05


@contextmanager
def translated_write_errors(path: Path) -> Iterator[None]:
    """Turn OSErrors from writing below `path` into WriteError."""
    try:
        yield
    except OSError as error:
        reason = _REASONS.get(error.errno or 0, str(error))
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise WriteError(
            f"Could not write {path}: {reason}.",
            hint=f"Free some space (df -h {path.parent}) and run the same command again."
            if full
            else _another_place(path),
        ) from error


def _another_place(path: Path) -> str:
    from tpuctl.settings import load_settings  # only after an error

    with suppress(InvalidInputError):
        chosen = load_settings(quiet=True)
        for name in ("state_dir", "cache_dir"):
            if path.is_relative_to(chosen[name] or "/-"):
                return f"Choose another folder: export TPUCTL_{name.upper()}=/FOLDER"
    return "Choose another path."


def open_own(path: Path, mode: str, *, private: bool = False) -> BinaryIO:
    """Open a binary file for writing, but not a link or pipe, which may have been planted.

    A `private` file is created with mode 0600 whatever the umask, any other with what that leaves.
    """
    bits = 0o600 if private else 0o666

    def opener(name: str, flags: int) -> int:
        # A pipe without a reader would block, and one with a reader would pass it on.
        descriptor = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, bits)
        try:
            if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
                raise OSError(errno.EINVAL, "it is a pipe", str(path))
            if private:
                os.fchmod(descriptor, bits)
        except OSError:
            os.close(descriptor)
            raise
        return descriptor

    return cast(BinaryIO, open(path, mode, opener=opener))


def write_atomically(
    path: Path,
    content: bytes | str,
    *,
    private: bool = False,
    like: os.stat_result | None = None,
) -> None:
    """Replace `path` with `content` atomically; it survives a crash.

    A `private` file and the folders created for it are for their owner alone; `like` sets the
    permissions and, where that is allowed, the owner. Raises WriteError and then leaves the old
    content.
    """
    data = content.encode() if isinstance(content, str) else content
    with translated_write_errors(path):
        _make_folder(path.parent, private)
        name = f".{path.name[:100]}.{os.getpid()}.{os.urandom(4).hex()}.part"
        part = path.with_name(name)
        try:
            with open_own(part, "xb", private=private) as file:
                # A part without a lock is that of a killed writer: `remove_stale_parts`.
                with suppress(OSError):
                    fcntl.flock(file, fcntl.LOCK_EX)
                # It may have been removed as one before it was locked.
                if not os.fstat(file.fileno()).st_nlink:
                    return write_atomically(path, content, private=private, like=like)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
                if like:
                    with suppress(PermissionError):
                        os.fchown(file.fileno(), like.st_uid, like.st_gid)
                    os.fchmod(file.fileno(), stat.S_IMODE(like.st_mode))
                os.replace(part, path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def remove_stale_parts(folder: Path, of: str = "*") -> None:
    """Remove what killed writers (`write_atomically`) have left, of one file or of all."""
    for part in folder.glob(f".{of}.part"):
        with suppress(OSError), open(os.open(part, _EXISTING), "rb") as file:
            # On a disk without locks, its writer may be alive.
            if set_lock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB):
                part.unlink()


def sync_folder(folder: Path) -> None:
    """Flush a folder so that renames in it survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def ensure_folder(path: Path, *, private: bool = False) -> None:
    """Create a folder and its parents and check that it is writable; raises WriteError.

    Only the owner can enter a `private` one, and the parents that are created for it.
    """
    with translated_write_errors(path):
        _make_folder(path, private)
        try:
            # A file without a name leaves nothing behind, even after a SIGKILL right here.
            os.close(os.open(path, os.O_TMPFILE | os.O_WRONLY))
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
                raise


def _make_folder(path: Path, private: bool) -> None:
    if not private:
        path.mkdir(parents=True, exist_ok=True)
        return
    for folder in reversed([path, *path.parents]):
        try:
            folder.mkdir(mode=0o700)
        except OSError:
            if not folder.is_dir():
                raise
        else:
            # A umask can take rights from its owner, too.
            folder.chmod(0o700)
    if stat.S_IMODE(path.stat().st_mode) != 0o700:
        path.chmod(0o700)


@contextmanager
def locked(path: Path, *, wait_s: float, busy: str) -> Iterator[int]:
    """Hold the lock file at `path`; yields its descriptor, which children may inherit.

    The lock ends with the last process that holds it, so there are no stale locks. Raises
    TryAgainError with the message `busy` if another process keeps it.
    """
    is_removed = True
    while is_removed:
        with translated_write_errors(path):
            descriptor = os.open(path, LOCK_FLAGS, 0o600)
        try:
            _lock(descriptor, wait_s, busy)
            # The process that held the lock before may have removed the file.
            is_removed = os.fstat(descriptor).st_nlink == 0
            if not is_removed:
                yield descriptor
        finally:
            os.close(descriptor)


def _lock(descriptor: int, wait_s: float, busy: str) -> None:
    deadline = time.monotonic() + wait_s
    while True:
        try:
            set_lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise TryAgainError(busy, hint="Wait for it to finish, or stop it.") from None
            time.sleep(_LOCK_POLL_S)
        else:
            return


def set_lock(descriptor: int, how: int) -> bool:
    """Lock an open file as `fcntl.flock` does; False where the file system has no locks."""
    try:
        fcntl.flock(descriptor, how)
    except OSError as error:
        if error.errno not in _NO_LOCKS_HERE:
            raise
        return False
    return True


def is_locked(path: Path) -> bool:
    """Whether a living process holds the lock file at `path`."""
    if not path.exists():
        return False
    try:
        with locked(path, wait_s=0, busy=""):
            return False
    except TryAgainError:
        return True


def append_line(path: Path, line: str, *, private: bool = False) -> None:
    """Append one line to a file and flush it to disk; raises WriteError."""
    with translated_write_errors(path), open_own(path, "ab", private=private) as file:
        file.write(line.encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def publish(part: Path, final: Path) -> None:
    """Rename a finished file to its final name; survives a crash; raises WriteError."""
    with translated_write_errors(final):
        with part.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(part, final)
        sync_folder(final.parent)


def disk_space(path: Path) -> tuple[int, int]:
    """Return the free and the total bytes where `path` is or will be; raises WriteError."""
    with translated_write_errors(path):
        existing = next(folder for folder in (path, *path.absolute().parents) if folder.is_dir())
        usage = shutil.disk_usage(existing)
    return usage.free, usage.total


def free_bytes(path: Path) -> int:
    """Return the free bytes where `path` is or will be; raises WriteError."""
    return disk_space(path)[0]
