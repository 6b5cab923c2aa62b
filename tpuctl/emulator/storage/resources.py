"""Objects of Cloud Storage, preconditions of requests, and validation of names."""

import re
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Protocol
from urllib.parse import quote

from tpuctl.emulator.errors import storage_error
from tpuctl.emulator.methods import Document

WRITABLE = (
    "cacheControl", "contentDisposition", "contentEncoding", "contentLanguage", "contentType",
    "customTime", "metadata", "storageClass",
)  # fmt: skip
BUCKET_FIELDS = (
    "autoclass", "billing", "cors", "defaultEventBasedHold", "encryption", "iamConfiguration",
    "labels", "lifecycle", "logging", "retentionPolicy", "rpo", "softDeletePolicy", "storageClass",
    "website",
)  # fmt: skip
_LARGEST_NAME_BYTES = 1024
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]")


class Lookup(Protocol):
    """Values by name: a query, headers, a JSON object."""

    def get(self, key: str, /) -> object:
        """Return the value of a name, or None."""


class Versioned(Protocol):
    """An object or a bucket: what preconditions are about."""

    @property
    def generation(self) -> int:
        """Microseconds since 1970 at its creation."""

    @property
    def metageneration(self) -> int:
        """How often its metadata was set."""


@dataclass(frozen=True)
class StoredObject:
    """One object: the `file` with its bytes, and the `fields` that its owner set.

    `md5` is None for an object composed of `components` others. `created_us` and `updated_us`
    are microseconds since 1970.
    """

    bucket: str
    name: str
    generation: int
    metageneration: int
    size_bytes: int
    crc32c: str
    md5: str | None
    file: str
    created_us: int
    updated_us: int
    components: int = 0
    fields: Document = field(default_factory=dict)

    @property
    def hashes(self) -> str:
        """The value of the header X-Goog-Hash."""
        return f"crc32c={self.crc32c}" + (f",md5={self.md5}" if self.md5 else "")

    @property
    def etag(self) -> str:
        """The entity tag, which is new after every change."""
        return f"{self.generation:x}/{self.metageneration}"

    def resource(self, base_url: str) -> Document:
        """The object as the API shows it, with links to the server at an address."""
        path = f"storage/v1/b/{self.bucket}/o/{quote(self.name, safe='', errors='surrogateescape')}"
        media = f"{base_url}/download/{path}?generation={self.generation}&alt=media"
        document: Document = {
            "kind": "storage#object",
            "id": f"{self.bucket}/{self.name}/{self.generation}",
            "selfLink": f"{base_url}/{path}",
            "mediaLink": media,
            "bucket": self.bucket,
            "name": self.name,
            "generation": str(self.generation),
            "metageneration": str(self.metageneration),
            "size": str(self.size_bytes),
            "crc32c": self.crc32c,
            "etag": self.etag,
            "timeCreated": format_time(self.created_us),
            "timeFinalized": format_time(self.created_us),
            "updated": format_time(self.updated_us),
            "storageClass": "STANDARD",
            **self.fields,
        }
        if self.md5:
            document["md5Hash"] = self.md5
        if self.components:
            document["componentCount"] = self.components
        return document


@dataclass(frozen=True)
class Conditions:
    """The preconditions of a request; None means no condition."""

    generation: int | None = None
    not_generation: int | None = None
    metageneration: int | None = None
    not_metageneration: int | None = None

    def check(self, current: Versioned | None, *, reading: bool = False) -> None:
        """Raise StorageError unless all hold; a missing object has generation 0."""
        generation = current.generation if current else 0
        metageneration = current.metageneration if current else 0
        is_wanted = self.generation in (None, generation)
        if not is_wanted or self.metageneration not in (None, metageneration):
            raise storage_error("condition")
        if generation == self.not_generation or metageneration == self.not_metageneration:
            raise storage_error("not_modified" if reading else "condition")


def read_conditions(query: Lookup, prefix: str = "if") -> Conditions:
    """Read the preconditions of a request, or of the source of a copy or composition."""
    return Conditions(
        read_whole(query, f"{prefix}GenerationMatch"),
        read_whole(query, f"{prefix}GenerationNotMatch"),
        read_whole(query, f"{prefix}MetagenerationMatch"),
        read_whole(query, f"{prefix}MetagenerationNotMatch"),
    )


def read_whole(query: Lookup, key: str) -> int | None:
    """Read a non-negative integer; None if it is missing."""
    value = query.get(key)
    if value is None:
        return None
    text = str(value)
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise storage_error("number", value=text, field=key)
    return int(text)


def merged(fields: Document, changes: Document) -> Document:
    """Change fields like a patch: null removes a field, `metadata` and `labels` are merged."""
    found = {**fields, **changes}
    for key in ("metadata", "labels"):
        if changes.get(key) and fields.get(key):
            found[key] = merged(fields[key], changes[key])
        elif changes.get(key):
            found[key] = {name: text for name, text in changes[key].items() if text is not None}
    return {key: value for key, value in found.items() if value not in (None, "", {}, [])}


def bucket_fields(body: Document) -> Document:
    """Select the fields that a bucket stores; raises StorageError for unsupported ones."""
    versioning, space = body.get("versioning") or {}, body.get("hierarchicalNamespace") or {}
    if versioning.get("enabled") or space.get("enabled"):
        raise storage_error("unimplemented", what="versioning and hierarchical namespaces")
    return {key: body[key] for key in BUCKET_FIELDS if key in body}


def check_object_name(name: str) -> str:
    """Return the name of an object; raises StorageError if it is not valid."""
    if not name:
        raise storage_error("required", field="name")
    if why := _name_problem(name):
        raise storage_error("object_name", why=why)
    return name


def _name_problem(name: str) -> str | None:
    try:
        size_bytes = len(name.encode())
    except UnicodeEncodeError:
        return "it is not valid UTF-8"
    if size_bytes > _LARGEST_NAME_BYTES:
        return f"it is longer than {_LARGEST_NAME_BYTES} bytes"
    if "\n" in name or "\r" in name:
        return "it contains a line break"
    if name in (".", ".."):
        return f"an object cannot be called {name}"
    if name.startswith(".well-known/acme-challenge/"):
        return "it starts with .well-known/acme-challenge/"
    return None


def check_bucket_name(name: str) -> None:
    """Raise StorageError for an invalid bucket name."""
    if not name:
        raise storage_error("required", field="name")
    if not _BUCKET.fullmatch(name) or ".." in name or "google" in name:
        raise storage_error("bucket_name", name=name)


def format_time(microseconds: int) -> str:
    """Write a time in microseconds since 1970 as the API does."""
    moment = datetime.fromtimestamp(microseconds // 10**6, timezone.utc)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{microseconds % 10**6 // 1000:03}Z"
