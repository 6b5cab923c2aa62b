"""A bucket as storage: written by Google's client under preconditions, read by a reader of ours."""

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import google.auth.exceptions
import google.cloud.storage as vendor
import requests
import urllib3
from google.api_core.exceptions import GoogleAPICallError, RetryError
from google.api_core.retry import Retry
from google.auth.credentials import AnonymousCredentials
from google.cloud.storage.exceptions import DataCorruption, InvalidResponse
from google.cloud.storage.retry import DEFAULT_RETRY

from tpuctl.clock import Clock, SteadyClock
from tpuctl.errors import (
    AlreadyExistsError,
    InvalidInputError,
    NotFoundError,
    NotLoggedInError,
    TpuctlError,
)
from tpuctl.storage._checksum import check_checksum, crc32c_of, from_base64, to_base64
from tpuctl.storage._gcs_login import Login, first_line, log_in
from tpuctl.storage._gcs_reading import Reader, open_pool
from tpuctl.storage.faults import LOGIN_COMMAND, Asked, translate, unavailable
from tpuctl.storage.local import translated_write_errors
from tpuctl.storage.port import Entry, Patience, check_name

EMULATOR = "STORAGE_EMULATOR_HOST"
_GOOGLE = "https://storage.googleapis.com"
# Pieces are kept in memory until they have arrived; the client's own choice is 100 MiB.
_PIECE_BYTES = 16 << 20
_TIMEOUT_S = 60.0
_FIELDS = "items(name,size,generation,crc32c),nextPageToken"


def open_bucket(
    bucket: str, prefix: str, *, clock: Clock | None, patience: Patience
) -> "GcsStorage":
    """Open a bucket of Google's, or of the emulator that STORAGE_EMULATOR_HOST leads to.

    Raises NotLoggedInError.
    """
    pool = open_pool()
    emulator = os.environ.get(EMULATOR, "").rstrip("/")
    login = Login(None, pool) if emulator else log_in(pool)
    base = emulator if "://" in emulator else f"http://{emulator}" if emulator else _GOOGLE
    reader = Reader(base, bucket, login, pool, patience, clock or SteadyClock())
    return GcsStorage(bucket, prefix, reader, Writer(bucket, login, patience, base))


class GcsStorage:
    """The objects of a bucket below a prefix; the version of one is its generation."""

    def __init__(self, bucket: str, prefix: str, reader: Reader, writer: "Writer") -> None:
        self._bucket, self._below = bucket, f"{prefix}/" if prefix else ""
        self._reader, self._writer = reader, writer

    @property
    def address(self) -> str:
        """`gs://BUCKET/PREFIX`."""
        return f"gs://{self._bucket}/{self._below}".rstrip("/")

    def list(self, prefix: str = "") -> Iterator[Entry]:
        """Every object whose name begins like that; one request for a thousand of them."""
        query = {"prefix": self._below + prefix, "fields": _FIELDS}
        while True:
            page = self._reader.page(query)
            for item in page.get("items", ()):
                # Consoles make objects of no bytes that stand for folders.
                if not item["name"].endswith("/"):
                    yield self._entry(item)
            if "nextPageToken" not in page:
                return
            query["pageToken"] = page["nextPageToken"]

    def stat(self, name: str) -> Entry:
        """What is known of an object; raises NotFoundError."""
        return self._entry(self._reader.stat(self._below + name))

    def read(self, name: str, *, start: int = 0, length: int | None = None) -> bytes:
        """Read an object, or what there is of a range of it; raises NotFoundError."""
        return self._reader.read(self._below + name, start, length)

    def fetch(self, name: str, path: Path) -> Entry:
        """Copy an object to a file of this machine; raises NotFoundError, WriteError."""
        with translated_write_errors(path), path.open("wb") as target:
            arriving = self._reader.fetch(self._below + name, target)
        return Entry(name, arriving.received, arriving.generation, arriving.crc32c)

    def create(self, name: str, content: bytes | Path, *, crc32c: str | None = None) -> Entry:
        """Make an object that is not there yet; there with the same bytes already is as good."""
        return self._write(name, content, crc32c, generation=0)

    def replace(self, entry: Entry, content: bytes | Path, *, crc32c: str | None = None) -> Entry:
        """Replace that very version of an object; raises AlreadyExistsError for another one."""
        return self._write(entry.name, content, crc32c, generation=int(entry.version))

    def checksum(self, entry: Entry) -> str:
        """The crc32c of an object in hexadecimal, which the service keeps."""
        return entry.crc32c or self.stat(entry.name).crc32c or ""

    def delete(self, entry: Entry) -> None:
        """Delete that very version; gone already is as good, another one AlreadyExistsError."""
        try:
            self._writer.delete(self._below + entry.name, int(entry.version))
        except NotFoundError:
            return

    def _write(
        self, name: str, content: bytes | Path, crc32c: str | None, *, generation: int
    ) -> Entry:
        full_name = self._below + check_name(name)
        if crc32c is not None:
            check_checksum(content, crc32c)
        crc32c = crc32c or _checksum(content)
        try:
            return self._entry(self._writer.write(full_name, content, crc32c, generation))
        except AlreadyExistsError:
            # Perhaps it was us, and the reply got lost; or somebody with the same bytes.
            there = self.stat(name)
            if there.crc32c == crc32c:
                return there
            raise

    def _entry(self, item: dict[str, Any]) -> Entry:
        crc32c = item.get("crc32c")
        return Entry(
            item["name"].removeprefix(self._below),
            int(item["size"]),
            str(item["generation"]),
            from_base64(crc32c) if crc32c else None,
        )


class Writer:
    """The requests that change something, each only if a generation is still what it was."""

    def __init__(self, bucket: str, login: Login, patience: Patience, base: str) -> None:
        credentials = login.credentials or AnonymousCredentials()
        client = vendor.Client(
            project=None, credentials=credentials, client_options={"api_endpoint": base}
        )
        self._name, self._bucket = bucket, client.bucket(bucket)
        self._retry: Retry = DEFAULT_RETRY.with_delay(
            initial=patience.first_s, maximum=patience.longest_s
        ).with_timeout(patience.total_s)

    def write(
        self, name: str, content: bytes | Path, crc32c: str, generation: int
    ) -> dict[str, Any]:
        """Upload an object, its checksum declared; gives its metadata."""
        blob = self._bucket.blob(name, chunk_size=_PIECE_BYTES)
        with self._translated(f"Could not write gs://{self._name}/{name}"), _open(content) as file:
            blob.upload_from_file(
                file,
                size=os.fstat(file.fileno()).st_size if isinstance(content, Path) else len(content),
                content_type="application/octet-stream",
                if_generation_match=generation,
                checksum="crc32c",
                crc32c_checksum_value=to_base64(crc32c),
                timeout=_TIMEOUT_S,
                retry=self._retry,
            )
        return {
            "name": name,
            "size": blob.size,
            "generation": blob.generation,
            "crc32c": blob.crc32c,
        }

    def delete(self, name: str, generation: int) -> None:
        """Delete an object of that generation."""
        with self._translated(f"Could not delete gs://{self._name}/{name}"):
            self._bucket.blob(name).delete(
                if_generation_match=generation, timeout=_TIMEOUT_S, retry=self._retry
            )

    @contextmanager
    def _translated(self, doing: str) -> Iterator[None]:
        """Let nothing of Google's escape: whatever is raised inside becomes a TpuctlError."""
        asked = Asked(doing, self._name)
        try:
            yield
        except RetryError as error:
            raise _translate(error.cause, asked) from None
        except GoogleAPICallError as error:
            raise _translate(error, asked) from None
        except google.auth.exceptions.GoogleAuthError as error:
            message = f"{doing}: the login does not work: {first_line(error)}"
            raise NotLoggedInError(message, hint=LOGIN_COMMAND) from None
        except (requests.RequestException, urllib3.exceptions.HTTPError, DataCorruption) as error:
            raise unavailable(asked, first_line(error)) from None


def _translate(error: Exception | None, asked: Asked) -> TpuctlError:
    if isinstance(error, GoogleAPICallError):
        return translate(int(error.code or 0), error.message or "", asked)
    if isinstance(error, InvalidResponse):
        return translate(int(error.response.status_code), first_line(error), asked)
    return unavailable(asked, first_line(error) if error else "no reply")


@contextmanager
def _open(content: bytes | Path) -> Iterator[BinaryIO]:
    if isinstance(content, bytes):
        yield io.BytesIO(content)
        return
    with content.open("rb") as file:
        yield file


def _checksum(content: bytes | Path) -> str:
    try:
        return crc32c_of(content)
    except OSError as error:
        raise InvalidInputError(f"Could not read {content!r}: {error.strerror}.") from error
