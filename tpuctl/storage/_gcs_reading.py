"""Read from Cloud Storage over pooled connections, with a third of the CPU of Google's client.

Uses the JSON API directly, verifies the crc32c of every object read whole, and retries.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import BinaryIO, TypeVar
from urllib.parse import quote, urlencode

import google_crc32c
import urllib3
from urllib3.exceptions import HTTPError, NewConnectionError

from tpuctl.clock import Clock, RetryPolicy
from tpuctl.codec import from_plain, parse_json
from tpuctl.errors import TpuctlError, first_line
from tpuctl.storage._checksum import crc32c_of, from_base64
from tpuctl.storage._credentials import Login
from tpuctl.storage.errors import TRANSIENT, RequestContext, no_emulator, translate, unavailable

CONNECTIONS = 32
_CONNECT_S = 10.0
_READ_S = 60.0
_BLOCK_BYTES = 1 << 20
_LONGEST_ERROR_BYTES = 64 << 10

T = TypeVar("T")


class TransientError(Exception):
    """A request that may succeed when retried; `cause` is raised if it never does."""

    def __init__(self, cause: TpuctlError, *, after_s: float | None = None) -> None:
        super().__init__(str(cause))
        self.cause, self.after_s = cause, after_s


@dataclass(frozen=True)
class Item:
    """The metadata of an object, under the names of the JSON API."""

    name: str
    size: str
    generation: str
    crc32c: str | None = None

    @property
    def size_bytes(self) -> int:
        """How long it is."""
        return int(self.size)

    def __post_init__(self) -> None:
        if not (self.size.isdecimal() and self.generation.isdecimal() and len(self.size) < 20):
            raise ValueError(f"{self.size!r} is not a size, or {self.generation!r} no generation")
        if self.crc32c:
            from_base64(self.crc32c)


@dataclass(frozen=True)
class Page:
    """A part of a listing."""

    items: tuple[Item, ...] = ()
    nextPageToken: str | None = None


@dataclass(frozen=True)
class Placement:
    """Where the two halves of a bucket are."""

    dataLocations: tuple[str, ...] = ()


@dataclass(frozen=True)
class Bucket:
    """Where a bucket is."""

    location: str = ""
    customPlacementConfig: Placement | None = None


def open_pool() -> urllib3.PoolManager:
    """Open a connection pool; a connection returns to it once its reply has been read."""
    return urllib3.PoolManager(
        maxsize=CONNECTIONS,
        retries=False,
        timeout=urllib3.Timeout(connect=_CONNECT_S, read=_READ_S),
    )


@dataclass
class Download:
    """The state of a download: what has been received, and what the service declared."""

    received: int = 0
    size_bytes: int | None = None
    generation: str = ""
    crc32c: str | None = None
    received_crc32c: int = 0


class Reader:
    """The read-only requests for one bucket."""

    def __init__(
        self,
        base: str,
        bucket: str,
        login: Login,
        pool: urllib3.PoolManager,
        retry: RetryPolicy,
        clock: Clock,
    ) -> None:
        self._bucket, self._login, self._pool = bucket, login, pool
        self._place = f"{base}/storage/v1/b/{quote(bucket, safe='')}"
        self._objects = f"{self._place}/o"
        self._retry, self._clock = retry, clock

    def page(self, query: Mapping[str, str]) -> Page:
        """Read one page of a listing."""
        context = RequestContext(
            f"Could not list gs://{self._bucket}/{query.get('prefix', '')}", self._bucket
        )
        return self._document(Page, f"{self._objects}?{urlencode(query)}", context)

    def bucket(self) -> Bucket:
        """Read the location of the bucket."""
        fields = urlencode({"fields": "location,customPlacementConfig"})
        context = RequestContext(
            f"Could not read the location of gs://{self._bucket}", self._bucket
        )
        return self._document(Bucket, f"{self._place}?{fields}", context)

    def stat(self, name: str) -> Item:
        """Read the metadata of an object."""
        fields = urlencode({"fields": "name,size,generation,crc32c"})
        return self._document(Item, f"{self._url(name)}?{fields}", self._context(name))

    def read(
        self, name: str, start: int, length: int | None, generation: str | None = None
    ) -> bytes:
        """Read an object as stored, or a range of it, cut at its end.

        With `generation`, raises AlreadyExistsError if the object has another one now.
        """
        if length == 0:
            return b""
        headers = {}
        if start or length is not None:
            headers["Range"] = f"bytes={start}-{start + length - 1 if length else ''}"
        context = self._context(name)
        only = {} if generation is None else {"ifGenerationMatch": generation}
        url = f"{self._url(name)}?{urlencode({'alt': 'media', **only})}"
        return self._with_retries(lambda: self._read(url, headers, context))

    def fetch(self, name: str, target: BinaryIO) -> Download:
        """Download an object into a file; resumes after a broken connection."""
        context = self._context(name)

        def fetch_once() -> Download:
            target.seek(0)
            target.truncate()
            download = self._fetch(name, target, context)
            if download.crc32c not in (None, f"{download.received_crc32c:08x}"):
                raise _damaged(context)
            return download

        return self._with_retries(fetch_once)

    def _fetch(self, name: str, target: BinaryIO, context: RequestContext) -> Download:
        download = Download()
        while download.received != download.size_bytes:
            before = download.received
            try:
                self._with_retries(lambda: self._stream(name, download, target, context))
            except TpuctlError:
                # While bytes still arrive, the retry budget starts over.
                if download.received <= before:
                    raise
        return download

    def _with_retries(self, act: Callable[[], T]) -> T:
        """Retry `act` with growing pauses; raises the last error when the time is used up."""
        failures, waited_s = 0, 0.0
        while True:
            try:
                return act()
            except TransientError as error:
                failures += 1
                pause_s = self._retry.longest_pause_s(failures)
                pause_s *= random.uniform(0.5, 1)  # noqa: S311 (spreads the load)
                pause_s = max(pause_s, error.after_s or 0.0)
                if waited_s + pause_s > self._retry.total_s:
                    raise error.cause from None
            self._clock.sleep(pause_s)
            waited_s += pause_s

    def _read(self, url: str, headers: dict[str, str], context: RequestContext) -> bytes:
        response = self._ask(url, headers, context)
        if response.status == 416:
            return b""
        self._check_status(response, context)
        data: bytes = response.data
        declared = _declared(response)
        if response.status == 200 and declared and crc32c_of(data) != declared:
            raise _damaged(context)
        if response.status == 200 and headers:
            start, _, end = headers["Range"].removeprefix("bytes=").partition("-")
            return data[int(start) : int(end) + 1 if end else None]
        return data

    def _stream(
        self, name: str, download: Download, target: BinaryIO, context: RequestContext
    ) -> None:
        query = {"alt": "media"} | (
            {"generation": download.generation} if download.generation else {}
        )
        headers = {"Range": f"bytes={download.received}-"} if download.received else {}
        response = self._ask(
            f"{self._url(name)}?{urlencode(query)}", headers, context, preload=False
        )
        try:
            self._check_status(response, context)
            if download.size_bytes is None:
                try:
                    download.size_bytes = int(response.headers["X-Goog-Stored-Content-Length"])
                    download.generation = response.headers["X-Goog-Generation"]
                    download.crc32c = _declared(response)
                except (KeyError, ValueError):
                    reason = "the reply does not say how long the object is"
                    raise TransientError(unavailable(context, reason)) from None
            for block in response.stream(_BLOCK_BYTES, decode_content=False):
                target.write(block)
                crc32c = google_crc32c.extend(download.received_crc32c, block)
                download.received_crc32c = crc32c
                download.received += len(block)
        except HTTPError as error:
            raise TransientError(unavailable(context, first_line(error))) from None
        finally:
            response.close()

    def _document(self, kind: type[T], url: str, context: RequestContext) -> T:
        def ask() -> T:
            response = self._ask(url, {}, context)
            self._check_status(response, context)
            try:
                return from_plain(kind, parse_json(response.data))
            except ValueError as error:
                reason = f"the reply is not what it should be: {first_line(error)}"
                raise TransientError(unavailable(context, reason)) from None

        return self._with_retries(ask)

    def _ask(
        self, url: str, headers: dict[str, str], context: RequestContext, *, preload: bool = True
    ) -> urllib3.BaseHTTPResponse:
        # Accepting gzip makes the service send the bytes as stored, which the checksum covers.
        headers = {"Accept-Encoding": "gzip", **headers, **self._login.headers()}
        try:
            return self._pool.request(
                "GET", url, headers=headers, preload_content=preload, decode_content=False,
                redirect=False,
            )  # fmt: skip
        except HTTPError as error:
            if isinstance(error, NewConnectionError) and self._login.credentials is None:
                raise no_emulator(context, self._objects) from None
            raise TransientError(unavailable(context, first_line(error))) from None

    def _check_status(self, response: urllib3.BaseHTTPResponse, context: RequestContext) -> None:
        if response.status in (200, 206):
            return
        error = translate(response.status, _message(response), context)
        if response.status in TRANSIENT:
            after = response.headers.get("Retry-After", "")
            raise TransientError(error, after_s=float(after) if after.isdecimal() else None)
        raise error

    def _url(self, name: str) -> str:
        return f"{self._objects}/{quote(name, safe='')}"

    def _context(self, name: str) -> RequestContext:
        return RequestContext(f"Could not read gs://{self._bucket}/{name}", self._bucket)


def _damaged(context: RequestContext) -> TransientError:
    return TransientError(unavailable(context, "the bytes received do not match the stored crc32c"))


def _declared(response: urllib3.BaseHTTPResponse) -> str | None:
    """Return the crc32c that the service declares for the whole object."""
    for part in response.headers.get("X-Goog-Hash", "").split(","):
        name, _, value = part.strip().partition("=")
        if name == "crc32c":
            return from_base64(value)
    return None


def _message(response: urllib3.BaseHTTPResponse) -> str:
    """Return the text of an error: JSON for metadata requests, plain text for media."""
    data = response.data[:_LONGEST_ERROR_BYTES]
    try:
        return str(parse_json(data)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return data.decode("utf-8", "replace")
