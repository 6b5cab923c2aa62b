"""The three ways to bring bytes: as they are, with their metadata, or piece by piece."""

import json
import re
import secrets
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from tpuctl.emulator.methods import Document
from tpuctl.emulator.storage._checksums import Checksums, checksums_of
from tpuctl.emulator.storage.objects import Session, Shelf, Upload
from tpuctl.emulator.storage.records import WRITABLE, check_object_name, read_conditions, whole
from tpuctl.emulator.storage.requests import Cut, Headers, Reply, Request, StorageRefusal, refuse

CHUNK_BYTES = 256 << 10
_LARGEST_MULTIPART_BYTES = 256 << 20
_LARGEST_METADATA_BYTES = 1 << 20
_BOUNDARY = re.compile(r'boundary="?([^";]+)"?', re.IGNORECASE)
_RANGE = re.compile(r"bytes (?:(?P<first>\d+)-(?P<last>\d+)|\*)/(?:(?P<total>\d+)|\*)")


@dataclass(frozen=True)
class _Declared:
    """What a request says of the bytes it brings."""

    name: str
    fields: Document
    crc32c: str | None
    md5: str | None


@dataclass(frozen=True)
class _Piece:
    """Where a piece begins, how long it is, how large everything will be; None is unknown."""

    first: int | None = None
    promised: int | None = None
    total: int | None = None
    is_all: bool = False

    @property
    def is_last(self) -> bool:
        return self.is_all or self.total == (self.first or 0) + (self.promised or 0)

    def check(self, received: int) -> None:
        """Refuse a body that is not as long as was promised, or too short to go on from."""
        if self.promised not in (None, received):
            raise refuse("range_length", promised=self.promised, received=received)
        if not self.is_last and received < CHUNK_BYTES:
            raise refuse("small_chunk", received=received)


def insert(shelf: Shelf, request: Request) -> Reply:
    """Take an object as the parameter `uploadType` says, or begin to."""
    kind = request.query.get("uploadType")
    if kind is None:
        raise refuse("required", field="uploadType")
    if kind not in _KINDS:
        raise refuse("upload_type", value=kind)
    shelf.bucket(request.names[0])
    return _KINDS[kind](shelf, request)


def name_of(shelf: Shelf, request: Request) -> str:
    """What the object of an upload will be called, as far as that can be told; refuses nothing."""
    if session := shelf.sessions.get(request.query.get("upload_id", "")):
        return session.name
    if name := request.query.get("name"):
        return name
    head = request.body.begin()
    if request.query.get("uploadType") == "multipart":
        head = head.partition(b"\r\n\r\n")[2].partition(b"\r\n--")[0]
    with suppress(StorageRefusal):
        return str(read_document(head).get("name") or "")
    return ""


def _media(shelf: Shelf, request: Request) -> Reply:
    content_type = request.headers.get("Content-Type")
    declared = _declared(request, {"contentType": content_type} if content_type else {})
    file, sums = shelf.new_file(), Checksums()
    size_bytes = 0
    try:
        with file.open("wb") as target:
            for piece in request.body.pieces():
                target.write(piece)
                sums.add(piece)
                size_bytes += len(piece)
        return _finish(shelf, request, declared, file, size_bytes, sums)
    finally:
        file.unlink(missing_ok=True)


def _multipart(shelf: Shelf, request: Request) -> Reply:
    found = _BOUNDARY.search(request.headers.get("Content-Type", ""))
    if not found:
        raise refuse("multipart", why="there is no boundary")
    body = request.body.read(_LARGEST_MULTIPART_BYTES)
    (_, text), (media_type, data) = _parts(body, found[1].encode())
    metadata = read_document(text)
    said = metadata.setdefault("contentType", media_type)
    if media_type and said != media_type:
        raise refuse("types_differ", media=media_type, declared=said)
    declared = _declared(request, metadata)
    file, sums = shelf.new_file(), Checksums()
    sums.add(data)
    try:
        file.write_bytes(data)
        return _finish(shelf, request, declared, file, len(data), sums)
    finally:
        file.unlink(missing_ok=True)


def _finish(
    shelf: Shelf,
    request: Request,
    declared: _Declared,
    file: Path,
    size_bytes: int,
    sums: Checksums,
) -> Reply:
    upload = Upload(
        request.names[0], declared.name, file, size_bytes, sums.crc32c, sums.md5, declared.fields
    )
    _check_sums(upload, declared.crc32c, declared.md5)
    return Reply(document=shelf.put(upload, read_conditions(request.query)).resource())


def _begin(shelf: Shelf, request: Request) -> Reply:
    metadata = read_document(request.body.read(_LARGEST_METADATA_BYTES) or b"{}")
    if content_type := request.headers.get("X-Upload-Content-Type"):
        metadata.setdefault("contentType", content_type)
    declared = _declared(request, metadata)
    session = Session(
        id=secrets.token_urlsafe(32),
        bucket=request.names[0],
        name=declared.name,
        fields=declared.fields,
        conditions=read_conditions(request.query),
        crc32c=declared.crc32c,
        md5=declared.md5,
        total=whole(request.headers, "X-Upload-Content-Length"),
    )
    shelf.session_file(session).touch()
    shelf.note_session(session)
    place = f"http://{request.headers['Host']}/upload/storage/v1/b/{session.bucket}/o"
    location = f"{place}?uploadType=resumable&upload_id={session.id}"
    return Reply(headers={"Location": location, "X-GUploader-UploadID": session.id})


_KINDS = {"media": _media, "multipart": _multipart, "resumable": _begin}


def resume(shelf: Shelf, request: Request) -> Reply:
    """Take the next piece of a resumable upload, or say how much has arrived."""
    identity = request.query.get("upload_id", "")
    with shelf.session_lock(identity):
        session = shelf.session(identity)
        if session.done:
            return Reply(document=session.done)
        piece = _piece(request, session)
        persisted = _take(shelf.session_file(session), request, piece)
        if persisted == piece.total or piece.is_all:
            return _complete(shelf, request, session, persisted)
    return Reply(308, headers={"Range": f"bytes=0-{persisted - 1}"} if persisted else {})


def cancel(shelf: Shelf, request: Request) -> Reply:
    """End a resumable upload; this succeeds with an error, as it does with the service."""
    session = shelf.session(request.query.get("upload_id", ""))
    shelf.note_session(replace(session, cancelled=True))
    raise refuse("cancelled")


def _piece(request: Request, session: Session) -> _Piece:
    text = request.headers.get("Content-Range")
    if text is None:
        return _Piece(first=0, is_all=True)
    found = _RANGE.fullmatch(text)
    if not found:
        raise refuse("content_range", value=text)
    total = int(found["total"]) if found["total"] else None
    if total is not None and session.total not in (None, total):
        raise refuse("total", total=total, declared=session.total)
    if found["first"] is None:
        return _Piece(total=total)
    first, last = int(found["first"]), int(found["last"])
    if last < first or (total is not None and last >= total):
        raise refuse("content_range", value=text)
    return _Piece(first, last - first + 1, total)


def _take(file: Path, request: Request, piece: _Piece) -> int:
    """Write what is new in a piece; gives how many bytes are there now."""
    with file.open("r+b") as target:
        before = target.seek(0, 2)
        if piece.first is None:
            return before
        if piece.first > before:
            raise refuse("gap", offset=piece.first, persisted=before)
        try:
            received = _write_new(request, target, before - piece.first)
        except Cut:
            # The service keeps what has arrived, in whole units.
            target.truncate(_in_units(before, target.tell()))
            raise
        try:
            piece.check(received)
        except StorageRefusal:
            target.truncate(before)
            raise
        if not piece.is_last:
            target.truncate(_in_units(before, target.tell()))
        return target.seek(0, 2)


def _write_new(request: Request, target: BinaryIO, known: int) -> int:
    """Write a body whose first `known` bytes are there already; gives its length."""
    received = 0
    for part in request.body.pieces():
        target.write(part[max(0, known - received) :])
        received += len(part)
    return received


def _in_units(before: int, after: int) -> int:
    return max(before, after // CHUNK_BYTES * CHUNK_BYTES)


def _complete(shelf: Shelf, request: Request, session: Session, size_bytes: int) -> Reply:
    file = shelf.session_file(session)
    with file.open("rb") as arrived:
        sums = checksums_of(arrived)
    upload = Upload(
        session.bucket, session.name, file, size_bytes, sums.crc32c, sums.md5, session.fields
    )
    late = _hashes(request.headers)
    try:
        _check_sums(upload, session.crc32c, session.md5)
        _check_sums(upload, late.get("crc32c"), late.get("md5"))
        document = shelf.put(upload, session.conditions).resource()
    except StorageRefusal:
        shelf.note_session(replace(session, cancelled=True))
        raise
    shelf.note_session(replace(session, done=document))
    return Reply(document=document)


def _check_sums(upload: Upload, crc32c: str | None, md5: str | None) -> None:
    """Refuse bytes whose checksums are not those that were declared."""
    if crc32c and crc32c != upload.crc32c:
        raise refuse("crc32c", declared=crc32c, actual=upload.crc32c)
    if md5 and md5 != upload.md5:
        raise refuse("md5", declared=md5, actual=upload.md5)


def _declared(request: Request, metadata: Document) -> _Declared:
    query, said = request.query.get("name"), metadata.get("name")
    if query and said and query != said:
        raise refuse("names_differ", body=said, query=query)
    late = _hashes(request.headers)
    return _Declared(
        check_object_name(str(query or said or "")),
        writable(metadata),
        metadata.get("crc32c") or late.get("crc32c"),
        metadata.get("md5Hash") or late.get("md5"),
    )


def writable(metadata: Document) -> Document:
    """Those fields of an object that its owner may set."""
    return {key: metadata[key] for key in WRITABLE if metadata.get(key)}


def _hashes(headers: Headers) -> dict[str, str]:
    """Checksums in a header such as `X-Goog-Hash: crc32c=n03x6A==,md5=...`."""
    pairs = (part.strip().partition("=") for part in headers.get("X-Goog-Hash", "").split(","))
    return {name: value for name, _, value in pairs if value}


def _parts(body: bytes, boundary: bytes) -> list[tuple[str | None, bytes]]:
    """The two parts of a multipart body: type and bytes of each."""
    mark = b"\r\n--" + boundary
    pieces = (b"\r\n" + body).split(mark)
    if len(pieces) != 4 or not pieces[3].startswith(b"--"):
        raise refuse("multipart", why="it must have two parts and an end")
    return [_part(piece) for piece in pieces[1:3]]


def _part(piece: bytes) -> tuple[str | None, bytes]:
    head, separator, content = piece.partition(b"\r\n\r\n")
    if not separator:
        raise refuse("multipart", why="a part has no end of its headers")
    for line in head.decode("latin-1").splitlines():
        name, _, value = line.partition(":")
        if name.strip().lower() == "content-type":
            return value.strip(), content
    return None, content


def read_document(text: bytes) -> Document:
    """Read a body that must be a JSON object."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise refuse("json") from None
    if not isinstance(document, dict):
        raise refuse("json")
    return document
