"""Reads of Cloud Storage: objects whole or in ranges, decompressed if necessary, and lists."""

import base64
import gzip
import io
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from email.utils import formatdate

from tpuctl.emulator.errors import storage_error
from tpuctl.emulator.http import Content, Reply, Request
from tpuctl.emulator.methods import Document
from tpuctl.emulator.storage.objects import Bucket, Buckets
from tpuctl.emulator.storage.resources import StoredObject, read_conditions, read_whole

_MICROSECONDS = 10**6
_MEDIA_FIELDS = {
    "Cache-Control": "cacheControl", "Content-Disposition": "contentDisposition",
    "Content-Encoding": "contentEncoding", "Content-Language": "contentLanguage",
}  # fmt: skip
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
        "X-Goog-Storage-Class": str(stored.fields.get("storageClass", "STANDARD")),
    }
    return headers | {
        name: header_text(stored.fields[key])
        for name, key in _MEDIA_FIELDS.items()
        if key in stored.fields
    }


def header_text(value: object) -> str:
    """Write a value of an object's metadata for a header, as one line of UTF-8."""
    return " ".join(str(value).splitlines()).encode().decode("latin-1")


MOST_ITEMS = 1000
_NOT_SUPPORTED = ("softDeleted", "filter", "includeTrailingDelimiter")
_GLOB = re.compile(r"\*\*|[*?{},]|\[!?[^\]]+\]|.", re.DOTALL)


def list_objects(bucket: Bucket, query: Mapping[str, str], base_url: str) -> Document:
    """List one page of the objects of a bucket, and of their prefixes up to a delimiter."""
    for key in _NOT_SUPPORTED:
        if query.get(key, "false") != "false":
            raise storage_error("unimplemented", what=key)
    most = min(read_whole(query, "maxResults") or MOST_ITEMS, MOST_ITEMS)
    items: list[Document] = []
    prefixes: list[str] = []
    document: Document = {"kind": "storage#objects"}
    last = ""
    for entry, is_prefix in _entries(bucket, query):
        if len(items) + len(prefixes) == most:
            document["nextPageToken"] = base64.urlsafe_b64encode(last.encode()).decode()
            break
        last = entry
        if is_prefix:
            prefixes.append(entry)
        else:
            items.append(bucket.objects[entry].resource(base_url))
    lists = {"items": items, "prefixes": prefixes}
    return document | {key: found for key, found in lists.items() if found}


def _entries(bucket: Bucket, query: Mapping[str, str]) -> Iterator[tuple[str, bool]]:
    """Return names and prefixes in order, each with whether it is a prefix."""
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    end = query.get("endOffset", "")
    token = query.get("pageToken", "")
    glob = _read_glob(query["matchGlob"]) if query.get("matchGlob") else None
    try:
        after = base64.b64decode(token.encode(), altchars=b"-_", validate=True).decode()
    except ValueError:
        raise storage_error("number", value=token, field="pageToken") from None
    index = bisect_left(bucket.names, max(prefix, query.get("startOffset", ""), after))
    while index < len(bucket.names):
        name = bucket.names[index]
        if not name.startswith(prefix) or (end and name >= end):
            return
        cut = name.find(delimiter, len(prefix)) if delimiter else -1
        folder = name[: cut + len(delimiter)] if cut >= 0 else ""
        is_wanted = glob is None or glob.fullmatch(name)
        if is_wanted and (folder or name) > after:
            yield folder or name, bool(folder)
        # Skip the rest of that folder at once: it may contain a great many objects.
        if folder and is_wanted:
            first_after = folder[:-1] + chr(ord(folder[-1]) + 1)
            index = bisect_left(bucket.names, first_after, index + 1)
        else:
            index += 1


def _read_glob(text: str) -> re.Pattern[str]:
    """Compile a glob: `*` and `?` stop at a slash, `**` does not, `{a,b}` is either."""
    meanings = {"**": ".*", "*": "[^/]*", "?": "[^/]", "{": "(?:", "}": ")", ",": "|"}
    depth, pattern = 0, ""
    for part in _GLOB.findall(text):
        depth += (part == "{") - (part == "}")
        if part[0] == "[" and len(part) > 1:
            negated = part[1] == "!"
            listed = part[1 + negated : -1].replace("\\", r"\\")
            pattern += f"[{'^' if negated else ''}{listed}]"
        elif part == "," and not depth:
            pattern += part
        else:
            pattern += meanings.get(part, re.escape(part))
    try:
        return re.compile(pattern, re.DOTALL)
    except re.error:
        raise storage_error("glob", value=text) from None
