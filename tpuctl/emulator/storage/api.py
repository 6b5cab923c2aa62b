"""Cloud Storage over HTTP: which method a request is, its planned faults, and its answer."""

import gzip
import io
import re
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from email.utils import formatdate
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import NoReturn

from tpuctl.emulator.errors import StorageError, storage_error
from tpuctl.emulator.faults import STORAGE_METHODS, FaultCounts, StorageFault
from tpuctl.emulator.http import (
    PIECE_BYTES,
    ConnectionCut,
    Content,
    HttpApi,
    Reply,
    Request,
    Route,
    text_reply,
)
from tpuctl.emulator.methods import Document
from tpuctl.emulator.service import Emulator
from tpuctl.emulator.storage.objects import Buckets, list_objects
from tpuctl.emulator.storage.resources import StoredObject, check_object_name, read_conditions
from tpuctl.emulator.storage.uploads import (
    Declared,
    cancel,
    insert,
    name_of_upload,
    read_document,
    resume,
    store_object,
    writable,
)
from tpuctl.errors import WriteError

Action = Callable[[Buckets, Request], Reply]

_UPLOAD_METHODS = ("storage_insert", "storage_upload_chunk")
_LARGEST_BODY_BYTES = 4 << 20
_MOST_SOURCES = 32
_MICROSECONDS = 10**6
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


def storage_api(emulator: Emulator, folder: Path) -> HttpApi:
    """Serve the JSON API of Cloud Storage; the objects are kept in `folder`."""
    api = StorageApi(emulator, folder)
    buckets, uploads = "/storage/v1/b", "/upload/storage/v1/b/{bucket}/o"
    objects = f"{buckets}/{{bucket}}/o"
    routes = [
        Route(f"POST {uploads}", api.method("storage_insert", insert)),
        Route(f"PUT {uploads}", api.method("storage_upload_chunk", resume)),
        Route(f"DELETE {uploads}", api.method("storage_upload_chunk", cancel)),
        Route(f"GET {objects}/{{object}}", api.get_object),
        Route(f"GET /download{objects}/{{object}}", api.get_object),
        Route(f"DELETE {objects}/{{object}}", api.method("storage_delete", _delete)),
        Route(f"PATCH {objects}/{{object}}", api.method("storage_patch", _patch)),
        Route(f"POST {objects}/{{object}}/compose", api.method("storage_compose", _compose)),
        Route(f"GET {objects}", api.method("storage_list", _list)),
        Route(f"GET {buckets}/{{bucket}}", api.method("storage_get_bucket", _get_bucket)),
        Route(f"DELETE {buckets}/{{bucket}}", api.method("storage_delete_bucket", _delete_bucket)),
        Route(f"GET {buckets}", api.method("storage_list_buckets", _list_buckets)),
        Route(f"POST {buckets}", api.method("storage_insert_bucket", _insert_bucket)),
    ]
    prefixes = ("/storage/v1/", "/upload/storage/v1/", "/download/storage/v1/")
    return HttpApi(prefixes, routes, storage_error)


class StorageApi:
    """Cloud Storage of one emulator."""

    def __init__(self, emulator: Emulator, folder: Path) -> None:
        self._emulator, scenario = emulator, emulator.scenario
        self._buckets = Buckets(
            folder, scenario.buckets, lambda: int(emulator.now().timestamp() * _MICROSECONDS)
        )
        self._faults = FaultCounts(scenario.storage_faults, self._buckets.fault_counts)
        self._lock = threading.Lock()

    def method(self, name: str, action: Action) -> Callable[[Request], Reply]:
        """Make the answer of a method: its action, and the faults that are planned for it."""
        return partial(self._answer, name, action)

    def get_object(self, request: Request) -> Reply:
        """Return an object, or with `alt=media` its bytes; errors are then plain text."""
        if request.query.get("alt") != "media":
            return self._answer("storage_stat", _get_metadata, request)
        try:
            return self._answer("storage_get", _get_media, request)
        except StorageError as error:
            if error.http_status == 304:
                raise
            return text_reply(
                error.message,
                "text/html; charset=UTF-8",
                status=error.http_status,
                headers=error.http_headers,
            )

    def _answer(self, method: str, action: Action, request: Request) -> Reply:
        time.sleep(self._emulator.scenario.latency_ms / 1000)
        about = self._name_in_faults(method, request)
        self._emulator.requests.append((method, "", about))
        fault = self._due(method, about)
        try:
            if fault and not fault.after_accept:
                self._apply_fault(fault, request, about)
            reply = action(self._buckets, request)
        except (OSError, WriteError):
            raise storage_error("internal") from None
        if fault and fault.after_accept:
            _lose(reply, fault, about)
        return replace(reply, fault=fault.byte_fault) if fault and reply.content else reply

    def _name_in_faults(self, method: str, request: Request) -> str:
        """Return BUCKET/OBJECT, which the faults of a scenario match."""
        bucket, *name = request.names.values() or ("",)
        if method in _UPLOAD_METHODS:
            name = [name_of_upload(self._buckets, request)]
        elif method == "storage_list":
            name = [request.query.get("prefix", "")]
        return "/".join([bucket, *name])

    def _due(self, method: str, about: str) -> StorageFault | None:
        with self._lock:
            before = list(self._faults.counts)
            due = self._faults.due(lambda plan: plan.on == method and fnmatchcase(about, plan.name))
            if self._faults.counts != before:
                self._buckets.save_fault_counts(self._faults.counts)
        return due[0] if due else None

    def _apply_fault(self, fault: StorageFault, request: Request, about: str) -> None:
        """Apply a fault before the work is done, or to the bytes of an upload as they arrive."""
        damage = fault.byte_fault
        if damage is None:
            raise _planned_error(fault, about)
        if fault.on in _UPLOAD_METHODS and not request.body.is_empty:
            request.body.fault = damage
        elif fault.on != "storage_get":
            for _ in damage.apply(b"?", damage.after_bytes):
                pass


def _lose(reply: Reply, fault: StorageFault, about: str) -> NoReturn:
    """Answer with a fault instead of the reply, after the work is done."""
    if isinstance(reply.content, Content):
        reply.content.file.close()
    if fault.error == "stall":
        time.sleep(fault.for_s)
    if fault.byte_fault:
        raise ConnectionCut
    raise _planned_error(fault, about)


def _planned_error(fault: StorageFault, about: str) -> StorageError:
    return storage_error(fault.error, permission=STORAGE_METHODS[fault.on], path=about)


def _get_media(buckets: Buckets, request: Request) -> Reply:
    """Return the bytes of an object, or the range of them that is requested."""
    with buckets.lock:
        stored = _object(buckets, request)
        file = buckets.path(stored).open("rb")
    headers = _media_headers(stored)
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


def _get_metadata(buckets: Buckets, request: Request) -> Reply:
    stored = _object(buckets, request)
    return Reply(document=stored.resource(), headers={"ETag": stored.etag})


def _object(buckets: Buckets, request: Request) -> StoredObject:
    """Return the object of a request whose preconditions hold; raises StorageError."""
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
    """Read a Range header: first byte and count; None without one, or for one that is invalid."""
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


def _media_headers(stored: StoredObject) -> dict[str, str]:
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


def _delete(buckets: Buckets, request: Request) -> Reply:
    bucket, name = request.names.values()
    buckets.remove(bucket, name, request.query, read_conditions(request.query))
    return Reply(204)


def _patch(buckets: Buckets, request: Request) -> Reply:
    bucket, name = request.names.values()
    changes = read_document(request.body.read(_LARGEST_BODY_BYTES) or b"{}")
    changes = writable(changes) | {key: None for key, value in changes.items() if value is None}
    conditions = read_conditions(request.query)
    return Reply(
        document=buckets.patch(bucket, name, request.query, conditions, changes).resource()
    )


def _list(buckets: Buckets, request: Request) -> Reply:
    with buckets.lock:
        bucket = buckets.bucket(request.names["bucket"])
        return Reply(document=list_objects(bucket, request.query))


def _compose(buckets: Buckets, request: Request) -> Reply:
    """Concatenate objects, each with its own preconditions, to a new one."""
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


def _get_bucket(buckets: Buckets, request: Request) -> Reply:
    return Reply(document=buckets.bucket(request.names["bucket"]).resource())


def _list_buckets(buckets: Buckets, request: Request) -> Reply:
    prefix = request.query.get("prefix", "")
    found = [buckets.buckets[name] for name in sorted(buckets.buckets) if name.startswith(prefix)]
    document: Document = {"kind": "storage#buckets"}
    if found:
        document["items"] = [bucket.resource() for bucket in found]
    return Reply(document=document)


def _insert_bucket(buckets: Buckets, request: Request) -> Reply:
    body = read_document(request.body.read(_LARGEST_BODY_BYTES))
    location = str(body.get("location") or "US").upper()
    return Reply(document=buckets.add_bucket(str(body.get("name") or ""), location).resource())


def _delete_bucket(buckets: Buckets, request: Request) -> Reply:
    buckets.remove_bucket(request.names["bucket"])
    return Reply(204)
