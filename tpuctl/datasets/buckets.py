"""Data sets in buckets, as `verify` and `show` look at them."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tpuctl.datasets import manifest
from tpuctl.datasets.commits import find_entry
from tpuctl.datasets.containers import suffix_of
from tpuctl.datasets.models import DataSet
from tpuctl.datasets.places import bucket_of
from tpuctl.datasets.quarantine import readable
from tpuctl.datasets.state import QUARANTINE
from tpuctl.errors import NotFoundError, WriteError
from tpuctl.progress import OnProgress, Progress
from tpuctl.settings import cache_dir
from tpuctl.storage.local import ensure_folder, free_bytes
from tpuctl.storage.port import Storage, open_storage
from tpuctl.units import format_bytes


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
    data_set = load_from(storage)
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


def _check_space(address: str, needed: int) -> None:
    if needed > (free := free_bytes(cache_dir())):
        raise WriteError(
            f"{cache_dir()} has {format_bytes(free)} free; the copy of {address} needs "
            f"{format_bytes(needed)}.",
            hint="Free some space, or set TPUCTL_CACHE_DIR to a larger disk.",
        )


def load_from(storage: Storage) -> DataSet:
    """Read the manifest of a data set in a bucket; raises NotFoundError, InvalidInputError."""
    if find_entry(storage, manifest.MANIFEST) is None:
        raise NotFoundError(
            f"{storage.address} is no data set: there is no {manifest.MANIFEST} in it.",
            hint=f"Make one: tpuctl data presize SRC {storage.address}",
        )
    return manifest.parse(Path(storage.address), storage.read(manifest.MANIFEST))
