"""Local copies of data sets in buckets: temporary ones, and ones that all processes share."""

import hashlib
import math
import os
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tpuctl.datasets import manifest
from tpuctl.datasets.fetch import fetch_shards, is_there, missing_bytes
from tpuctl.datasets.manifest import DataSet
from tpuctl.datasets.models import CopyResult
from tpuctl.datasets.places import bucket_of, local_target
from tpuctl.datasets.publish import find_entry, find_published
from tpuctl.datasets.quarantine import QUARANTINE
from tpuctl.errors import AlreadyExistsError, NotFoundError, TryAgainError, WriteError
from tpuctl.progress import OnProgress, Progress, StderrProgress, silent
from tpuctl.settings import cache_dir
from tpuctl.storage import open_storage
from tpuctl.storage.local import (
    ensure_folder,
    free_bytes,
    locked,
    translated_write_errors,
    write_atomically,
)
from tpuctl.storage.port import Storage
from tpuctl.units import format_bytes


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
    ensure_folder(cache_dir())
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
            hint=f"Free some space (earlier copies are in {cache_dir() / 'copies'}), or set "
            "TPUCTL_CACHE_DIR to a larger disk.",
        )


def load_from(storage: Storage) -> DataSet:
    """Read the manifest of a data set in a bucket; raises NotFoundError, InvalidInputError."""
    published = find_published(storage, leniently=False)
    if published is None or published.data_set is None:
        raise NotFoundError(
            f"{storage.address} is not a data set: there is no {manifest.MANIFEST} in it.",
            hint=f"Make one: tpuctl data presize SRC {storage.address}",
        )
    return published.data_set


@dataclass(frozen=True)
class _Wanted:
    """A data set in a bucket, and the folder that is to hold it."""

    storage: Storage
    data_set: DataSet
    text: bytes
    folder: Path
    lock: Path

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
    overwrite: bool = False,
    on_progress: OnProgress = silent,
) -> CopyResult:
    """Copy a data set from a bucket to `dst`, or to a folder that all processes share.

    Raises NotFoundError, InvalidInputError, AlreadyExistsError, WriteError, and what storage
    raises; what has arrived stays for the next attempt.
    """
    started_s = time.monotonic()
    wanted = _wanted(address, dst)
    fetched = 0
    if not wanted.is_complete:
        with _alone(wanted.lock, on_progress):
            if not wanted.is_complete:
                ensure_folder(wanted.folder)
                _replace_other(wanted, overwrite=overwrite or dst is None)
                needed = missing_bytes(wanted.data_set, wanted.folder)
                _check_space(wanted.folder.parent, address, needed)
                fetched = _fill(wanted, on_progress)
    return CopyResult(
        address=address,
        path=str(wanted.folder),
        plan_id=wanted.data_set.plan_id,
        shards=len(wanted.data_set.shards),
        records=wanted.data_set.records,
        bytes=wanted.data_set.bytes,
        fetched_bytes=fetched,
        format=wanted.data_set.format,
        seconds=time.monotonic() - started_s,
    )


@contextmanager
def _alone(lock: Path, on_progress: OnProgress) -> Iterator[None]:
    """Hold the lock of a copy, as soon as no other process holds it."""
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(lock, wait_s=0, busy=""))
        except TryAgainError:
            on_progress(Progress("wait", 0, None, "", "another process is fetching it"))
            stack.enter_context(locked(lock, wait_s=math.inf, busy=""))
        yield


def local_data_set(dst: str | Path) -> Path:
    """The folder of a data set: its own, or that of a verified copy of one in a bucket.

    Progress of a long copy is shown on stderr; call `copy_data_set` first to avoid that.
    """
    address = bucket_of(dst)
    if address is None:
        return Path(dst)
    return Path(copy_data_set(address, on_progress=StderrProgress(f"Copying {address}")).path)


def _wanted(address: str, dst: str | Path | None) -> _Wanted:
    storage = open_storage(address)
    data_set = load_from(storage)
    text = manifest.to_text(data_set.document).encode()
    root = cache_dir() / "copies"
    ensure_folder(root)
    if dst is None:
        digest = hashlib.sha256(address.encode() + b"\n" + text).hexdigest()[:16]
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", address.rpartition("/")[2]).lstrip(".")
        folder, lock = root / f"{name}-{digest}", root / f"{name}-{digest}.lock"
    else:
        folder = local_target(dst)
        digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
        lock = root / f".folder-{digest}.lock"
    return _Wanted(storage, data_set, text, folder, lock)


def _fill(wanted: _Wanted, on_progress: OnProgress) -> int:
    folder = wanted.folder
    fetched = fetch_shards(wanted.storage, wanted.data_set, folder, on_progress=on_progress)
    if find_entry(wanted.storage, QUARANTINE):
        write_atomically(folder / QUARANTINE, wanted.storage.read(QUARANTINE))
    else:
        (folder / QUARANTINE).unlink(missing_ok=True)
    write_atomically(folder / manifest.MANIFEST, wanted.text)
    return fetched


def _replace_other(wanted: _Wanted, *, overwrite: bool) -> None:
    """Delete another data set from the folder, its manifest first; raises AlreadyExistsError."""
    there = find_published(open_storage(wanted.folder), leniently=True)
    path = wanted.folder / manifest.MANIFEST
    if there is None or path.read_bytes() == wanted.text:
        return
    if not overwrite:
        raise AlreadyExistsError(
            f"{wanted.folder} holds another data set.",
            hint="Choose another folder, or replace this data set with --overwrite.",
        )
    keep = {shard.name for shard in wanted.data_set.shards}
    with translated_write_errors(path):
        path.unlink()
        for shard in there.data_set.shards if there.data_set else ():
            if shard.name not in keep and manifest.is_ours(shard.name):
                (wanted.folder / shard.name).unlink(missing_ok=True)
