"""Data sets in buckets: made in a folder of this machine, published shard by shard, manifest last.

The names of shards hold their checksums, so publishing twice, or twice at once, does no harm; the
manifest alone makes a data set of them, and of two different ones only the first gets its place.
"""

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from tpuctl.datasets import manifest
from tpuctl.datasets.containers import suffix_of
from tpuctl.datasets.models import DataSet, PresizeOptions, PresizeResult
from tpuctl.datasets.places import bucket_of
from tpuctl.datasets.quarantine import readable
from tpuctl.datasets.state import QUARANTINE
from tpuctl.errors import AlreadyExistsError, InvalidInputError, NotFoundError, WriteError
from tpuctl.progress import OnProgress, Progress, silent
from tpuctl.settings import cache_dir
from tpuctl.storage.local import ensure_folder, free_bytes
from tpuctl.storage.port import Entry, Storage, open_storage
from tpuctl.units import format_bytes

Make = Callable[[Path, PresizeOptions], PresizeResult]


def presize_into_bucket(
    address: str, options: PresizeOptions, make: Make, *, on_progress: OnProgress
) -> PresizeResult:
    """Make a data set in a folder of this machine's own, and publish it in a bucket.

    Interrupted, it goes on where it was. Raises AlreadyExistsError where another data set is.
    """
    storage = open_storage(address)
    folder = _staging(storage.address)
    there = _manifest_entry(storage)
    # What an earlier run left in our own folder is not what --overwrite protects.
    plan = make(folder, replace(options, dry_run=True, overwrite=True))
    name = f"{storage.address}/{manifest.MANIFEST}"
    if there is not None:
        published = _load(storage)
        if published.plan_id != plan.plan_id:
            _refuse_another(storage, options)
        elif not options.retry_quarantined and _is_whole(storage, published):
            return replace(_kept(plan, published), dry_run=options.dry_run, manifest=name)
    if options.dry_run:
        return replace(plan, manifest=name)
    result = make(folder, replace(options, overwrite=True))
    publish(folder, storage, there, on_progress=on_progress)
    shutil.rmtree(folder, ignore_errors=True)
    return replace(result, manifest=name)


def publish(
    folder: Path, storage: Storage, there: Entry | None, *, on_progress: OnProgress = silent
) -> None:
    """Put the data set of a folder into a bucket in the place of the manifest `there`, or of none.

    Raises AlreadyExistsError where somebody else was first; what is there is then theirs.
    """
    data_set = manifest.load(folder)
    before = _shards_of(storage) if there else set()
    for number, shard in enumerate(data_set.shards):
        on_progress(Progress("publish", number, len(data_set.shards), "shards", shard.name))
        storage.create(shard.name, folder / shard.name, crc32c=shard.crc32c)
    left_out = _publish_left_out(folder, storage, is_replacing=there is not None)
    path = folder / manifest.MANIFEST
    try:
        if there is None:
            storage.create(manifest.MANIFEST, path)
        else:
            storage.replace(there, path)
    except AlreadyExistsError:
        if left_out:
            storage.delete(left_out)
        raise
    for name in before - {shard.name for shard in data_set.shards}:
        with suppress(NotFoundError):
            storage.delete(storage.stat(name))


@contextmanager
def local_copy(dst: str | Path, *, on_progress: OnProgress) -> Iterator[Path]:
    """Have a data set in a folder: its own, or a copy of one in a bucket, for a while.

    Shards that are missing in the bucket are missing in the copy. Raises NotFoundError and
    InvalidInputError for what is no data set, WriteError where the disk has no room for it.
    """
    address = bucket_of(dst)
    if address is None:
        yield Path(dst)
        return
    storage = open_storage(address)
    data_set = _load(storage)
    ensure_folder(cache_dir())
    _check_space(address, sum(shard.bytes for shard in data_set.shards))
    with tempfile.TemporaryDirectory(dir=cache_dir(), prefix="data-set-") as folder:
        names = [manifest.MANIFEST, QUARANTINE, *(shard.name for shard in data_set.shards)]
        for number, name in enumerate(names):
            on_progress(Progress("fetch", number, len(names), "files", name))
            try:
                storage.fetch(name, Path(folder) / name)
            except NotFoundError:
                (Path(folder) / name).unlink(missing_ok=True)
        yield Path(folder)


def foreign_in_bucket(dst: str | Path, data_set: DataSet) -> tuple[str, ...]:
    """Name the shards beside a data set in a bucket that are not of it; none for a folder."""
    address = bucket_of(dst)
    if address is None:
        return ()
    listed = {shard.name for shard in data_set.shards}
    suffix = suffix_of(data_set.options)
    return tuple(
        readable(entry.name)
        for entry in open_storage(address).list()
        if entry.name.endswith(suffix) and "/" not in entry.name and entry.name not in listed
    )


def _staging(address: str) -> Path:
    return cache_dir() / "presize" / hashlib.sha256(address.encode()).hexdigest()[:16]


def _refuse_another(storage: Storage, options: PresizeOptions) -> None:
    if options.overwrite:
        return
    raise AlreadyExistsError(
        f"{storage.address} holds another data set, or one that was made from other files.",
        hint="Choose another target, or replace this data set with --overwrite.",
    )


def _check_space(address: str, needed: int) -> None:
    if needed > (free := free_bytes(cache_dir())):
        raise WriteError(
            f"{cache_dir()} has {format_bytes(free)} free; the copy of {address} needs "
            f"{format_bytes(needed)}.",
            hint="Free some space, or set TPUCTL_CACHE_DIR to a larger disk.",
        )


def _manifest_entry(storage: Storage) -> Entry | None:
    """The manifest in a bucket, None where there is none; a missing bucket is an error."""
    found = (entry for entry in storage.list(manifest.MANIFEST) if entry.name == manifest.MANIFEST)
    return next(found, None)


def _load(storage: Storage) -> DataSet:
    if _manifest_entry(storage) is None:
        raise NotFoundError(
            f"{storage.address} is no data set: there is no {manifest.MANIFEST} in it.",
            hint=f"Make one: tpuctl data presize SRC {storage.address}",
        )
    return manifest.parse(Path(storage.address), storage.read(manifest.MANIFEST))


def _is_whole(storage: Storage, data_set: DataSet) -> bool:
    """Whether every shard is there with its size and checksum, by lists alone."""
    there = {entry.name: entry for entry in storage.list()}
    return all(
        shard.name in there
        and there[shard.name].size_bytes == shard.bytes
        and storage.checksum(there[shard.name]) == shard.crc32c
        for shard in data_set.shards
    )


def _kept(plan: PresizeResult, published: DataSet) -> PresizeResult:
    """The result of a run that found everything done."""
    return replace(
        plan,
        skipped=sum(shard.records for shard in published.shards),
        bytes_out=sum(shard.bytes for shard in published.shards),
        resumed=True,
    )


def _publish_left_out(folder: Path, storage: Storage, *, is_replacing: bool) -> Entry | None:
    """Put the list of what was left out in its place; gives it if it is new there."""
    path = folder / QUARANTINE
    old = next((entry for entry in storage.list(QUARANTINE)), None) if is_replacing else None
    if not path.exists():
        if old:
            storage.delete(old)
        return None
    if old:
        storage.replace(old, path)
        return None
    return storage.create(QUARANTINE, path)


def _shards_of(storage: Storage) -> set[str]:
    """The shards of the data set that is to be replaced; none of one that cannot be read."""
    try:
        return {shard.name for shard in _load(storage).shards}
    except (InvalidInputError, NotFoundError):
        return set()
