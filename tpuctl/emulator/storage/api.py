"""Cloud Storage over HTTP: routes requests to methods, and applies planned faults."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import NoReturn
from urllib.parse import parse_qsl

from tpuctl.emulator.errors import StorageError, storage_error
from tpuctl.emulator.faults import STORAGE_METHODS, FaultCounts, StorageFault
from tpuctl.emulator.http import (
    ConnectionCut,
    HttpApi,
    Reply,
    Request,
    Route,
    text_reply,
)
from tpuctl.emulator.methods import Document
from tpuctl.emulator.service import Emulator
from tpuctl.emulator.storage.objects import Bucket, Buckets
from tpuctl.emulator.storage.reading import (
    MOST_ITEMS,
    current_object,
    get_media,
    list_objects,
)
from tpuctl.emulator.storage.resources import (
    WRITABLE,
    bucket_fields,
    merged,
    read_conditions,
    read_whole,
)
from tpuctl.emulator.storage.uploads import (
    cancel,
    compose,
    copy,
    insert,
    insert_empty,
    move,
    name_of_upload,
    read_document,
    resume,
    rewrite,
)
from tpuctl.emulator.storage.xml import xml_api
from tpuctl.errors import WriteError

Action = Callable[[Buckets, Request], Reply]

_UPLOAD_METHODS = ("storage_insert", "storage_upload_chunk")
_LARGEST_BODY_BYTES = 4 << 20
_KINDS = ("", "/upload", "/download", "/resumable/upload")
_MICROSECONDS = 10**6


def storage_apis(emulator: Emulator, folder: Path) -> tuple[HttpApi, HttpApi]:
    """Serve the JSON and the XML API of Cloud Storage; the objects are kept in `folder`.

    The XML API accepts every path.
    """
    api = StorageApi(emulator, folder)
    return _json_api(api), xml_api(api.method)


def _json_api(api: "StorageApi") -> HttpApi:
    buckets, target = "/storage/v1/b", "/b/{bucket_2}/o/{name}"
    objects = f"{buckets}/{{bucket}}/o"
    uploads = [f"{kind}/upload{buckets}/{{bucket}}/o" for kind in ("", "/resumable")]
    routes = [
        *(Route(f"POST {path}", api.upload) for path in uploads),
        *(Route(f"PUT {path}", api.upload) for path in uploads),
        *(Route(f"DELETE {path}", api.method("storage_upload_chunk", cancel)) for path in uploads),
        Route(f"GET {objects}/{{object}}", api.get_object),
        Route(f"GET /download{objects}/{{object}}", api.get_object),
        Route(f"DELETE {objects}/{{object}}", api.method("storage_delete", _delete)),
        Route(f"PATCH {objects}/{{object}}", api.method("storage_patch", _patch)),
        Route(f"PUT {objects}/{{object}}", api.method("storage_patch", _update)),
        Route(f"POST {objects}/{{object}}/compose", api.method("storage_compose", compose)),
        Route(f"POST {objects}/{{object}}/rewriteTo{target}", api.method("storage_copy", rewrite)),
        Route(f"POST {objects}/{{object}}/copyTo{target}", api.method("storage_copy", copy)),
        Route(f"POST {objects}/{{object}}/moveTo/o/{{name}}", api.method("storage_move", move)),
        Route(f"GET {objects}", api.method("storage_list", _list)),
        Route(f"POST {objects}", api.method("storage_insert", insert_empty)),
        Route(f"GET {buckets}/{{bucket}}", api.method("storage_get_bucket", _get_bucket)),
        Route(
            f"GET {buckets}/{{bucket}}/storageLayout",
            api.method("storage_get_bucket", _storage_layout),
        ),
        Route(f"GET {buckets}/{{bucket}}/iam", api.method("storage_get_bucket", _get_policy)),
        Route(
            f"GET {buckets}/{{bucket}}/iam/testPermissions",
            api.method("storage_get_bucket", _test_permissions),
        ),
        Route(f"PUT {buckets}/{{bucket}}/iam", api.method("storage_patch_bucket", _set_policy)),
        Route(
            f"GET {buckets}/{{bucket}}/managedFolders",
            api.method("storage_get_bucket", _managed_folders),
        ),
        Route(f"PATCH {buckets}/{{bucket}}", api.method("storage_patch_bucket", _patch_bucket)),
        Route(f"PUT {buckets}/{{bucket}}", api.method("storage_patch_bucket", _update_bucket)),
        Route(f"DELETE {buckets}/{{bucket}}", api.method("storage_delete_bucket", _delete_bucket)),
        Route(f"GET {buckets}", api.method("storage_list_buckets", _list_buckets)),
        Route(f"POST {buckets}", api.method("storage_insert_bucket", _insert_bucket)),
    ]
    prefixes = tuple(f"{kind}/storage/v1/" for kind in _KINDS)
    return HttpApi(prefixes, routes, storage_error)


class StorageApi:
    """The Cloud Storage API of one emulator."""

    def __init__(self, emulator: Emulator, folder: Path) -> None:
        self._emulator, scenario = emulator, emulator.scenario
        self._buckets = Buckets(
            folder, scenario.buckets, lambda: int(emulator.now().timestamp() * _MICROSECONDS)
        )
        self._faults = FaultCounts(scenario.storage_faults, self._buckets.fault_counts)
        self._lock = threading.Lock()

    def method(self, name: str, action: Action) -> Callable[[Request], Reply]:
        """Return the handler of a method: its action and its planned faults."""
        return partial(self._answer, name, action)

    def get_object(self, request: Request) -> Reply:
        """Return an object, or its bytes with `alt=media`; errors are then plain text."""
        if request.query.get("alt") != "media":
            return self._answer("storage_stat", _get_metadata, request)
        try:
            return self._answer("storage_get", get_media, request)
        except StorageError as error:
            if error.http_status == 304:
                raise
            return text_reply(
                error.message,
                "text/html; charset=UTF-8",
                status=error.http_status,
                headers=error.http_headers,
            )

    def upload(self, request: Request) -> Reply:
        """Receive an upload, or part of one, with either verb."""
        if "upload_id" in request.query:
            return self._answer("storage_upload_chunk", resume, request)
        return self._answer("storage_insert", insert, request)

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
            _replace_reply(reply, fault, about)
        return replace(reply, fault=fault.byte_fault) if fault and reply.content else reply

    def _name_in_faults(self, method: str, request: Request) -> str:
        """Return BUCKET/OBJECT, which the faults of a scenario match."""
        bucket, *name = request.names.values() or ("",)
        if method in _UPLOAD_METHODS and "object" not in request.names:
            name = [name_of_upload(self._buckets, request)]
        elif method == "storage_list":
            name = [request.query.get("prefix", "")]
        elif "name" in request.names:
            bucket = request.names.get("bucket_2", bucket)
            name = [request.names["name"]]
        return "/".join([bucket, *name])

    def _due(self, method: str, about: str) -> StorageFault | None:
        with self._lock:
            before = list(self._faults.counts)
            due = self._faults.due(lambda plan: plan.on == method and fnmatchcase(about, plan.name))
            if self._faults.counts != before:
                self._buckets.save_fault_counts(self._faults.counts)
        return due[0] if due else None

    def _apply_fault(self, fault: StorageFault, request: Request, about: str) -> None:
        """Apply a fault before the request is executed, or to the bytes of an upload."""
        damage = fault.byte_fault
        if damage is None:
            raise _planned_error(fault, about)
        if fault.on in _UPLOAD_METHODS and not request.body.is_empty:
            request.body.fault = damage
        elif fault.on != "storage_get":
            for _ in damage.apply(b"?", damage.after_bytes):
                pass


def _replace_reply(reply: Reply, fault: StorageFault, about: str) -> NoReturn:
    """Replace a reply by a fault, after the request was executed."""
    if reply.content:
        reply.content.close()
    if fault.error == "stall":
        time.sleep(fault.for_s)
    if fault.byte_fault:
        raise ConnectionCut
    raise _planned_error(fault, about)


def _planned_error(fault: StorageFault, about: str) -> StorageError:
    return storage_error(fault.error, permission=STORAGE_METHODS[fault.on], path=about)


def _get_metadata(buckets: Buckets, request: Request) -> Reply:
    stored = current_object(buckets, request)
    return Reply(document=stored.resource(request.base_url), headers={"ETag": stored.etag})


def _delete(buckets: Buckets, request: Request) -> Reply:
    bucket, name = request.names.values()
    buckets.remove(bucket, name, request.query, read_conditions(request.query))
    return Reply(204)


def _change(buckets: Buckets, request: Request, *, whole: bool) -> Reply:
    """Change the metadata of an object; `whole` replaces all of it."""
    bucket, name = request.names.values()
    body = read_document(request.body.read(_LARGEST_BODY_BYTES) or b"{}")
    changes = {key: body[key] for key in WRITABLE if key in body}
    changed = buckets.patch(
        bucket,
        name,
        request.query,
        read_conditions(request.query),
        lambda old: merged({} if whole else old, changes),
    )
    return Reply(document=changed.resource(request.base_url))


def _list(buckets: Buckets, request: Request) -> Reply:
    with buckets.lock:
        bucket = buckets.bucket(request.names["bucket"])
        return Reply(document=list_objects(bucket, request.query, request.base_url))


_patch, _update = partial(_change, whole=False), partial(_change, whole=True)


def _get_bucket(buckets: Buckets, request: Request) -> Reply:
    bucket = buckets.bucket(request.names["bucket"])
    read_conditions(request.query).check(bucket, reading=True)
    return Reply(document=bucket.resource(request.base_url))


def _storage_layout(buckets: Buckets, request: Request) -> Reply:
    bucket = buckets.bucket(request.names["bucket"])
    layout = {"kind": "storage#storageLayout", "bucket": bucket.name, "location": bucket.location}
    flat = {"hierarchicalNamespace": {"enabled": False}}
    return Reply(document={**layout, "locationType": bucket.location_type, **flat})


def _managed_folders(buckets: Buckets, request: Request) -> Reply:
    """List none; gcloud asks before it deletes a bucket."""
    buckets.bucket(request.names["bucket"])
    return Reply(document={"kind": "storage#managedFolders"})


def _get_policy(buckets: Buckets, request: Request) -> Reply:
    return Reply(document=buckets.bucket(request.names["bucket"]).policy)


def _set_policy(buckets: Buckets, request: Request) -> Reply:
    body = read_document(request.body.read(_LARGEST_BODY_BYTES))
    changed = buckets.set_policy(request.names["bucket"], body)
    return Reply(document=changed.policy)


def _test_permissions(buckets: Buckets, request: Request) -> Reply:
    """Grant all that the client asks for: nothing enforces the policy."""
    buckets.bucket(request.names["bucket"])
    document: Document = {"kind": "storage#testIamPermissionsResponse"}
    asked = [text for key, text in parse_qsl(request.query_text) if key == "permissions"]
    return Reply(document={**document, "permissions": asked})


def _list_buckets(buckets: Buckets, request: Request) -> Reply:
    prefix, after = request.query.get("prefix", ""), request.query.get("pageToken", "")
    most = min(read_whole(request.query, "maxResults") or MOST_ITEMS, MOST_ITEMS)
    found = sorted(name for name in buckets.buckets if name.startswith(prefix) and name > after)
    page = [buckets.buckets[name].resource(request.base_url) for name in found[:most]]
    document: Document = {"kind": "storage#buckets", **({"items": page} if page else {})}
    if found[most:]:
        document["nextPageToken"] = page[-1]["name"]
    return Reply(document=document)


def _insert_bucket(buckets: Buckets, request: Request) -> Reply:
    body = read_document(request.body.read(_LARGEST_BODY_BYTES))
    location = str(body.pop("location", None) or "US").upper()
    bucket = Bucket(str(body.get("name") or ""), location, bucket_fields(body))
    bucket = buckets.add_bucket(bucket)
    return Reply(document=bucket.resource(request.base_url))


def _change_bucket(buckets: Buckets, request: Request, *, whole: bool) -> Reply:
    body = bucket_fields(read_document(request.body.read(_LARGEST_BODY_BYTES) or b"{}"))
    changed = buckets.change_bucket(
        request.names["bucket"],
        read_conditions(request.query),
        lambda old: merged({} if whole else old, body),
    )
    return Reply(document=changed.resource(request.base_url))


def _delete_bucket(buckets: Buckets, request: Request) -> Reply:
    buckets.remove_bucket(request.names["bucket"], read_conditions(request.query))
    return Reply(204)


_patch_bucket, _update_bucket = (partial(_change_bucket, whole=whole) for whole in (False, True))
