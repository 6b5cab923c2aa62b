"""Buckets and their objects, on disk before a request is answered.

The bytes of each object are a file; a journal says which files are objects. A line of it that a
crash left incomplete was never answered, and is dropped, and so are files that it does not name.
"""

import base64
import json
import os
import threading
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from tpuctl.codec import from_plain, to_plain
from tpuctl.emulator.errors import storage_error
from tpuctl.emulator.methods import Document
from tpuctl.emulator.storage._checksums import Checksums
from tpuctl.emulator.storage.resources import (
    Conditions,
    StoredObject,
    check_bucket_name,
    read_whole,
)
from tpuctl.storage.local import ensure_folder, open_own, translated_write_errors, write_atomically

_MOST_ITEMS = 1000
_NOT_SUPPORTED = ("matchGlob", "softDeleted", "filter", "includeTrailingDelimiter")


@dataclass
class Bucket:
    """One bucket and its objects, with their names sorted for lists."""

    name: str
    location: str
    objects: dict[str, StoredObject] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)

    def put(self, stored: StoredObject) -> None:
        """Add an object, or replace the one of that name."""
        if stored.name not in self.objects:
            insort(self.names, stored.name)
        self.objects[stored.name] = stored

    def remove(self, name: str) -> StoredObject:
        """Remove an object and return it."""
        del self.names[bisect_left(self.names, name)]
        return self.objects.pop(name)

    def resource(self) -> Document:
        """The bucket as the API shows it."""
        region = "-" in self.location
        return {
            "kind": "storage#bucket",
            "id": self.name,
            "name": self.name,
            "location": self.location,
            "locationType": "region" if region else "multi-region",
            "storageClass": "STANDARD",
        }


@dataclass(frozen=True)
class Session:
    """A resumable upload: the object it will be, and the preconditions for that.

    `total` is its size in bytes where that was declared at the start.
    """

    id: str
    bucket: str
    name: str
    fields: Document
    conditions: Conditions
    crc32c: str | None
    md5: str | None
    total: int | None
    done: Document | None = None
    cancelled: bool = False


@dataclass(frozen=True)
class Upload:
    """A complete upload: its bytes in `file`, and the object they will be."""

    bucket: str
    name: str
    file: Path
    sums: Checksums
    fields: Document
    components: int = 0


class Buckets:
    """The buckets of one emulator; every method succeeds as a whole or changes nothing."""

    def __init__(self, folder: Path, buckets: Mapping[str, str], now_us: Callable[[], int]) -> None:
        self._journal, self._data = folder / "objects.jsonl", folder / "objects"
        self._now_us = now_us
        self._last_us = 0
        self._files = 0
        self.lock = threading.RLock()
        self._session_locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self.buckets = {name: Bucket(name, location) for name, location in buckets.items()}
        self.sessions: dict[str, Session] = {}
        self.fault_counts: list[int] = []
        ensure_folder(self._data, private=True)
        self._load()

    def new_file(self) -> Path:
        """Return a new path for bytes that arrive; the next start removes what is left there."""
        with self.lock:
            self._files += 1
            return self._data / f"{os.getpid()}-{self._last_us}-{self._files}"

    def session_file(self, session: Session) -> Path:
        """Return the path of the bytes of a resumable upload that is not complete."""
        return self._data / f"session-{session.id}"

    def path(self, stored: StoredObject) -> Path:
        """Return the path of the bytes of an object."""
        return self._data / stored.file

    def bucket(self, name: str) -> Bucket:
        """Return a bucket; raises StorageError where it does not exist."""
        if found := self.buckets.get(name):
            return found
        raise storage_error("no_bucket")

    def add_bucket(self, name: str, location: str) -> Bucket:
        """Create a bucket."""
        check_bucket_name(name)
        with self.lock:
            if name in self.buckets:
                raise storage_error("bucket_taken")
            self._record({"bucket": {"name": name, "location": location}})
            return self.buckets[name]

    def remove_bucket(self, name: str) -> None:
        """Delete a bucket, which must be empty."""
        with self.lock:
            if self.bucket(name).objects:
                raise storage_error("bucket_full")
            self._record({"no_bucket": name})

    def get(self, bucket: str, name: str, query: Mapping[str, object]) -> StoredObject:
        """Return an object, of the generation that the query names; raises StorageError."""
        found = self.bucket(bucket).objects.get(name)
        generation = str(query.get("generation") or "")
        if found is None or generation not in ("", str(found.generation)):
            raise storage_error("no_object", bucket=bucket, name=name)
        return found

    def put(self, upload: Upload, conditions: Conditions) -> StoredObject:
        """Make an object of a complete upload, if the preconditions hold."""
        with self.lock:
            conditions.check(self.bucket(upload.bucket).objects.get(upload.name))
            generation = self._next_us()
            stored = StoredObject(
                bucket=upload.bucket,
                name=upload.name,
                generation=generation,
                metageneration=1,
                size_bytes=upload.sums.size_bytes,
                crc32c=upload.sums.crc32c,
                md5=None if upload.components else upload.sums.md5,
                file=str(generation),
                created_us=generation,
                updated_us=generation,
                components=upload.components,
                fields=upload.fields,
            )
            with translated_write_errors(upload.file):
                os.replace(upload.file, self.path(stored))
            self._record({"object": to_plain(stored)})
            return stored

    def patch(
        self,
        bucket: str,
        name: str,
        query: Mapping[str, object],
        conditions: Conditions,
        changes: Document,
    ) -> StoredObject:
        """Change the metadata of an object; None removes a field."""
        with self.lock:
            current = self.get(bucket, name, query)
            conditions.check(current)
            changed = replace(
                current,
                fields={key: text for key, text in (current.fields | changes).items() if text},
                metageneration=current.metageneration + 1,
                updated_us=self._next_us(),
            )
            self._record({"object": to_plain(changed)})
            return changed

    def remove(
        self, bucket: str, name: str, query: Mapping[str, object], conditions: Conditions
    ) -> None:
        """Delete an object, if the preconditions hold."""
        with self.lock:
            conditions.check(self.get(bucket, name, query))
            self._record({"no_object": [bucket, name]})

    def save_session(self, session: Session) -> None:
        """Store a resumable upload that starts or ends."""
        with self.lock:
            self._record({"session": to_plain(session)})
        if session.done or session.cancelled:
            self.session_file(session).unlink(missing_ok=True)

    def session(self, identity: str) -> Session:
        """Return a resumable upload; raises StorageError for an unknown or a cancelled one."""
        found = self.sessions.get(identity)
        if found is None:
            raise storage_error("no_upload", upload_id=identity)
        if found.cancelled:
            raise storage_error("cancelled")
        return found

    def session_lock(self, identity: str) -> threading.Lock:
        """Return the lock that a request holds while it works on a resumable upload."""
        with self.lock:
            return self._session_locks[identity]

    def save_fault_counts(self, counts: list[int]) -> None:
        """Store how often each planned fault was matched."""
        with self.lock:
            self._record({"faults": counts})

    def _next_us(self) -> int:
        # Generations must grow even where emulated time stands still.
        self._last_us = max(self._now_us(), self._last_us + 1)
        return self._last_us

    def _record(self, line: Document) -> None:
        """Write a line to the journal, then apply it."""
        # Not synced to the disk: it survives a kill of this process, not a power cut.
        with (
            translated_write_errors(self._journal),
            open_own(self._journal, "ab", private=True) as file,
        ):
            file.write(json.dumps(line).encode() + b"\n")
        self._apply(line)

    def _apply(self, line: Document) -> None:
        match line:
            case {"object": value}:
                self._put_object(StoredObject(**value))
            case {"no_object": [bucket, name]}:
                self.path(self.buckets[bucket].remove(name)).unlink(missing_ok=True)
            case {"bucket": value}:
                self.buckets[value["name"]] = Bucket(value["name"], value["location"])
            case {"no_bucket": name}:
                del self.buckets[name]
            case {"session": value}:
                self.sessions[value["id"]] = from_plain(Session, value)
            case {"faults": counts}:
                self.fault_counts = counts

    def _put_object(self, stored: StoredObject) -> None:
        bucket = self.buckets[stored.bucket]
        before = bucket.objects.get(stored.name)
        bucket.put(stored)
        self._last_us = max(self._last_us, stored.updated_us)
        # A change of the metadata keeps the file.
        if before and before.file != stored.file:
            self.path(before).unlink(missing_ok=True)

    def _load(self) -> None:
        """Apply the whole journal, then rewrite it without what is no longer there."""
        initial = set(self.buckets)
        if self._journal.exists():
            for line in self._journal.read_bytes().split(b"\n")[:-1]:
                self._apply(json.loads(line))
        lines = (f"{json.dumps(line)}\n" for line in self._snapshot(initial))
        write_atomically(self._journal, "".join(lines), private=True)
        objects = (bucket.objects.values() for bucket in self.buckets.values())
        named = {stored.file for some in objects for stored in some}
        named |= {self.session_file(session).name for session in self.sessions.values()}
        # A file that the journal does not name is of an upload that was never answered.
        for file in self._data.iterdir():
            if file.name not in named:
                file.unlink()

    def _snapshot(self, initial: set[str]) -> Iterator[Document]:
        """Write the present state as lines of a journal that starts with the scenario's buckets."""
        yield {"faults": self.fault_counts}
        yield from ({"no_bucket": name} for name in initial - set(self.buckets))
        for bucket in self.buckets.values():
            yield {"bucket": {"name": bucket.name, "location": bucket.location}}
            yield from ({"object": to_plain(stored)} for stored in bucket.objects.values())
        yield from ({"session": to_plain(session)} for session in self.sessions.values())


def list_objects(bucket: Bucket, query: Mapping[str, str]) -> Document:
    """List one page of the objects of a bucket, and of their prefixes up to a delimiter."""
    for key in _NOT_SUPPORTED:
        if query.get(key, "false") != "false":
            raise storage_error("unimplemented", what=key)
    most = min(read_whole(query, "maxResults") or _MOST_ITEMS, _MOST_ITEMS)
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
    lists = {"items": items, "prefixes": prefixes}
    return document | {key: found for key, found in lists.items() if found}


def _entries(bucket: Bucket, query: Mapping[str, str]) -> Iterator[tuple[str, bool]]:
    """Return names and prefixes in order, each with whether it is a prefix."""
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    end = query.get("endOffset", "")
    token = query.get("pageToken", "")
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
        if folder and folder > after:
            yield folder, True
        if not folder and name > after:
            yield name, False
        # Skip the rest of that folder at once: it may hold very many objects.
        if folder:
            first_after = folder[:-1] + chr(ord(folder[-1]) + 1)
            index = bisect_left(bucket.names, first_after, index + 1)
        else:
            index += 1
