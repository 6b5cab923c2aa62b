"""Buckets and their objects, which are stored on disk before a request is answered.

The bytes of each object are a file, and a journal says which files are objects. Files that the
journal does not name are deleted, and so is a line that a crash left incomplete: its request was
never answered.
"""

import json
import os
import shutil
import threading
from base64 import b64encode
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from zlib import crc32

from tpuctl.codec import from_plain, to_plain
from tpuctl.emulator.errors import storage_error
from tpuctl.emulator.methods import Document
from tpuctl.emulator.storage._checksums import Checksums
from tpuctl.emulator.storage.resources import (
    Conditions,
    StoredObject,
    check_bucket_name,
    format_time,
)
from tpuctl.storage.local import ensure_folder, open_own, translated_write_errors, write_atomically


@dataclass
class Bucket:
    """One bucket and its objects; their names are sorted for lists."""

    name: str
    location: str
    fields: Document = field(default_factory=dict)
    generation: int = 0
    metageneration: int = 1
    updated_us: int = 0
    objects: dict[str, StoredObject] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    bindings: list[Document] = field(default_factory=list)

    def put(self, stored: StoredObject) -> None:
        """Add an object, or replace the one with that name."""
        if stored.name not in self.objects:
            insort(self.names, stored.name)
        self.objects[stored.name] = stored

    def remove(self, name: str) -> StoredObject:
        """Remove an object and return it."""
        del self.names[bisect_left(self.names, name)]
        return self.objects.pop(name)

    def resource(self, base_url: str) -> Document:
        """The bucket as the API shows it."""
        return {
            "kind": "storage#bucket",
            "id": self.name,
            "selfLink": f"{base_url}/storage/v1/b/{self.name}",
            "name": self.name,
            "location": self.location,
            "locationType": self.location_type,
            "timeCreated": format_time(self.generation),
            "updated": format_time(self.updated_us),
            "generation": str(self.generation),
            "metageneration": str(self.metageneration),
            "etag": f"{self.metageneration:x}",
            "storageClass": "STANDARD",
            **self.fields,
        }

    @property
    def policy(self) -> Document:
        """Who may do what, as the API shows it; nothing enforces it."""
        known = json.dumps(self.bindings, sort_keys=True).encode()
        etag = b64encode(crc32(known).to_bytes(4, "big")).decode()
        document: Document = {"kind": "storage#policy", "version": 1, "etag": etag}
        path = {"resourceId": f"projects/_/buckets/{self.name}"}
        return {**document, **path, "bindings": self.bindings}

    @property
    def location_type(self) -> str:
        """Whether the bucket is in one region or several."""
        return "region" if "-" in self.location else "multi-region"

    def record(self) -> Document:
        """The bucket as a line of the journal."""
        names = ("name", "location", "fields", "generation", "metageneration", "updated_us")
        return {"bucket": {name: getattr(self, name) for name in (*names, "bindings")}}


@dataclass(frozen=True)
class Session:
    """A resumable upload: the object that it will create, and the preconditions for that.

    `total` is its size in bytes, if that was declared at the start.
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
    """A complete upload: its bytes in `file`, and the object that they will become."""

    bucket: str
    name: str
    file: Path
    sums: Checksums | StoredObject
    fields: Document
    components: int = 0


class Buckets:
    """The buckets of one emulator; every method succeeds completely or changes nothing."""

    def __init__(self, folder: Path, buckets: Mapping[str, str], now_us: Callable[[], int]) -> None:
        self._journal, self._data = folder / "objects.jsonl", folder / "objects"
        self._now_us = now_us
        self._last_us = 0
        self._files = 0
        self.lock = threading.RLock()
        self._session_locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        now = now_us()
        self.buckets = {
            name: Bucket(name, location, generation=now, updated_us=now)
            for name, location in buckets.items()
        }
        self.sessions: dict[str, Session] = {}
        self.fault_counts: list[int] = []
        ensure_folder(self._data, private=True)
        self._load()

    def new_file(self) -> Path:
        """Return a new path for arriving bytes; the next start removes unfinished files."""
        with self.lock:
            self._files += 1
            return self._data / f"{os.getpid()}-{self._last_us}-{self._files}"

    def session_file(self, session: Session) -> Path:
        """Return the path of the bytes of an incomplete resumable upload."""
        return self._data / f"session-{session.id}"

    def path(self, stored: StoredObject) -> Path:
        """Return the path of the bytes of an object."""
        return self._data / stored.file

    def bucket(self, name: str) -> Bucket:
        """Return a bucket; raises StorageError if it does not exist."""
        if found := self.buckets.get(name):
            return found
        raise storage_error("no_bucket")

    def add_bucket(self, bucket: Bucket) -> Bucket:
        """Create a bucket."""
        check_bucket_name(bucket.name)
        with self.lock:
            if bucket.name in self.buckets:
                raise storage_error("bucket_taken")
            now = self._next_us()
            self._record(replace(bucket, generation=now, updated_us=now).record())
            return self.buckets[bucket.name]

    def change_bucket(
        self, name: str, conditions: Conditions, fields: Callable[[Document], Document]
    ) -> Bucket:
        """Change the fields of a bucket, if the preconditions hold."""
        with self.lock:
            old = self.bucket(name)
            conditions.check(old)
            changed = replace(old, fields=fields(old.fields), updated_us=self._next_us())
            self._record(replace(changed, metageneration=old.metageneration + 1).record())
            return self.buckets[name]

    def set_policy(self, name: str, policy: Document) -> Bucket:
        """Replace the bindings of a bucket, unless they changed since the policy was read."""
        bindings = policy.get("bindings") or []
        if not isinstance(bindings, list) or not all(isinstance(item, dict) for item in bindings):
            raise storage_error("required", field="bindings")
        with self.lock:
            old = self.bucket(name)
            if policy.get("etag", old.policy["etag"]) != old.policy["etag"]:
                raise storage_error("condition")
            self._record(replace(old, bindings=bindings).record())
            return self.buckets[name]

    def remove_bucket(self, name: str, conditions: Conditions) -> None:
        """Delete a bucket, which must be empty, if the preconditions hold."""
        with self.lock:
            conditions.check(self.bucket(name))
            if self.bucket(name).objects:
                raise storage_error("bucket_full")
            self._record({"no_bucket": name})

    def get(self, bucket: str, name: str, query: Mapping[str, object]) -> StoredObject:
        """Return an object, in the generation that the query names; raises StorageError."""
        found = self.bucket(bucket).objects.get(name)
        generation = str(query.get("generation") or "")
        if found is None or generation not in ("", str(found.generation)):
            raise storage_error("no_object", bucket=bucket, name=name)
        return found

    def put(
        self, upload: Upload, conditions: Conditions, *, moved: StoredObject | None = None
    ) -> StoredObject:
        """Create an object from a complete upload in place of `moved`, if preconditions hold."""
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
            gone = {"no_object": [moved.bucket, moved.name]} if moved else {}
            self._record({"object": to_plain(stored), **gone})
            return stored

    def copy(
        self,
        source: StoredObject,
        target: tuple[str, str],
        fields: Document,
        conditions: Conditions,
        *,
        moved: bool = False,
    ) -> StoredObject:
        """Create an object with the bytes of another one, which is deleted if `moved`."""
        file = self.new_file()
        try:
            with translated_write_errors(file), self.lock:
                try:
                    os.link(self.path(source), file)
                except OSError:
                    # Not every file system supports hard links.
                    shutil.copyfile(self.path(source), file)
                upload = Upload(*target, file, source, fields, source.components)
                return self.put(upload, conditions, moved=source if moved else None)
        finally:
            file.unlink(missing_ok=True)

    def patch(
        self,
        bucket: str,
        name: str,
        query: Mapping[str, object],
        conditions: Conditions,
        change: Callable[[Document], Document],
    ) -> StoredObject:
        """Change the metadata of an object."""
        with self.lock:
            current = self.get(bucket, name, query)
            conditions.check(current)
            changed = replace(
                current,
                fields=change(current.fields),
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
        """Store the start or end of a resumable upload."""
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
        # Generations must grow even while emulated time stands still.
        self._last_us = max(self._now_us(), self._last_us + 1)
        return self._last_us

    def _record(self, line: Document) -> None:
        """Write a line to the journal, then apply it."""
        # Not synced to disk: it survives a kill of this process, but not a power cut.
        with (
            translated_write_errors(self._journal),
            open_own(self._journal, "ab", private=True) as file,
        ):
            file.write(json.dumps(line).encode() + b"\n")
        self._apply(line)

    def _apply(self, line: Document) -> None:
        if "object" in line:
            self._put_object(StoredObject(**line["object"]))
        match line:
            case {"no_object": [bucket, name]}:
                self.path(self.buckets[bucket].remove(name)).unlink(missing_ok=True)
            case {"bucket": value}:
                known = self.buckets.get(value["name"], Bucket(value["name"], value["location"]))
                self.buckets[known.name] = replace(known, **value)
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
        # A change of metadata keeps the file.
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
        # A file that is not in the journal belongs to an upload that was never answered.
        for file in self._data.iterdir():
            if file.name not in named:
                file.unlink()

    def _snapshot(self, initial: set[str]) -> Iterator[Document]:
        """Write the present state as lines of a journal that starts with the scenario's buckets."""
        yield {"faults": self.fault_counts}
        yield from ({"no_bucket": name} for name in initial - set(self.buckets))
        for bucket in self.buckets.values():
            yield bucket.record()
            yield from ({"object": to_plain(stored)} for stored in bucket.objects.values())
        yield from ({"session": to_plain(session)} for session in self.sessions.values())
