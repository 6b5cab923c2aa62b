"""Local copies of data sets in buckets: temporary ones, and ones that all processes share."""

import fcntl
import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tpuctl.datasets import manifest
from tpuctl.datasets.fetch import fetch_shards, is_there, missing_bytes
from tpuctl.datasets.locations import bucket_of, local_target
from tpuctl.datasets.manifest import DataSet
from tpuctl.datasets.models import CopyResult
from tpuctl.datasets.publish import find_entry, find_published
from tpuctl.datasets.quarantine import QUARANTINE
from tpuctl.errors import AlreadyExistsError, NotFoundError, WriteError
from tpuctl.progress import OnProgress, Progress, StderrProgress, silent
from tpuctl.settings import cache_dir
from tpuctl.storage import open_storage
from tpuctl.storage.local import (
    LOCK_FLAGS,
    ensure_folder,
    free_bytes,
    remove_stale_parts,
    set_lock,
    translated_write_errors,
    write_atomically,
)
from tpuctl.storage.port import Storage
from tpuctl.units import format_bytes

_POLL_S = 0.1
_LOCK = ".lock"
# Locks of copies that this process reads: held until it ends, so that no other one evicts them.
_HELD: dict[Path, int] = {}


@contextmanager
def local_copy(dst: str | Path, *, on_progress: OnProgress) -> Iterator[Path]:
    """Yield the folder of a data set, or of a temporary copy of one in a bucket.

    Shards that are missing in the bucket are missing in the copy. Raises NotFoundError and
    InvalidInputError if there is no data set, WriteError if the disk has no room for it.
    """
    address = bucket_of(dst)
    if address is None:
        yield Path(dst)
        return
    storage = open_storage(address)
    data_set = load_from(storage)
    ensure_folder(cache_dir(), private=True)
    _check_space(cache_dir(), address, data_set.bytes)
    with tempfile.TemporaryDirectory(dir=cache_dir(), prefix="data-set-") as folder:
        names = [manifest.MANIFEST, QUARANTINE, *(shard.name for shard in data_set.shards)]
        for number, name in enumerate(names):
            on_progress(Progress("fetch", number, len(names), "files", name))
            try:
                storage.fetch(name, Path(folder) / name)
            except NotFoundError:
                (Path(folder) / name).unlink(missing_ok=True)
        yield Path(folder)


def _check_space(folder: Path, address: str, needed: int) -> None:
    if needed > (free := free_bytes(folder)):
        raise WriteError(
            f"{folder} has {format_bytes(free)} free; the copy of {address} needs "
            f"{format_bytes(needed)}.",
            hint="Free some space, or set TPUCTL_CACHE_DIR to a larger disk.",
        )


def load_from(storage: Storage) -> DataSet:
    """Read the manifest of a data set in a bucket; raises NotFoundError, InvalidInputError."""
    published = find_published(storage, leniently=False)
    if published is None or published.data_set is None:
        raise NotFoundError(
            f"{storage.address} is not a data set: it has no {manifest.MANIFEST}.",
            hint=f"Make one: tpuctl data presize SRC {storage.address}",
        )
    return published.data_set


@dataclass(frozen=True)
class _CopyRequest:
    """A data set in a bucket and its local folder; `is_shared` if other processes use it too."""

    storage: Storage
    data_set: DataSet
    text: bytes
    folder: Path
    lock: Path
    is_shared: bool

    @property
    def is_complete(self) -> bool:
        """Whether the folder holds it, and nothing else under the name of the manifest."""
        with suppress(OSError):
            same = (self.folder / manifest.MANIFEST).read_bytes() == self.text
            return same and all(is_there(self.folder, shard) for shard in self.data_set.shards)
        return False


def copy_data_set(
    address: str,
    dst: str | Path | None = None,
    *,
    limit_bytes: int | None = None,
    overwrite: bool = False,
    on_progress: OnProgress = silent,
) -> CopyResult:
    """Copy a data set from a bucket to `dst`, or to a folder that all processes share.

    Shared copies make room for each other, the least recently used first, for the free space and
    for `limit_bytes` for all together. Raises NotFoundError, InvalidInputError, AlreadyExistsError,
    WriteError, and what storage raises; what has arrived stays for the next attempt.
    """
    started_s = time.monotonic()
    request = _copy_request(address, dst)
    fetched, evicted = 0, tuple[str, ...]()
    while not _hold(request):
        with _locked(request, on_progress) as is_locked:
            if is_locked and not request.is_complete:
                evicted = _make_room(request, limit_bytes, overwrite=overwrite)
                fetched = _fill(request, on_progress)
    # The time of its last use decides which copy is evicted first.
    os.utime(request.lock)
    return CopyResult(
        address=address,
        path=str(request.folder),
        plan_id=request.data_set.plan_id,
        shards=len(request.data_set.shards),
        records=request.data_set.records,
        bytes=request.data_set.bytes,
        fetched_bytes=fetched,
        evicted=evicted,
        format=request.data_set.format,
        seconds=time.monotonic() - started_s,
    )


def local_data_set(dst: str | Path) -> Path:
    """The folder of a data set: its own, or that of a verified copy of one in a bucket.

    Progress of a long copy is shown on stderr; call `copy_data_set` first to avoid that.
    """
    address = bucket_of(dst)
    if address is None:
        return Path(dst)
    return Path(copy_data_set(address, on_progress=StderrProgress(f"Copying {address}")).path)


def _copy_request(address: str, dst: str | Path | None) -> _CopyRequest:
    storage = open_storage(address)
    data_set = load_from(storage)
    text = manifest.to_text(data_set.document).encode()
    root = cache_dir() / "copies"
    ensure_folder(root, private=True)
    if dst is None:
        digest = hashlib.sha256(address.encode() + b"\n" + text).hexdigest()[:16]
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", address.rpartition("/")[2]).lstrip(".")
        folder, lock = root / f"{name}-{digest}", root / f"{name}-{digest}{_LOCK}"
    else:
        folder = local_target(dst)
        digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
        lock = root / f".folder-{digest}{_LOCK}"
    return _CopyRequest(storage, data_set, text, folder, lock, dst is None)


def _hold(request: _CopyRequest) -> bool:
    """Hold a complete copy, together with other readers; False if it is not complete."""
    descriptor = _HELD.get(request.lock) or _open(request.lock)
    set_lock(descriptor, fcntl.LOCK_SH)
    if request.is_complete:
        # Another thread may have it already.
        if not request.is_shared or _HELD.setdefault(request.lock, descriptor) != descriptor:
            os.close(descriptor)
        return True
    _HELD.pop(request.lock, None)
    os.close(descriptor)
    return False


@contextmanager
def _locked(request: _CopyRequest, on_progress: OnProgress) -> Iterator[bool]:
    """Hold the copy exclusively, as soon as no other process holds it.

    Yields False if another process has completed it meanwhile: a reader may hold it for hours.
    """
    descriptor = _open(request.lock)
    try:
        while not (is_locked := _try_lock(descriptor)) and not request.is_complete:
            note = "another process is fetching it"
            on_progress(Progress("wait", 0, None, "", note))
            time.sleep(_POLL_S)
        yield is_locked
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int, *, without_locks: bool = True) -> bool:
    """Lock a file unless another process holds it; the caller decides for a disk without locks."""
    try:
        return set_lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB) or without_locks
    except BlockingIOError:
        return False


def _open(lock: Path) -> int:
    with translated_write_errors(lock):
        return os.open(lock, LOCK_FLAGS, 0o600)


def _fill(request: _CopyRequest, on_progress: OnProgress) -> int:
    folder = request.folder
    for name in (QUARANTINE, manifest.MANIFEST):
        remove_stale_parts(folder, of=f"{name}.*")
    fetched = fetch_shards(request.storage, request.data_set, folder, on_progress=on_progress)
    if find_entry(request.storage, QUARANTINE):
        write_atomically(folder / QUARANTINE, request.storage.read(QUARANTINE))
    else:
        (folder / QUARANTINE).unlink(missing_ok=True)
    write_atomically(folder / manifest.MANIFEST, request.text)
    return fetched


def _make_room(
    request: _CopyRequest, limit_bytes: int | None, *, overwrite: bool
) -> tuple[str, ...]:
    """Delete what is in the way; returns the copies that were deleted. Raises WriteError."""
    ensure_folder(request.folder)
    if not request.is_shared:
        _replace_other(request, overwrite=overwrite)
    needed = missing_bytes(request.data_set, request.folder)
    whole = request.data_set.bytes
    evicted = []
    if request.is_shared:
        for copy in _other_copies(request):
            over = limit_bytes is not None and _used(request) + whole > limit_bytes
            if (over or needed > free_bytes(request.folder)) and _evict(copy):
                evicted.append(copy.name)
        if limit_bytes is not None and _used(request) + whole > limit_bytes:
            raise WriteError(
                f"{request.storage.address} has {format_bytes(whole)}; with the copies that are in "
                f"use that is more than --limit {format_bytes(limit_bytes)}.",
                hint="Raise the limit, or end the processes that read the other copies.",
            )
    _check_space(request.folder.parent, request.storage.address, needed)
    return tuple(evicted)


def _replace_other(request: _CopyRequest, *, overwrite: bool) -> None:
    """Delete another data set from the folder, its manifest first; raises AlreadyExistsError."""
    there = find_published(open_storage(request.folder), leniently=True)
    path = request.folder / manifest.MANIFEST
    if there is None or path.read_bytes() == request.text:
        return
    if not overwrite:
        raise AlreadyExistsError(
            f"{request.folder} holds another data set.",
            hint="Choose another folder, or replace this data set with --overwrite.",
        )
    keep = {shard.name for shard in request.data_set.shards}
    with translated_write_errors(path):
        path.unlink()
        for shard in there.data_set.shards if there.data_set else ():
            if shard.name not in keep and manifest.is_ours(shard.name):
                (request.folder / shard.name).unlink(missing_ok=True)


def _other_copies(request: _CopyRequest) -> list[Path]:
    """List the other shared copies, the least recently used first."""

    def last_used(copy: Path) -> float:
        with suppress(OSError):
            return copy.with_name(copy.name + _LOCK).stat().st_mtime
        return 0.0

    folder = request.folder
    copies = (path for path in folder.parent.iterdir() if path.is_dir() and path != folder)
    return sorted(copies, key=last_used)


def _used(request: _CopyRequest) -> int:
    """How large all other shared copies are."""
    used = 0
    for copy in _other_copies(request):
        # Another process may delete it, or give a shard its name, at this moment.
        for folder, _, names in os.walk(copy):
            for name in names:
                with suppress(OSError):
                    used += os.stat(os.path.join(folder, name)).st_size
    return used


def _evict(copy: Path) -> bool:
    """Delete a copy; False if it is in use, or may be."""
    descriptor = _open(copy.with_name(copy.name + _LOCK))
    try:
        if not _try_lock(descriptor, without_locks=False):
            return False
        (copy / manifest.MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(copy, ignore_errors=True)
        return not copy.exists()
    finally:
        os.close(descriptor)
