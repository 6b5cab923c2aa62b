"""What can be done with buckets and objects, one function for each method, and their paths."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO
from urllib.parse import unquote

from tpuctl.emulator.methods import Document
from tpuctl.emulator.storage._checksums import Checksums
from tpuctl.emulator.storage.downloads import get_media, get_metadata
from tpuctl.emulator.storage.listing import list_objects
from tpuctl.emulator.storage.records import Stored, check_object_name, read_conditions
from tpuctl.emulator.storage.refusals import refuse
from tpuctl.emulator.storage.requests import PIECE_BYTES, Reply, Request
from tpuctl.emulator.storage.shelf import Shelf, Upload
from tpuctl.emulator.storage.uploads import cancel, insert, read_document, resume, writable

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
