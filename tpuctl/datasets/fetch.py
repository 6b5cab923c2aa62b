"""Copies the shards of a data set from a bucket to a folder: in ranges, in parallel, resumable.

A shard arrives in `.NAME.part`, one piece at a time; `.NAME.pieces` has one byte per piece that has
arrived. If a power cut damages either, the checksum of the whole shard shows it.
"""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tpuctl.datasets.manifest import DataSet, Shard
from tpuctl.errors import InvalidInputError, NotFoundError
from tpuctl.progress import OnProgress, Progress
from tpuctl.storage.local import publish, translated_write_errors
from tpuctl.storage.port import Storage, StoredObject
from tpuctl.units import MIB

# Large enough that the latency of a request does not count, small enough that 16 at once fit in
# memory and that little is fetched again after an interruption.
PIECE_BYTES = 8 << 20
_CONNECTIONS = 16
_THERE = b"\1"
_IN_PLACE = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


@dataclass(frozen=True)
class _Download:
    """A shard that is being fetched."""

    shard: Shard
    folder: Path
    version: str

    @property
    def final(self) -> Path:
        return self.folder / self.shard.name

    @property
    def part(self) -> Path:
        return self.folder / f".{self.shard.name}.part"

    @property
    def pieces(self) -> Path:
        return self.folder / f".{self.shard.name}.pieces"

    def missing(self) -> list[int]:
        """The pieces that have not arrived."""
        there = self.pieces.read_bytes() if self.pieces.exists() and self.part.exists() else b""
        count = -(-self.shard.bytes // PIECE_BYTES)
        return [number for number in range(count) if there[number : number + 1] != _THERE]


def missing_bytes(data_set: DataSet, folder: Path) -> int:
    """How much of a data set is still to be fetched into a folder."""
    return sum(shard.bytes for shard in data_set.shards if not is_there(folder, shard))


def is_there(folder: Path, shard: Shard) -> bool:
    """Whether a shard is there with its size; it gets its name after it has been checked."""
    try:
        return (folder / shard.name).stat().st_size == shard.bytes
    except OSError:
        return False


def fetch_shards(
    storage: Storage, data_set: DataSet, folder: Path, *, on_progress: OnProgress
) -> int:
    """Fetch what is missing, and return how many bytes that was.

    Raises NotFoundError and InvalidInputError for shards that are not what the manifest lists,
    WriteError, and what storage raises. What has arrived stays for the next attempt.
    """
    entries = {entry.name: entry for entry in storage.list()}
    download = [
        _begin(shard, folder, entries.get(shard.name), storage)
        for shard in data_set.shards
        if not is_there(folder, shard)
    ]
    work = [(one, number) for one in download for number in one.missing()]
    missing = sum(_size(one, number) for one, number in work)
    total = data_set.bytes
    arrived, lock = total - missing, threading.Lock()

    def on_arrival(count: int) -> None:
        nonlocal arrived
        with lock:
            arrived += count
            on_progress(Progress("fetch", arrived / MIB, total / MIB, "MiB"))

    with ThreadPoolExecutor(_CONNECTIONS, thread_name_prefix="fetch") as threads:
        # The first failure, or Ctrl-C, cancels the pieces that have not begun.
        for _ in threads.map(lambda at: _fetch_piece(storage, *at, on_arrival=on_arrival), work):
            continue
        for shard in threads.map(lambda one: _finish(storage, one), download):
            on_progress(Progress("check", 0, None, "shards", shard.name))
    return missing


def _begin(shard: Shard, folder: Path, entry: StoredObject | None, storage: Storage) -> _Download:
    hint = f"List all damage: tpuctl data verify {storage.address}"
    if entry is None:
        raise NotFoundError(f"{storage.address} has no {shard.name}.", hint=hint)
    if entry.size_bytes != shard.bytes or entry.crc32c not in (None, shard.crc32c):
        raise InvalidInputError(
            f"{storage.address}/{shard.name} does not match the manifest.", hint=hint
        )
    download = _Download(shard, folder, entry.version)
    with translated_write_errors(download.part):
        if not download.missing() and download.part.exists():
            return download
        descriptor = os.open(download.part, _IN_PLACE, 0o644)
        try:
            if shard.bytes and os.fstat(descriptor).st_size != shard.bytes:
                download.pieces.unlink(missing_ok=True)
                os.posix_fallocate(descriptor, 0, shard.bytes)
        finally:
            os.close(descriptor)
    return download


def _size(download: _Download, number: int) -> int:
    return min(PIECE_BYTES, download.shard.bytes - number * PIECE_BYTES)


def _fetch_piece(
    storage: Storage, download: _Download, number: int, *, on_arrival: Callable[[int], None]
) -> None:
    start, length = number * PIECE_BYTES, _size(download, number)
    data = storage.read(download.shard.name, start=start, length=length, version=download.version)
    if len(data) != length:
        raise InvalidInputError(
            f"{storage.address}/{download.shard.name} ends after {start + len(data)} bytes; the "
            f"manifest lists {download.shard.bytes}."
        )
    with translated_write_errors(download.part):
        _write_at(download.part, data, start)
        _write_at(download.pieces, _THERE, number)
    on_arrival(length)


def _write_at(path: Path, data: bytes, position: int) -> None:
    descriptor = os.open(path, _IN_PLACE, 0o644)
    try:
        view = memoryview(data)
        while view:
            written = os.pwrite(descriptor, view, position)
            view, position = view[written:], position + written
    finally:
        os.close(descriptor)


def _finish(storage: Storage, download: _Download) -> Shard:
    """Rename a shard if its checksum is that of the manifest; otherwise fetch it once more."""
    from tpuctl.storage._checksum import crc32c_of

    for is_second_try in (False, True):
        if is_second_try:
            storage.fetch(download.shard.name, download.part)
        with translated_write_errors(download.part):
            crc32c = crc32c_of(download.part)
        if crc32c == download.shard.crc32c:
            # First, because it is not looked for once the shard has its name.
            download.pieces.unlink(missing_ok=True)
            publish(download.part, download.final)
            return download.shard
    download.part.unlink(missing_ok=True)
    download.pieces.unlink(missing_ok=True)
    raise InvalidInputError(
        f"{storage.address}/{download.shard.name} does not match the manifest: its crc32c differs.",
        hint=f"List all damage: tpuctl data verify {storage.address}",
    )
