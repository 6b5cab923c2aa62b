"""Lists of objects: prefixes, folders that are none, pages."""

import base64
import binascii
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO
from urllib.parse import unquote

from tpuctl.emulator.methods import Document
from tpuctl.emulator.storage._checksums import Checksums
from tpuctl.emulator.storage.downloads import get_media, get_metadata
from tpuctl.emulator.storage.objects import Bucket, Shelf, Upload
from tpuctl.emulator.storage.records import Stored, check_object_name, read_conditions, whole
from tpuctl.emulator.storage.requests import PIECE_BYTES, Reply, Request, refuse
from tpuctl.emulator.storage.uploads import cancel, insert, read_document, resume, writable

_MOST_ITEMS = 1000
_NOT_HERE = ("matchGlob", "softDeleted", "filter", "includeTrailingDelimiter")


def list_objects(bucket: Bucket, query: Mapping[str, str]) -> Document:
    """One page of the objects of a bucket, and of the prefixes that a delimiter makes of them."""
    for key in _NOT_HERE:
        if query.get(key, "false") != "false":
            raise refuse("unimplemented", what=key)
    most = min(whole(query, "maxResults") or _MOST_ITEMS, _MOST_ITEMS)
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
            items.append(bucket.objects[entry].resource())
    return document | _not_empty(items=items, prefixes=prefixes)


def _entries(bucket: Bucket, query: Mapping[str, str]) -> Iterator[tuple[str, bool]]:
    """Names and prefixes in order, each once; whether it is a prefix."""
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    end = query.get("endOffset", "")
    after = _after(query.get("pageToken", ""))
    index = bisect_left(bucket.names, max(prefix, query.get("startOffset", ""), after))
    while index < len(bucket.names):
        name = bucket.names[index]
        if not name.startswith(prefix) or (end and name >= end):
            return
        cut = name.find(delimiter, len(prefix)) if delimiter else -1
        folder = name[: cut + len(delimiter)] if cut >= 0 else ""
        if folder and folder > after:
            yield folder, True
        if not folder and name > after:
            yield name, False
        # Past everything else in that folder at once: it may hold very many.
        index = bisect_left(bucket.names, _past(folder), index + 1) if folder else index + 1


def _past(folder: str) -> str:
    """The first text that is larger than everything that begins with this one."""
    return folder[:-1] + chr(ord(folder[-1]) + 1)


def _after(token: str) -> str:
    try:
        return base64.b64decode(token.encode(), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeError):
        raise refuse("number", value=token, field="pageToken") from None


def _not_empty(**lists: list[Document] | list[str]) -> Document:
    return {key: values for key, values in lists.items() if values}


_LARGEST_BODY_BYTES = 4 << 20
_MOST_SOURCES = 32
_NAME = "([^/]+)"
_BUCKETS = "/storage/v1/b"
_OBJECT = f"{_BUCKETS}/{_NAME}/o/{_NAME}"
_UPLOADS = f"/upload{_BUCKETS}/{_NAME}/o"


@dataclass(frozen=True)
class Route:
    """One kind of request: its verb, its path and the name of its method."""

    verb: str
    path: str
    method: str
    act: Callable[[Shelf, Request], Reply]

    def match(self, verb: str, path: str) -> tuple[str, ...] | None:
        """The names in a path, unquoted, if it is of this kind."""
        found = re.fullmatch(self.path, path) if verb == self.verb else None
        if found is None:
            return None
        return tuple(unquote(name, errors="surrogateescape") for name in found.groups())


def _delete(shelf: Shelf, request: Request) -> Reply:
    bucket, name = request.names
    shelf.remove(bucket, name, request.query, read_conditions(request.query))
    return Reply(204)


def _patch(shelf: Shelf, request: Request) -> Reply:
    bucket, name = request.names
    said = read_document(request.body.read(_LARGEST_BODY_BYTES) or b"{}")
    stored = shelf.get(bucket, name, request.query)
    gone = {key: None for key, value in said.items() if value is None}
    changed = shelf.patch(stored, read_conditions(request.query), writable(said) | gone)
    return Reply(document=changed.resource())


def _list(shelf: Shelf, request: Request) -> Reply:
    with shelf.lock:
        return Reply(document=list_objects(shelf.bucket(request.names[0]), request.query))


def _compose(shelf: Shelf, request: Request) -> Reply:
    bucket, name = request.names
    said = read_document(request.body.read(_LARGEST_BODY_BYTES))
    sources = said.get("sourceObjects") or []
    if not sources:
        raise refuse("no_sources")
    if len(sources) > _MOST_SOURCES:
        raise refuse("many_sources", count=len(sources))
    file, sums = shelf.new_file(), Checksums()
    try:
        with file.open("wb") as target:
            parts = [_append(shelf, bucket, source, target, sums) for source in sources]
        upload = Upload(
            bucket,
            check_object_name(name),
            file,
            sum(part.size_bytes for part in parts),
            sums.crc32c,
            None,
            writable(said.get("destination") or {}),
            sum(max(1, part.components) for part in parts),
        )
        return Reply(document=shelf.put(upload, read_conditions(request.query)).resource())
    finally:
        file.unlink(missing_ok=True)


def _append(
    shelf: Shelf, bucket: str, source: Document, target: BinaryIO, sums: Checksums
) -> Stored:
    """Add the bytes of one source of `compose`, if its own conditions hold."""
    with shelf.lock:
        stored = shelf.get(bucket, str(source.get("name") or ""), source)
        read_conditions(source.get("objectPreconditions") or {}).check(stored)
        opened = shelf.path(stored).open("rb")
    with opened:
        while piece := opened.read(PIECE_BYTES):
            target.write(piece)
            sums.add(piece)
    return stored


def _get_bucket(shelf: Shelf, request: Request) -> Reply:
    return Reply(document=shelf.bucket(request.names[0]).resource())


def _list_buckets(shelf: Shelf, request: Request) -> Reply:
    prefix = request.query.get("prefix", "")
    found = [shelf.buckets[name] for name in sorted(shelf.buckets) if name.startswith(prefix)]
    document: Document = {"kind": "storage#buckets"}
    if found:
        document["items"] = [bucket.resource() for bucket in found]
    return Reply(document=document)


def _insert_bucket(shelf: Shelf, request: Request) -> Reply:
    said = read_document(request.body.read(_LARGEST_BODY_BYTES))
    location = str(said.get("location") or "US").upper()
    return Reply(document=shelf.add_bucket(str(said.get("name") or ""), location).resource())


def _delete_bucket(shelf: Shelf, request: Request) -> Reply:
    shelf.remove_bucket(request.names[0])
    return Reply(204)


ROUTES = (
    Route("POST", _UPLOADS, "storage_insert", insert),
    Route("PUT", _UPLOADS, "storage_upload_chunk", resume),
    Route("DELETE", _UPLOADS, "storage_upload_chunk", cancel),
    Route("GET", _OBJECT, "storage_stat", get_metadata),
    Route("DELETE", _OBJECT, "storage_delete", _delete),
    Route("PATCH", _OBJECT, "storage_patch", _patch),
    Route("POST", f"{_OBJECT}/compose", "storage_compose", _compose),
    Route("GET", f"{_BUCKETS}/{_NAME}/o", "storage_list", _list),
    Route("GET", f"{_BUCKETS}/{_NAME}", "storage_get_bucket", _get_bucket),
    Route("DELETE", f"{_BUCKETS}/{_NAME}", "storage_delete_bucket", _delete_bucket),
    Route("GET", _BUCKETS, "storage_list_buckets", _list_buckets),
    Route("POST", _BUCKETS, "storage_insert_bucket", _insert_bucket),
)
MEDIA = Route("GET", _OBJECT, "storage_get", get_media)
"""What `storage_stat` is with the parameter `alt=media`."""


def find_route(verb: str, path: str, *, media: bool) -> tuple[Route, tuple[str, ...]] | None:
    """The method that a request is, and the names in its path."""
    for route in (MEDIA, *ROUTES) if media else ROUTES:
        names = route.match(verb, path)
        if names is not None:
            return route, names
    return None
