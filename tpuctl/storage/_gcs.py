"""Buckets as `Storage`: writes by Google's client under preconditions, reads by our own reader."""

import os
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.clock import Clock, RetryPolicy, SteadyClock
from tpuctl.errors import (
    AlreadyExistsError,
    InvalidInputError,
    NotFoundError,
    PermissionDeniedError,
)
from tpuctl.storage._checksum import check_checksum, crc32c_of, from_base64
from tpuctl.storage._credentials import Login, log_in
from tpuctl.storage._gcs_reading import Item, Reader, open_pool
from tpuctl.storage.errors import EMULATOR
from tpuctl.storage.local import open_own, translated_write_errors
from tpuctl.storage.port import Location, StoredObject, check_name

if TYPE_CHECKING:
    from tpuctl.storage._gcs_writing import Writer

_GOOGLE = "https://storage.googleapis.com"
_FIELDS = "items(name,size,generation,crc32c),nextPageToken"


def open_bucket(
    bucket: str, prefix: str, *, clock: Clock | None, retry: RetryPolicy
) -> "GcsStorage":
    """Open a bucket at Google, or in the emulator that STORAGE_EMULATOR_HOST names.

    Raises NotLoggedInError.
    """
    if find_spec("google.cloud.storage") is None:
        raise ModuleNotFoundError("google-cloud-storage", name="google.cloud.storage")
    pool = open_pool()
    emulator = os.environ.get(EMULATOR, "").rstrip("/")
    login = Login(None, pool) if emulator else log_in(pool)
    base = emulator if "://" in emulator else f"http://{emulator}" if emulator else _GOOGLE
    reader = Reader(base, bucket, login, pool, retry, clock or SteadyClock())

    def open_writer() -> "Writer":
        # Importing Google's client takes half a second and 50 MB; reading does not need it.
        from tpuctl.storage._gcs_writing import Writer

        return Writer(bucket, login, retry, base)

    return GcsStorage(bucket, prefix, reader, open_writer)


class GcsStorage:
    """The objects of a bucket below a prefix; an object's version is its generation."""

    def __init__(
        self, bucket: str, prefix: str, reader: Reader, open_writer: Callable[[], "Writer"]
    ) -> None:
        self._bucket, self._below = bucket, f"{prefix}/" if prefix else ""
        self._reader, self._writer = reader, cache(open_writer)

    @property
    def address(self) -> str:
        """`gs://BUCKET/PREFIX`."""
        return f"gs://{self._bucket}/{self._below}".rstrip("/")

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        """List objects by name prefix, a thousand per request."""
        query = {"prefix": self._below + prefix, "fields": _FIELDS}
        while True:
            page = self._reader.page(query)
            for item in page.items:
                # The Cloud console creates empty objects that stand for folders.
                if not item.name.endswith("/"):
                    yield self._entry(item)
            if page.nextPageToken in (None, query.get("pageToken")):
                return
            query["pageToken"] = page.nextPageToken

    def stat(self, name: str) -> StoredObject:
        """Return an object's metadata; raises NotFoundError."""
        return self._entry(self._reader.stat(self._below + name))

    def read(
        self,
        name: str,
        *,
        start: int = 0,
        length: int | None = None,
        version: str | None = None,
    ) -> bytes:
        """Read an object or a range of it, cut at its end; raises NotFoundError."""
        return self._reader.read(self._below + name, start, length, version)

    def fetch(self, name: str, path: Path) -> StoredObject:
        """Download an object to a local file; raises NotFoundError, WriteError."""
        with translated_write_errors(path), open_own(path, "wb") as target:
            download = self._reader.fetch(self._below + name, target)
        return StoredObject(name, download.received, download.generation, download.crc32c)

    def write(
        self,
        name: str,
        content: bytes | Path,
        *,
        over: StoredObject | None = None,
        crc32c: str | None = None,
        move: bool = False,
    ) -> StoredObject:
        """Create an object, or replace this version; raises AlreadyExistsError for another one."""
        full_name = self._below + check_name(name)
        if crc32c is not None:
            check_checksum(content, crc32c)
        try:
            crc32c = crc32c or crc32c_of(content)
        except OSError as error:
            raise InvalidInputError(f"Could not read {content!r}: {error.strerror}.") from error
        try:
            written = self._writer().write(
                full_name, content, crc32c, int(over.version) if over else 0
            )
            return self._entry(written) if written else self.stat(name)
        except AlreadyExistsError:
            # Our own write whose reply was lost, or another process wrote the same bytes.
            existing = self.stat(name)
            if existing.crc32c == crc32c:
                return existing
            raise

    def checksum(self, entry: StoredObject) -> str:
        """Return the crc32c of an object, which the service stores, as hexadecimal."""
        return entry.crc32c or self.stat(entry.name).crc32c or ""

    def delete(self, entry: StoredObject) -> None:
        """Delete this version; raises AlreadyExistsError if another is there."""
        try:
            self._writer().delete(self._below + entry.name, int(entry.version))
        except NotFoundError:
            return

    def location(self) -> Location | None:
        """Return the bucket's location; None without permission to read it."""
        try:
            document = self._reader.bucket()
        except (PermissionDeniedError, NotFoundError):
            return None
        placed = document.customPlacementConfig
        return Location(document.location, placed.dataLocations if placed else ())

    def _entry(self, item: Item) -> StoredObject:
        return StoredObject(
            item.name.removeprefix(self._below),
            item.size_bytes,
            item.generation,
            from_base64(item.crc32c) if item.crc32c else None,
        )
