"""Create objects from others: compose, copy, move."""

from contextlib import ExitStack
from functools import partial

from tpuctl.emulator.errors import storage_error
from tpuctl.emulator.http import PIECE_BYTES, Reply, Request
from tpuctl.emulator.storage.objects import Buckets
from tpuctl.emulator.storage.resources import StoredObject, check_object_name, read_conditions
from tpuctl.emulator.storage.uploads import Declared, read_document, store_object, writable

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
