"""Bytes on their way out: whole, in part, and with what a client checks them by."""

import gzip
import io
import re
from email.utils import formatdate
from typing import BinaryIO

from tpuctl.emulator.storage.objects import Shelf
from tpuctl.emulator.storage.records import Stored, read_conditions
from tpuctl.emulator.storage.requests import Content, Reply, Request, refuse

_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
_MICROSECONDS = 10**6


def get_media(shelf: Shelf, request: Request) -> Reply:
    """The bytes of an object, or the range of them that is asked for."""
    stored, file = _open(shelf, request)
    if _is_to_be_unpacked(stored, request):
        with file:
            data = gzip.decompress(file.read())
        headers = {**_headers(stored), "Warning": "214 UploadServer gunzipped"}
        del headers["Content-Encoding"]
        return Reply(content=Content(io.BytesIO(data), len(data)), headers=headers)
    first, count = 0, stored.size_bytes
    headers = _headers(stored)
    asked = _range(request.headers.get("Range", ""), stored.size_bytes)
    if asked is not None:
        first, count = asked
        if not count:
            file.close()
            refusal = refuse("range")
            refusal.headers["Content-Range"] = f"bytes */{stored.size_bytes}"
            raise refusal
        headers["Content-Range"] = f"bytes {first}-{first + count - 1}/{stored.size_bytes}"
    file.seek(first)
    return Reply(200 if asked is None else 206, content=Content(file, count), headers=headers)


def get_metadata(shelf: Shelf, request: Request) -> Reply:
    """What is known of an object."""
    stored = shelf.get(*_place(request), request.query)
    read_conditions(request.query).check(stored, reading=True)
    return Reply(document=stored.resource(), headers={"ETag": stored.etag})


def _open(shelf: Shelf, request: Request) -> tuple[Stored, BinaryIO]:
    with shelf.lock:
        stored = shelf.get(*_place(request), request.query)
        read_conditions(request.query).check(stored, reading=True)
        return stored, shelf.path(stored).open("rb")


def _place(request: Request) -> tuple[str, str]:
    bucket, name = request.names
    return bucket, name


def _is_to_be_unpacked(stored: Stored, request: Request) -> bool:
    """The service unpacks gzip for those who do not say that they take it."""
    return (
        stored.fields.get("contentEncoding") == "gzip"
        and "gzip" not in request.headers.get("Accept-Encoding", "")
        and "no-transform" not in str(stored.fields.get("cacheControl", ""))
    )


def _range(text: str, size_bytes: int) -> tuple[int, int] | None:
    """First byte and count of a Range header; None for none, and for one that is no range."""
    found = _RANGE.fullmatch(text.strip())
    if not found or not any(found.groups()):
        return None
    first, last = found.groups()
    if not first:
        count = min(int(last), size_bytes)
        return size_bytes - count, count
    if last and int(last) < int(first):
        return None
    end = min(int(last) + 1 if last else size_bytes, size_bytes)
    return int(first), max(0, end - int(first))


def _headers(stored: Stored) -> dict[str, str]:
    headers = {
        "Content-Type": str(stored.fields.get("contentType", "application/octet-stream")),
        "ETag": stored.etag,
        "Last-Modified": formatdate(stored.updated_us / _MICROSECONDS, usegmt=True),
        "X-Goog-Generation": str(stored.generation),
        "X-Goog-Metageneration": str(stored.metageneration),
        "X-Goog-Hash": stored.hashes,
        "X-Goog-Stored-Content-Length": str(stored.size_bytes),
        "X-Goog-Stored-Content-Encoding": str(stored.fields.get("contentEncoding", "identity")),
        "X-Goog-Storage-Class": "STANDARD",
    }
    fields = {"Content-Encoding": "contentEncoding", "Cache-Control": "cacheControl"}
    headers |= {name: stored.fields[key] for name, key in fields.items() if key in stored.fields}
    return headers
