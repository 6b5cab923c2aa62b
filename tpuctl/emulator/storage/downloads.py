"""Downloads from Cloud Storage: whole objects and ranges, decompressed if necessary."""

import gzip
import io
import re
from email.utils import formatdate

from tpuctl.emulator.errors import storage_error
from tpuctl.emulator.http import Content, Reply, Request
from tpuctl.emulator.storage.objects import Buckets
from tpuctl.emulator.storage.resources import StoredObject, read_conditions

_MICROSECONDS = 10**6
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


def get_media(buckets: Buckets, request: Request) -> Reply:
    """Return the bytes of an object, or the requested range of them."""
    with buckets.lock:
        stored = current_object(buckets, request)
        file = buckets.path(stored).open("rb")
    headers = media_headers(stored)
    if _must_decompress(stored, request):
        with file:
            data = gzip.decompress(file.read())
        del headers["Content-Encoding"]
        headers["Warning"] = "214 UploadServer gunzipped"
        return Reply(content=Content(io.BytesIO(data), len(data)), headers=headers)
    wanted = read_range(request.headers.get("Range", ""), stored.size_bytes)
    if wanted is None:
        return Reply(content=Content(file, stored.size_bytes), headers=headers)
    first, count = wanted
    if not count:
        file.close()
        error = storage_error("range")
        error.http_headers["Content-Range"] = f"bytes */{stored.size_bytes}"
        raise error
    headers["Content-Range"] = f"bytes {first}-{first + count - 1}/{stored.size_bytes}"
    file.seek(first)
    return Reply(206, content=Content(file, count), headers=headers)


def current_object(buckets: Buckets, request: Request) -> StoredObject:
    """Return the object of a request if its preconditions hold; raises StorageError."""
    bucket, name = request.names.values()
    stored = buckets.get(bucket, name, request.query)
    read_conditions(request.query).check(stored, reading=True)
    return stored


def _must_decompress(stored: StoredObject, request: Request) -> bool:
    """Whether the service decompresses an object, because the client does not accept gzip."""
    return (
        stored.fields.get("contentEncoding") == "gzip"
        and "gzip" not in request.headers.get("Accept-Encoding", "")
        and "no-transform" not in str(stored.fields.get("cacheControl", ""))
    )


def read_range(text: str, size_bytes: int) -> tuple[int, int] | None:
    """Read a Range header: first byte and count; None if it is missing or invalid."""
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


def media_headers(stored: StoredObject) -> dict[str, str]:
    """Write the headers of a download that describe the object."""
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
    return headers | {
        name: stored.fields[key] for name, key in fields.items() if key in stored.fields
    }
