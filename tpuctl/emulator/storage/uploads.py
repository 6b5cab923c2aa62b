"""New objects in Cloud Storage: uploads (media, multipart, resumable), compose, copy and move."""

import json
import re
import secrets
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import BinaryIO

from tpuctl.emulator.errors import StorageError, storage_error
from tpuctl.emulator.http import PIECE_BYTES, ConnectionCut, Headers, Reply, Request
from tpuctl.emulator.methods import Document
from tpuctl.emulator.multipart import read_parts
from tpuctl.emulator.storage._checksums import Checksums
from tpuctl.emulator.storage.objects import Buckets, Session, Upload
from tpuctl.emulator.storage.resources import (
    WRITABLE,
    StoredObject,
    check_object_name,
    read_conditions,
    read_whole,
)
from tpuctl.storage.local import open_own

CHUNK_BYTES = 256 << 10
_LARGEST_MULTIPART_BYTES = 256 << 20
_LARGEST_METADATA_BYTES = 1 << 20
_RANGE = re.compile(r"bytes (?:(?P<first>\d+)-(?P<last>\d+|\*)|\*)/(?:(?P<total>\d+)|\*)")


@dataclass(frozen=True)
class Declared:
    """What a request declares about its object."""

    name: str
    fields: Document
    crc32c: str | None = None
    md5: str | None = None


@dataclass(frozen=True)
class _Chunk:
    """One chunk of a resumable upload: offset, size and total size, None if unknown.

    A request without a range, or up to `*`, is all that is left of the upload (`is_all`).
    """

    offset: int | None = None
    size: int | None = None
    total: int | None = None
    is_all: bool = False

    @property
    def is_last(self) -> bool:
        return self.is_all or self.total == (self.offset or 0) + (self.size or 0)

    def check(self, received: int) -> None:
        """Raise StorageError if the body has another size, or is too small for a chunk."""
        if self.size not in (None, received):
            raise storage_error("range_length", promised=self.size, received=received)
        if not self.is_last and received < CHUNK_BYTES:
            raise storage_error("small_chunk", received=received)


def insert(buckets: Buckets, request: Request) -> Reply:
    """Upload an object, or start a resumable upload, depending on `uploadType`."""
    kind = request.query.get("uploadType")
    if kind is None:
        raise storage_error("required", field="uploadType")
    if kind not in _KINDS:
        raise storage_error("upload_type", value=kind)
    buckets.bucket(request.names["bucket"])
    return _KINDS[kind](buckets, request)


def insert_empty(buckets: Buckets, request: Request) -> Reply:
    """Create an object without bytes from its metadata, outside of `/upload`."""
    metadata = read_document(request.body.read(_LARGEST_METADATA_BYTES))
    return store_object(buckets, request, _declared(request, metadata), ())


def name_of_upload(buckets: Buckets, request: Request) -> str:
    """Return the name of the object that a request uploads; "" if unknown."""
    if session := buckets.sessions.get(request.query.get("upload_id", "")):
        return session.name
    if name := request.query.get("name"):
        return name
    head = request.body.peek()
    if request.query.get("uploadType") == "multipart":
        head = re.split(rb"\r?\n--", re.split(rb"\r?\n\r?\n", head, maxsplit=1)[-1], maxsplit=1)[0]
    with suppress(StorageError):
        return str(read_document(head).get("name") or "")
    return ""


def _media(buckets: Buckets, request: Request) -> Reply:
    content_type = request.headers.get("Content-Type")
    declared = _declared(request, {"contentType": content_type} if content_type else {})
    return store_object(buckets, request, declared, request.body.pieces())


def _multipart(buckets: Buckets, request: Request) -> Reply:
    body = request.body.read(_LARGEST_MULTIPART_BYTES)
    try:
        parts = read_parts(body, request.headers.get("Content-Type", ""))
    except ValueError as error:
        raise storage_error("multipart", why=error) from None
    if len(parts) != 2:
        raise storage_error("multipart", why="it must have two parts")
    (_, text), (headers, data) = parts
    media_type, metadata = headers.get("Content-Type"), read_document(text)
    content_type = metadata.setdefault("contentType", media_type)
    if media_type and content_type != media_type:
        raise storage_error("types_differ", media=media_type, declared=content_type)
    return store_object(buckets, request, _declared(request, metadata), [data])


def store_object(
    buckets: Buckets,
    request: Request,
    declared: Declared,
    pieces: Iterable[bytes],
    *,
    components: int = 0,
) -> Reply:
    """Write bytes to a new file, and create an object from it."""
    file, sums = buckets.new_file(), Checksums()
    try:
        with open_own(file, "xb", private=True) as target:
            for piece in pieces:
                target.write(piece)
                sums.add(piece)
        check_sums(sums, declared.crc32c, declared.md5)
        bucket = request.names["bucket"]
        upload = Upload(bucket, declared.name, file, sums, declared.fields, components)
        stored = buckets.put(upload, read_conditions(request.query))
        return Reply(document=stored.resource(request.base_url))
    finally:
        file.unlink(missing_ok=True)


def _start(buckets: Buckets, request: Request) -> Reply:
    metadata = read_document(request.body.read(_LARGEST_METADATA_BYTES) or b"{}")
    if content_type := request.headers.get("X-Upload-Content-Type"):
        metadata.setdefault("contentType", content_type)
    declared = _declared(request, metadata)
    session = Session(
        id=secrets.token_urlsafe(32),
        bucket=request.names["bucket"],
        name=declared.name,
        fields=declared.fields,
        conditions=read_conditions(request.query),
        crc32c=declared.crc32c,
        md5=declared.md5,
        total=read_whole(request.headers, "X-Upload-Content-Length"),
    )
    buckets.session_file(session).touch()
    buckets.save_session(session)
    uploads_url = f"{request.base_url}/upload/storage/v1/b/{session.bucket}/o"
    location = f"{uploads_url}?uploadType=resumable&upload_id={session.id}"
    return Reply(headers={"Location": location, "X-GUploader-UploadID": session.id})


_KINDS = {"media": _media, "multipart": _multipart, "resumable": _start}


def resume(buckets: Buckets, request: Request) -> Reply:
    """Receive the next chunk of a resumable upload, or report how much has arrived."""
    identity = request.query.get("upload_id", "")
    with buckets.session_lock(identity):
        session = buckets.session(identity)
        if session.done:
            return Reply(document=session.done)
        chunk = _read_chunk(request, session)
        persisted = _append(buckets.session_file(session), request, chunk)
        if persisted == chunk.total or chunk.is_all:
            return _complete(buckets, request, session)
    headers = {"Range": f"bytes=0-{persisted - 1}"} if persisted else {}
    # Browsers and some proxies treat 308 as a redirect.
    if request.headers.get("X-GUploader-No-308", "").lower() == "yes":
        return Reply(headers={"X-HTTP-Status-Code-Override": "308", **headers})
    return Reply(308, headers=headers)


def cancel(buckets: Buckets, request: Request) -> Reply:
    """Cancel a resumable upload; the service reports even a successful cancellation as an error."""
    session = buckets.session(request.query.get("upload_id", ""))
    buckets.save_session(replace(session, cancelled=True))
    raise storage_error("cancelled")


def _read_chunk(request: Request, session: Session) -> _Chunk:
    text = request.headers.get("Content-Range")
    if text is None:
        return _Chunk(offset=0, is_all=True)
    found = _RANGE.fullmatch(text)
    if not found:
        raise storage_error("content_range", value=text)
    total = int(found["total"]) if found["total"] else None
    if total is not None and session.total not in (None, total):
        raise storage_error("total", total=total, declared=session.total)
    if found["first"] is None:
        return _Chunk(total=total)
    first = int(found["first"])
    if found["last"] == "*":
        return _Chunk(first, None if total is None else total - first, total, is_all=total is None)
    last = int(found["last"])
    if last < first or (total is not None and last >= total):
        raise storage_error("content_range", value=text)
    return _Chunk(first, last - first + 1, total)


def _append(file: Path, request: Request, chunk: _Chunk) -> int:
    """Append a chunk, without the bytes that arrived before; returns the new size."""
    with file.open("r+b") as target:
        before = target.seek(0, 2)
        if chunk.offset is None:
            return before
        if chunk.offset > before:
            raise storage_error("gap", offset=chunk.offset, persisted=before)
        try:
            received = _write_new(request, target, before - chunk.offset)
        except ConnectionCut:
            # The service keeps the bytes that arrived, in units of 256 KiB.
            target.truncate(_whole_units(before, target.tell()))
            raise
        try:
            chunk.check(received)
        except StorageError:
            target.truncate(before)
            raise
        if not chunk.is_last:
            target.truncate(_whole_units(before, target.tell()))
        return target.seek(0, 2)


def _write_new(request: Request, target: BinaryIO, known: int) -> int:
    """Write a body without its first `known` bytes; returns the length of the body."""
    received = 0
    for piece in request.body.pieces():
        target.write(piece[max(0, known - received) :])
        received += len(piece)
    return received


def _whole_units(before: int, after: int) -> int:
    return max(before, after // CHUNK_BYTES * CHUNK_BYTES)


def _complete(buckets: Buckets, request: Request, session: Session) -> Reply:
    file, sums = buckets.session_file(session), Checksums()
    with file.open("rb") as arrived:
        while piece := arrived.read(PIECE_BYTES):
            sums.add(piece)
    upload = Upload(session.bucket, session.name, file, sums, session.fields)
    hashes = read_hashes(request.headers)
    try:
        check_sums(sums, session.crc32c, session.md5)
        check_sums(sums, hashes.get("crc32c"), hashes.get("md5"))
        document = buckets.put(upload, session.conditions).resource(request.base_url)
    except StorageError:
        buckets.save_session(replace(session, cancelled=True))
        raise
    buckets.save_session(replace(session, done=document))
    return Reply(document=document)


def check_sums(sums: Checksums, crc32c: str | None, md5: str | None) -> None:
    """Raise StorageError if the checksums differ from the declared ones."""
    if crc32c and crc32c != sums.crc32c:
        raise storage_error("crc32c", declared=crc32c, actual=sums.crc32c)
    if md5 and md5 != sums.md5:
        raise storage_error("md5", declared=md5, actual=sums.md5)


def _declared(request: Request, metadata: Document) -> Declared:
    in_query, in_body = request.query.get("name"), metadata.get("name")
    if in_query and in_body and in_query != in_body:
        raise storage_error("names_differ", body=in_body, query=in_query)
    hashes = read_hashes(request.headers)
    return Declared(
        check_object_name(str(in_query or in_body or "")),
        writable(metadata),
        metadata.get("crc32c") or hashes.get("crc32c"),
        metadata.get("md5Hash") or hashes.get("md5"),
    )


def writable(metadata: Document) -> Document:
    """Select the fields of an object that a client may set."""
    return {key: metadata[key] for key in WRITABLE if metadata.get(key)}


def read_hashes(headers: Headers) -> dict[str, str]:
    """Read the checksums in a header such as `X-Goog-Hash: crc32c=n03x6A==,md5=...`."""
    pairs = (part.strip().partition("=") for part in headers.get("X-Goog-Hash", "").split(","))
    return {name: value for name, _, value in pairs if value}


def read_document(text: bytes) -> Document:
    """Read a body that must be a JSON object; null counts as empty."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise storage_error("json") from None
    if not isinstance(document, dict | None):
        raise storage_error("json")
    return document or {}


_LARGEST_BODY_BYTES = 4 << 20
_MOST_SOURCES = 32


def compose(buckets: Buckets, request: Request) -> Reply:
    """Concatenate objects, each with its own preconditions, into a new one."""
    bucket, name = request.names.values()
    body = read_document(request.body.read(_LARGEST_BODY_BYTES))
    sources = body.get("sourceObjects") or []
    if not sources:
        raise storage_error("no_sources")
    if len(sources) > _MOST_SOURCES:
        raise storage_error("many_sources", count=len(sources))
    parts: list[StoredObject] = []
    with ExitStack() as stack:
        files = []
        for source in sources:
            with buckets.lock:
                stored = buckets.get(bucket, str(source.get("name") or ""), source)
                read_conditions(source.get("objectPreconditions") or {}).check(stored)
                files.append(stack.enter_context(buckets.path(stored).open("rb")))
            parts.append(stored)
        declared = Declared(check_object_name(name), writable(body.get("destination") or {}))
        pieces = (piece for file in files for piece in iter(partial(file.read, PIECE_BYTES), b""))
        components = sum(max(1, part.components) for part in parts)
        return store_object(buckets, request, declared, pieces, components=components)


def rewrite(buckets: Buckets, request: Request) -> Reply:
    """Copy an object with a rewrite, which is always complete after one request."""
    stored = copied(buckets, request)
    size = str(stored.size_bytes)
    answer = {"kind": "storage#rewriteResponse", "totalBytesRewritten": size, "objectSize": size}
    return Reply(document={**answer, "done": True, "resource": stored.resource(request.base_url)})


def copy(buckets: Buckets, request: Request) -> Reply:
    """Copy an object."""
    return Reply(document=copied(buckets, request).resource(request.base_url))


def move(buckets: Buckets, request: Request) -> Reply:
    """Give an object another name in its bucket."""
    if request.names["object"] == request.names["name"]:
        raise storage_error("same_object")
    return Reply(document=copied(buckets, request, moved=True).resource(request.base_url))


def copied(buckets: Buckets, request: Request, *, moved: bool = False) -> StoredObject:
    """Make the copy; metadata that the request does not set comes from the source."""
    names, query = request.names, request.query
    body = read_document(request.body.read(_LARGEST_BODY_BYTES) or b"{}")
    target = names.get("bucket_2", names["bucket"]), check_object_name(names["name"])
    with buckets.lock:
        generation = {"generation": query.get("sourceGeneration")}
        source = buckets.get(names["bucket"], names["object"], generation)
        read_conditions(query, "ifSource").check(source)
        fields = writable(body) or source.fields
        conditions = read_conditions(query)
        return buckets.copy(source, target, fields, conditions, moved=moved)
