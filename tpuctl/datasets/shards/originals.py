"""The original images, read in the order of a plan: from a folder, or ahead from a bucket."""

import os
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

from tpuctl.clock import RetryPolicy
from tpuctl.codec import open_regular
from tpuctl.datasets.images.memory import MAX_IMAGE_BYTES
from tpuctl.datasets.locations import bucket_of
from tpuctl.datasets.plan import PlannedPicture
from tpuctl.datasets.quarantine import BadImageError
from tpuctl.errors import AlreadyExistsError, NotFoundError, SourceChangedError
from tpuctl.printable import printable
from tpuctl.storage import open_storage
from tpuctl.storage.port import Storage
from tpuctl.units import format_bytes

# What hides the latency of a bucket from one worker; no more is held in memory.
_AHEAD_BYTES = 64 << 20
_CONNECTIONS = 8
# Less than a worker may take for one image before it is killed (pool.SILENCE_S).
_RETRY = RetryPolicy(total_s=120.0)


class Originals:
    """Images, read in the order of a plan; `ahead_bytes` of them before they are needed."""

    def __init__(self, read: Callable[[PlannedPicture], bytes], *, ahead_bytes: int = 0) -> None:
        self._read, self._budget = read, ahead_bytes
        self._threads = ThreadPoolExecutor(_CONNECTIONS, thread_name_prefix="originals")
        self._coming: deque[PlannedPicture] = deque()
        self._running: OrderedDict[str, tuple[int, Future[bytes]]] = OrderedDict()

    def begin(self, entries: Sequence[PlannedPicture]) -> None:
        """Announce which images will be read next, in this order."""
        for _, future in self._running.values():
            future.cancel()
        self._running.clear()
        self._coming = deque(entries if self._budget else ())

    def read(self, entry: PlannedPicture) -> bytes:
        """Read an image that must still be the one of the plan.

        Raises SourceChangedError, BadImageError, and what a bucket raises.
        """
        self._read_ahead()
        if entry.key not in self._running:
            return self._read(entry)
        try:
            return self._running[entry.key][1].result()
        finally:
            del self._running[entry.key]

    def _read_ahead(self) -> None:
        held = sum(size for size, _ in self._running.values())
        # At least one, even if it is larger than the budget.
        while self._coming and (not self._running or held + self._coming[0].bytes <= self._budget):
            entry = self._coming.popleft()
            self._running[entry.key] = entry.bytes, self._threads.submit(self._read, entry)
            held += entry.bytes


def open_originals(
    source: str, *, most_bytes: int = MAX_IMAGE_BYTES // 2, ahead_bytes: int = _AHEAD_BYTES
) -> Originals:
    """Open a folder or `gs://BUCKET/FOLDER`; raises as `open_storage` does.

    Files of more than `most_bytes` are refused: two copies of each are held while it is decoded.
    Of a folder, the operating system reads ahead by itself.
    """
    if address := bucket_of(source):
        storage = open_storage(address, retry=_RETRY)
        read = partial(_read_object, storage, most_bytes)
        return Originals(read, ahead_bytes=ahead_bytes)
    return Originals(partial(_read_file, Path(source), most_bytes))


def _read_file(folder: Path, most_bytes: int, entry: PlannedPicture) -> bytes:
    path = folder / entry.key
    _check_size(entry, most_bytes)
    try:
        with open_regular(path) as file:
            state = os.fstat(file.fileno())
            data = file.read() if entry.is_readable else b""
    except FileNotFoundError as error:
        if entry.is_readable:
            raise _changed(str(path), "it is gone") from error
        raise BadImageError("read_error", "a broken symbolic link") from error
    except OSError as error:
        raise BadImageError("read_error", error.strerror or str(error)) from error
    if not entry.is_readable:
        raise _changed(str(path), "it can be read now")
    if (state.st_size, state.st_mtime_ns) != (entry.bytes, entry.version):
        raise _changed(str(path), "its size or time has changed")
    if len(data) != entry.bytes:
        raise _changed(str(path), f"{len(data)} bytes could be read of {entry.bytes}")
    return data


def _read_object(storage: Storage, most_bytes: int, entry: PlannedPicture) -> bytes:
    """Read the version of an object that the plan was made for, compared with its crc32c."""
    _check_size(entry, most_bytes)
    name = f"{storage.address}/{entry.key}"
    try:
        data = storage.read(entry.key, version=str(entry.version))
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
