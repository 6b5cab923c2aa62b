"""The part of Cloud Storage's XML API that object stores and transfer managers use."""

import math
import re
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from email.utils import mktime_tz, parsedate_tz
from functools import partial
from html import escape, unescape
from pathlib import Path
from urllib.parse import unquote

from tpuctl.emulator.errors import ServiceError, storage_error
from tpuctl.emulator.http import PIECE_BYTES, Headers, HttpApi, Reply, Request, Route, text_reply
from tpuctl.emulator.methods import Document
from tpuctl.emulator.storage._checksums import Checksums
from tpuctl.emulator.storage.objects import Bucket, Buckets
from tpuctl.emulator.storage.reading import (
    current_object,
    get_media,
    header_text,
    list_objects,
    media_headers,
)
from tpuctl.emulator.storage.resources import (
    Conditions,
    StoredObject,
    check_object_name,
    read_conditions,
    read_whole,
)
from tpuctl.emulator.storage.uploads import Declared, check_sums, copied, read_hashes, store_object
from tpuctl.storage.local import open_own

Action = Callable[[Buckets, Request], Reply]

_LARGEST_BODY_BYTES = 4 << 20
_SMALLEST_PART_BYTES = 5 << 20
_CODES = {
    401: "AuthenticationRequired", 403: "AccessDenied", 404: "NoSuchKey", 409: "Conflict",
    412: "PreconditionFailed", 416: "InvalidRange", 429: "SlowDown", 500: "InternalError",
    503: "ServiceUnavailable",
}  # fmt: skip
_CONDITIONS = {
    "x-goog-if-generation-match": "ifGenerationMatch",
    "x-goog-if-metageneration-match": "ifMetagenerationMatch",
    "x-goog-copy-source-generation": "sourceGeneration",
    "x-goog-copy-source-if-generation-match": "ifSourceGenerationMatch",
    "x-goog-copy-source-if-metageneration-match": "ifSourceMetagenerationMatch",
}
_FIELDS = {
    "Cache-Control": "cacheControl", "Content-Disposition": "contentDisposition",
    "Content-Encoding": "contentEncoding", "Content-Language": "contentLanguage",
    "Content-Type": "contentType", "x-goog-storage-class": "storageClass",
}  # fmt: skip
_LISTED = {"max-keys": "maxResults", "continuation-token": "pageToken"}
_MAY_BE_EMPTY = ("continuation-token", "delimiter", "location", "marker", "prefix", "start-after",
                 "uploads", "versioning")  # fmt: skip
_SOURCE = "x-goog-copy-source"
_PART = re.compile(rb"<Part>(.*?)</Part>", re.DOTALL)


@dataclass
class _Upload:
    """A multipart upload, which is lost when the emulator stops."""

    request: Request
    parts: dict[int, tuple[Path, Checksums]] = field(default_factory=dict)


def xml_api(method: Callable[[str, Action], Callable[[Request], Reply]]) -> HttpApi:
    """Serve the XML API, whose paths begin with a bucket; `method` is that of the JSON API."""
    uploads: dict[str, _Upload] = {}

    def answer(verb: str, request: Request) -> Reply:
        headers = _translated(request.headers)
        conditions = {
            name: headers[header] for header, name in _CONDITIONS.items() if header in headers
        }
        names = {"bucket": request.names["bucket"], "object": request.names.get("object", "")}
        query = {**request.query, **conditions}
        request = replace(request, names=names, query=query, headers=headers)
        try:
            _check_supported(verb, request)
            return method(*_choose(uploads, verb, request))(request)
        except ServiceError as error:
            return _error_reply(error)

    routes = [
        Route(f"{verb} {path}", partial(answer, verb))
        for verb in ("GET", "HEAD", "PUT", "POST", "DELETE")
        for path in ("/{bucket}/{object=**}", "/{bucket}")
    ]
    return HttpApi(("/",), routes, storage_error)


def _is_s3(headers: Headers) -> bool:
    return headers.get("Authorization", "").startswith("AWS")


def _translated(headers: Headers) -> Headers:
    """Rename the headers of a client of S3, as the service does for its signatures."""
    found = Headers()
    for name, value in headers.items():
        is_theirs = _is_s3(headers) and name.lower().startswith("x-amz-")
        found[f"x-goog-{name[6:]}" if is_theirs else name] = value
    return found


def _check_supported(verb: str, request: Request) -> None:
    """Raise StorageError for what would otherwise be taken for a read or write of an object."""
    query = request.query
    # A parameter without a value names a part of an object or bucket, such as its ?acl.
    parts = [name for name in query if not query[name] and name not in _MAY_BE_EMPTY]
    if verb != "GET" or request.names["object"]:
        parts += [name for name in ("location", "versioning") if name in query]
    if verb == "GET":
        parts += [name for name in ("uploads", "uploadId") if name in query]
    if request.headers.get("x-goog-content-sha256", "").startswith("STREAMING-"):
        parts.append("aws-chunked (with boto3, request_checksum_calculation=when_required)")
    if parts:
        raise storage_error("unimplemented", what=f"{verb} with {parts[0]}")


def _choose(uploads: dict[str, _Upload], verb: str, request: Request) -> tuple[str, Action]:
    """Return the method of a request, and its action."""
    query = request.query
    if not request.names["object"] and verb != "POST":
        return _choose_for_bucket(verb, query)
    if verb == "POST":
        return "storage_insert", partial(_begin if "uploads" in query else _complete, uploads)
    if verb == "DELETE" and "uploadId" in query:
        return "storage_upload_chunk", partial(_abort, uploads)
    if verb == "DELETE":
        return "storage_delete", _delete
    if verb != "PUT":
        return "storage_get", _get
    if "partNumber" in query:
        return "storage_upload_chunk", partial(_put_part, uploads)
    return ("storage_copy", _copy) if _SOURCE in request.headers else ("storage_insert", _put)


def _choose_for_bucket(verb: str, query: Mapping[str, str]) -> tuple[str, Action]:
    if verb == "PUT":
        return "storage_insert_bucket", _insert_bucket
    if verb == "DELETE":
        return "storage_delete_bucket", _delete_bucket
    if found := [name for name in ("location", "versioning") if name in query]:
        return "storage_get_bucket", partial(_setting, found[0])
    return "storage_list", _list


def _get(buckets: Buckets, request: Request) -> Reply:
    stored = current_object(buckets, request)
    tag = _tag(stored)
    if request.headers.get("If-Match", tag) not in (tag, "*"):
        raise storage_error("condition")
    if request.headers.get("If-None-Match") in (tag, "*"):
        raise storage_error("not_modified")
    updated = stored.updated_us // 10**6
    if "If-None-Match" not in request.headers and updated <= _moment(request, "If-Modified-Since"):
        raise storage_error("not_modified")
    if "If-Match" not in request.headers and updated > _moment(
        request, "If-Unmodified-Since", math.inf
    ):
        raise storage_error("condition")
    reply = get_media(buckets, request)
    start = "x-amz-meta-" if _is_s3(request.headers) else "x-goog-meta-"
    metadata = stored.fields.get("metadata", {}).items()
    own = {header_text(f"{start}{name}"): header_text(value) for name, value in metadata}
    return replace(reply, headers={**own, **reply.headers, "ETag": tag})


def _moment(request: Request, name: str, default: float = -math.inf) -> float:
    """Return the time in a header; one that is missing or invalid changes nothing."""
    found = parsedate_tz(request.headers.get(name, ""))
    return mktime_tz(found) if found else default


def _list(buckets: Buckets, request: Request) -> Reply:
    query = {_LISTED.get(name, name): value for name, value in request.query.items()}
    if after := query.get("start-after"):
        query["startOffset"] = f"{after}\0"
    # The first version of lists has names instead of tokens.
    is_first = query.get("list-type") != "2"
    if marker := is_first and query.get("marker"):
        query["pageToken"] = urlsafe_b64encode(marker.encode("utf-8", "surrogateescape")).decode()
    with buckets.lock:
        found = list_objects(buckets.bucket(request.names["bucket"]), query, "")
    token = found.get("nextPageToken")
    inner = _elements(
        {"Name": request.names["bucket"], "Prefix": query.get("prefix", "")}
        | {"IsTruncated": "true" if token else "false"}
    )
    if token and is_first:
        inner += _elements({"NextMarker": urlsafe_b64decode(token).decode()})
    elif token:
        inner += _elements({"NextContinuationToken": token})
    for item in found.get("items", ()):
        inner += f"<Contents>{_elements(_listed(item))}</Contents>"
    for prefix in found.get("prefixes", ()):
        inner += f"<CommonPrefixes>{_elements({'Prefix': prefix})}</CommonPrefixes>"
    return _xml_reply("ListBucketResult", inner)


def _listed(item: Document) -> Document:
    return {
        "Key": item["name"],
        "Generation": item["generation"],
        "MetaGeneration": item["metageneration"],
        "LastModified": item["updated"],
        "ETag": f'"{item["etag"]}"',
        "Size": item["size"],
    }


def _declared(request: Request) -> Declared:
    headers = request.headers
    fields: Document = {key: headers[name] for name, key in _FIELDS.items() if name in headers}
    metadata = {
        name[12:].lower(): value
        for name, value in headers.items()
        if name.lower().startswith("x-goog-meta-")
    }
    hashes = {"md5": headers.get("Content-MD5"), **read_hashes(headers)}
    return Declared(
        check_object_name(request.names["object"]),
        fields | ({"metadata": metadata} if metadata else {}),
        hashes.get("crc32c"),
        hashes["md5"],
    )


def _put(buckets: Buckets, request: Request) -> Reply:
    bucket = buckets.bucket(request.names["bucket"])
    declared = _declared(request)
    store_object(buckets, request, declared, request.body.pieces())
    return _stored_reply(bucket.objects[declared.name])


def _copy(buckets: Buckets, request: Request) -> Reply:
    from_bucket, _, name = request.headers[_SOURCE].lstrip("/").partition("/")
    names = {"bucket": from_bucket, "object": unquote(name)}
    names |= {"bucket_2": request.names["bucket"], "name": request.names["object"]}
    stored = copied(buckets, replace(request, names=names))
    reply = _xml_reply("CopyObjectResult", _elements({"ETag": _tag(stored)}))
    return replace(reply, headers={**_stored_reply(stored).headers, **reply.headers})


def _delete(buckets: Buckets, request: Request) -> Reply:
    conditions = read_conditions(request.query)
    buckets.remove(request.names["bucket"], request.names["object"], request.query, conditions)
    return Reply(204)


def _insert_bucket(buckets: Buckets, request: Request) -> Reply:
    body = request.body.read(_LARGEST_BODY_BYTES).decode("utf-8", "replace")
    location = re.search("<LocationConstraint>(.*?)</LocationConstraint>", body)
    place = location[1].strip().upper() if location else "US"
    buckets.add_bucket(Bucket(request.names["bucket"], place))
    return Reply()


def _delete_bucket(buckets: Buckets, request: Request) -> Reply:
    buckets.remove_bucket(request.names["bucket"], Conditions())
    return Reply(204)


def _setting(name: str, buckets: Buckets, request: Request) -> Reply:
    bucket = buckets.bucket(request.names["bucket"])
    if name == "location":
        return _xml_reply("LocationConstraint", bucket.location)
    return _xml_reply("VersioningConfiguration", "")


def _begin(uploads: dict[str, _Upload], buckets: Buckets, request: Request) -> Reply:
    bucket, identity = buckets.bucket(request.names["bucket"]).name, secrets.token_urlsafe(32)
    uploads[identity] = _Upload(request)
    found = {"Bucket": bucket, "Key": _declared(request).name, "UploadId": identity}
    return _xml_reply("InitiateMultipartUploadResult", _elements(found))


def _put_part(uploads: dict[str, _Upload], buckets: Buckets, request: Request) -> Reply:
    upload, declared = _upload(uploads, request), _declared(request)
    number = read_whole(request.query, "partNumber") or 0
    file, sums = buckets.new_file(), Checksums()
    with open_own(file, "xb", private=True) as target:
        for piece in request.body.pieces():
            target.write(piece)
            sums.add(piece)
    check_sums(sums, declared.crc32c, declared.md5)
    upload.parts[number] = file, sums
    return Reply(headers={"ETag": f'"{sums.md5}"', "X-Goog-Hash": f"crc32c={sums.crc32c}"})


def _complete(uploads: dict[str, _Upload], buckets: Buckets, request: Request) -> Reply:
    upload = _upload(uploads, request)
    wanted = _PART.findall(request.body.read(_LARGEST_BODY_BYTES))
    parts = [_wanted_part(upload, text) for text in wanted]
    if not parts or any(sums.size_bytes < _SMALLEST_PART_BYTES for _, sums in parts[:-1]):
        raise storage_error("parts", why="parts are missing, or smaller than 5 MiB")
    pieces = _pieces([file for file, _ in parts])
    declared = replace(_declared(upload.request), crc32c=None, md5=None)
    target = replace(upload.request, query=request.query)
    store_object(buckets, target, declared, pieces, components=len(parts))
    _abort(uploads, buckets, request)
    stored = buckets.bucket(request.names["bucket"]).objects[declared.name]
    found = {"Bucket": stored.bucket, "Key": stored.name, "ETag": _tag(stored)}
    reply = _xml_reply("CompleteMultipartUploadResult", _elements(found))
    return replace(reply, headers={**_stored_reply(stored).headers, **reply.headers})


def _wanted_part(upload: _Upload, text: bytes) -> tuple[Path, Checksums]:
    number = re.search(rb"<PartNumber>\s*(\d{1,5})\s*</PartNumber>", text)
    tag = re.search(r"<ETag>(.*?)</ETag>", text.decode("utf-8", "replace"))
    part = upload.parts.get(int(number[1])) if number else None
    if part is None or tag is None or unescape(tag[1]).strip().strip('"') != part[1].md5:
        raise storage_error("parts", why="a part was not uploaded, or is another one")
    return part


def _abort(uploads: dict[str, _Upload], buckets: Buckets, request: Request) -> Reply:
    for file, _ in _upload(uploads, request).parts.values():
        file.unlink(missing_ok=True)
    del uploads[request.query["uploadId"]]
    return Reply(204)


def _upload(uploads: dict[str, _Upload], request: Request) -> _Upload:
    identity = request.query.get("uploadId", "")
    if identity not in uploads:
        raise storage_error("no_upload", upload_id=identity)
    return uploads[identity]


def _pieces(files: list[Path]) -> Iterator[bytes]:
    for path in files:
        with path.open("rb") as file:
            yield from iter(partial(file.read, PIECE_BYTES), b"")


def _tag(stored: StoredObject) -> str:
    return f'"{stored.etag}"'


def _stored_reply(stored: StoredObject) -> Reply:
    return Reply(headers={**media_headers(stored), "ETag": _tag(stored)})


def _elements(values: Mapping[str, object]) -> str:
    return "".join(f"<{key}>{escape(str(text))}</{key}>" for key, text in values.items())


def _xml_reply(name: str, inner: str, status: int = 200) -> Reply:
    space = "" if name == "Error" else " xmlns='http://s3.amazonaws.com/doc/2006-03-01/'"
    text = f"<?xml version='1.0' encoding='UTF-8'?><{name}{space}>{inner}</{name}>"
    return text_reply(text, "application/xml; charset=UTF-8", status=status)


def _error_reply(error: ServiceError) -> Reply:
    status, code = error.http_status, _CODES.get(error.http_status, "InvalidArgument")
    if error.message == storage_error("no_bucket").message:
        code = "NoSuchBucket"
    found = {"Code": code, "Message": error.message}
    reply = _xml_reply("Error", "" if status == 304 else _elements(found), status)
    return replace(reply, headers={**error.http_headers, **reply.headers})
