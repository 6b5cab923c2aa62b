"""The original images, read in the order of a plan: from a folder, or ahead from a bucket."""

import os
from collections import OrderedDict, deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from tpuctl.datasets.images.memory import MAX_IMAGE_BYTES
from tpuctl.datasets.places import bucket_of
from tpuctl.datasets.plan import PlannedPicture
from tpuctl.datasets.quarantine import BadImageError
from tpuctl.errors import AlreadyExistsError, NotFoundError, SourceChangedError
from tpuctl.printable import printable
from tpuctl.storage import open_storage
from tpuctl.storage.local import open_regular
from tpuctl.storage.port import RetryPolicy, Storage
from tpuctl.units import format_bytes

# What hides the latency of a bucket from one worker; no more is held in memory.
_AHEAD_BYTES = 64 << 20
_CONNECTIONS = 8
# Less than a worker may take for one image before it is killed (pool.SILENCE_S).
_RETRY = RetryPolicy(total_s=120.0)


class Originals(Protocol):
    """Where images come from."""

    def begin(self, entries: Sequence[PlannedPicture]) -> None:
        """Announce which images will be read next, in this order."""

    def read(self, entry: PlannedPicture) -> bytes:
        """Read an image that must still be the one of the plan.

        Raises SourceChangedError, BadImageError, and what a bucket raises.
        """


def open_originals(source: str, *, most_bytes: int = MAX_IMAGE_BYTES // 2) -> Originals:
    """Open a folder or `gs://BUCKET/FOLDER`; raises as `open_storage` does.

    Files of more than `most_bytes` are refused: two copies of each are held while it is decoded.
    """
    if address := bucket_of(source):
        return BucketOriginals(open_storage(address, retry=_RETRY), most_bytes=most_bytes)
    return FolderOriginals(Path(source), most_bytes=most_bytes)


class FolderOriginals:
    """Images in a local folder; the operating system reads ahead by itself."""

    def __init__(self, folder: Path, *, most_bytes: int = MAX_IMAGE_BYTES // 2) -> None:
        self._folder, self._most = folder, most_bytes

    def begin(self, entries: Sequence[PlannedPicture]) -> None:
        """Do nothing."""

    def read(self, entry: PlannedPicture) -> bytes:
        """Read a file that must still be the one of the plan."""
        path = self._folder / entry.key
        _check_size(entry, self._most)
        try:
            with open_regular(path) as file:
                state = os.fstat(file.fileno())
                data = file.read() if entry.is_readable else b""
        except FileNotFoundError as error:
            if entry.is_readable:
                raise _changed(str(path), "it is gone") from error
            raise BadImageError("read_error", "a link that leads nowhere") from error
        except OSError as error:
            raise BadImageError("read_error", error.strerror or str(error)) from error
        if not entry.is_readable:
            raise _changed(str(path), "it can be read now")
        if (state.st_size, state.st_mtime_ns) != (entry.bytes, entry.version):
            raise _changed(str(path), "its size or time has changed")
        if len(data) != entry.bytes:
            raise _changed(str(path), f"{len(data)} bytes could be read of {entry.bytes}")
        return data


class BucketOriginals:
    """Images in a bucket, fetched before they are needed, up to a budget of bytes."""

    def __init__(
        self,
        storage: Storage,
        *,
        ahead_bytes: int = _AHEAD_BYTES,
        most_bytes: int = MAX_IMAGE_BYTES // 2,
    ) -> None:
        self._storage, self._budget, self._most = storage, ahead_bytes, most_bytes
        self._threads = ThreadPoolExecutor(_CONNECTIONS, thread_name_prefix="originals")
        self._coming: deque[PlannedPicture] = deque()
        self._running: OrderedDict[str, tuple[int, Future[bytes]]] = OrderedDict()

    def begin(self, entries: Sequence[PlannedPicture]) -> None:
        """Announce what will be read."""
        for _, future in self._running.values():
            future.cancel()
        self._running.clear()
        self._coming = deque(entries)

    def read(self, entry: PlannedPicture) -> bytes:
        """Read the version of an object that the plan was made for, compared with its crc32c."""
        self._read_ahead()
        if entry.key not in self._running:
            return self._fetch(entry)
        try:
            return self._running[entry.key][1].result()
        finally:
            del self._running[entry.key]

    def _read_ahead(self) -> None:
        held = sum(size for size, _ in self._running.values())
        # At least one, even if it is larger than the budget.
        while self._coming and (not self._running or held + self._coming[0].bytes <= self._budget):
            entry = self._coming.popleft()
            self._running[entry.key] = entry.bytes, self._threads.submit(self._fetch, entry)
            held += entry.bytes

    def _fetch(self, entry: PlannedPicture) -> bytes:
        _check_size(entry, self._most)
        name = f"{self._storage.address}/{entry.key}"
        try:
            data = self._storage.read(entry.key, version=str(entry.version))
        except NotFoundError as error:
            raise _changed(name, "it is gone") from error
        except AlreadyExistsError as error:
            raise _changed(name, "there is another version of it now") from error
        if len(data) != entry.bytes:
            raise _changed(name, f"it has {len(data)} bytes, not {entry.bytes}")
        return data


def _check_size(entry: PlannedPicture, most_bytes: int) -> None:
    if entry.bytes > most_bytes:
        raise BadImageError(
            "bomb",
            f"a file of {format_bytes(entry.bytes)}, the limit is {format_bytes(most_bytes)}, half "
            "of --max-image-memory",
        )


def _changed(name: str, what: str) -> SourceChangedError:
    return SourceChangedError(
        f"{printable(name)} changed while its folder was being presized: {what}.",
        hint="Wait until the folder no longer changes, then run the same command again; finished "
        "shards are kept.",
    )
