"""Files on a local disk: either the old content or the new, whatever happens in between."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile

from tpuctl.errors import WriteError

_REASONS = {
    errno.ENOSPC: "no space is left on that disk",
    errno.EDQUOT: "your disk quota is used up",
    errno.EROFS: "that file system is read-only",
    errno.EACCES: "you may not write there",
    errno.EPERM: "you may not write there",
    errno.ENOENT: "the folder does not exist",
    errno.ENOTDIR: "a part of that path is a file, not a folder",
    errno.EISDIR: "that is a folder",
}


@contextmanager
def translated_write_errors(path: Path) -> Iterator[None]:
    """Turn the operating system's refusals to write below `path` into WriteError."""
    try:
        yield
    except OSError as error:
        reason = _REASONS.get(error.errno or 0, str(error))
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise WriteError(
            f"Could not write {path}: {reason}.",
            hint=f"Free some space (df -h {path.parent}) and run the same command again."
            if full
            else "Choose another place with --out or another target folder.",
        ) from error


def write_atomically(path: Path, content: bytes | str) -> None:
    """Replace `path` by `content` in one step that survives a crash.

    Raises WriteError; the old content is then still there.
    """
    data = content.encode() if isinstance(content, str) else content
    with translated_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            with part.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames in `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def ensure_folder(path: Path) -> None:
    """Create a folder and its parents, and prove that it can be written to; raises WriteError."""
    with translated_write_errors(path / "probe"):
        path.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=path, prefix=".probe."):
            pass
