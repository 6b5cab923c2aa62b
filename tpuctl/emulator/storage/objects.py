"""Everything that is in the buckets, on the disk before it is answered.

The bytes of an object are a file of their own; a journal says which files are objects. A line of it
that a crash tore apart was never answered, and is dropped, and so are files that it does not name.
"""

import json
import os
import threading
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tpuctl.emulator.methods import Document
from tpuctl.emulator.storage.records import Conditions, Stored, check_bucket_name
from tpuctl.emulator.storage.requests import refuse
from tpuctl.storage.local import ensure_folder, translated_write_errors, write_atomically


@dataclass
class Bucket:
    """One bucket: where it is, and its objects, whose names are kept sorted as well."""

    name: str
    location: str
    objects: dict[str, Stored] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)

    def put(self, stored: Stored) -> None:
        """Add an object, or replace the one of that name."""
        if stored.name not in self.objects:
            insort(self.names, stored.name)
        self.objects[stored.name] = stored

    def drop(self, name: str) -> None:
        """Take an object out."""
        del self.objects[name]
        del self.names[bisect_left(self.names, name)]

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
    """A resumable upload: what it will be, and what it depends on when it is complete.

    `total` is its size in bytes where that was said at the start.
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
    """Bytes that have arrived as a whole in `file`, and what they are to become."""

    bucket: str
    name: str
    file: Path
    size_bytes: int
    crc32c: str
    md5: str | None
    fields: Document
    components: int = 0


class Shelf:
    """The buckets of one emulator. Every method is one step that happens whole or not at all."""

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
        ensure_folder(self._data)
        self._recall()

    def new_file(self) -> Path:
        """A place for bytes that are still arriving; the next start forgets what is in it."""
        with self.lock:
            self._files += 1
            return self._data / f"{os.getpid()}-{self._last_us}-{self._files}"

    def session_file(self, session: Session) -> Path:
        """Where the bytes of a resumable upload are until it is complete."""
        return self._data / f"session-{session.id}"

    def path(self, stored: Stored) -> Path:
        """Where the bytes of an object are."""
        return self._data / stored.file

    def bucket(self, name: str) -> Bucket:
        """A bucket by its name; refuses one that does not exist."""
        if found := self.buckets.get(name):
            return found
        raise refuse("no_bucket")

    def add_bucket(self, name: str, location: str) -> Bucket:
        """Make a bucket."""
        check_bucket_name(name)
        with self.lock:
            if name in self.buckets:
                raise refuse("bucket_taken")
            self._apply({"bucket": {"name": name, "location": location}}, keep=True)
            return self.buckets[name]

    def remove_bucket(self, name: str) -> None:
        """Delete a bucket that is empty."""
        with self.lock:
            if self.bucket(name).objects:
                raise refuse("bucket_full")
            self._apply({"no_bucket": name}, keep=True)

    def get(self, bucket: str, name: str, query: Mapping[str, object]) -> Stored:
        """An object by its name, and by its generation where one is asked for."""
        found = self.bucket(bucket).objects.get(name)
        asked = str(query.get("generation") or "")
        if found is None or (asked and asked != str(found.generation)):
            raise refuse("no_object", bucket=bucket, name=name)
        return found

    def put(self, upload: Upload, conditions: Conditions) -> Stored:
        """Make an object of what has arrived, if the conditions hold."""
        with self.lock:
            conditions.check(self.bucket(upload.bucket).objects.get(upload.name))
            generation = self._next_us()
            stored = Stored(
                upload.bucket, upload.name, generation, 1, upload.size_bytes, upload.crc32c,
                upload.md5, str(generation), generation, generation, upload.components,
                upload.fields,
            )  # fmt: skip
            with translated_write_errors(upload.file):
                os.replace(upload.file, self.path(stored))
            self._apply({"object": asdict(stored)}, keep=True)
            return stored

    def patch(self, stored: Stored, conditions: Conditions, changes: Document) -> Stored:
        """Change what is said about an object; None takes a field away."""
        with self.lock:
            current = self.get(stored.bucket, stored.name, {"generation": stored.generation})
            conditions.check(current)
            fields = {key: value for key, value in (current.fields | changes).items() if value}
            changed = replace(
                current,
                fields=fields,
                metageneration=current.metageneration + 1,
                updated_us=self._next_us(),
            )
            self._apply({"object": asdict(changed)}, keep=True)
            return changed

    def remove(
        self, bucket: str, name: str, query: Mapping[str, object], conditions: Conditions
    ) -> None:
        """Delete an object, if the conditions hold."""
        with self.lock:
            conditions.check(self.get(bucket, name, query))
            self._apply({"no_object": [bucket, name]}, keep=True)

    def note_session(self, session: Session) -> None:
        """Remember a resumable upload that begins, or how it ended."""
        with self.lock:
            self._apply({"session": asdict(session)}, keep=True)
        if session.done or session.cancelled:
            self.session_file(session).unlink(missing_ok=True)

    def session(self, identity: str) -> Session:
        """A resumable upload; refuses one that there is not, or that was cancelled."""
        found = self.sessions.get(identity)
        if found is None:
            raise refuse("no_upload", upload_id=identity)
        if found.cancelled:
            raise refuse("cancelled")
        return found

    def session_lock(self, identity: str) -> threading.Lock:
        """What one request at a time may hold for a resumable upload."""
        with self.lock:
            return self._session_locks[identity]

    def note_faults(self, counts: list[int]) -> None:
        """Remember how often each planned fault was matched."""
        with self.lock:
            self._apply({"faults": counts}, keep=True)

    def _next_us(self) -> int:
        self._last_us = max(self._now_us(), self._last_us + 1)
        return self._last_us

    def _apply(self, line: Document, *, keep: bool) -> None:
        """Let one line of the journal happen; `keep` it first where it is a new one."""
        if keep:
            with translated_write_errors(self._journal), self._journal.open("ab") as file:
                file.write(json.dumps(line).encode() + b"\n")
        (kind, value), *_ = line.items()
        _LINES[kind](self, value)

    def _put_object(self, value: dict[str, Any]) -> None:
        stored = Stored(**value)
        bucket = self.buckets[stored.bucket]
        before = bucket.objects.get(stored.name)
        bucket.put(stored)
        self._last_us = max(self._last_us, stored.updated_us)
        if before and before.file != stored.file:
            self.path(before).unlink(missing_ok=True)

    def _drop_object(self, value: list[str]) -> None:
        bucket, name = value
        before = self.buckets[bucket].objects[name]
        self.buckets[bucket].drop(name)
        self.path(before).unlink(missing_ok=True)

    def _put_bucket(self, value: dict[str, str]) -> None:
        self.buckets[value["name"]] = Bucket(value["name"], value["location"])

    def _drop_bucket(self, name: str) -> None:
        del self.buckets[name]

    def _put_session(self, value: dict[str, Any]) -> None:
        conditions = Conditions(**value.pop("conditions"))
        session = Session(conditions=conditions, **value)
        self.sessions[session.id] = session

    def _put_faults(self, counts: list[int]) -> None:
        self.fault_counts = counts

    def _recall(self) -> None:
        """Let everything in the journal happen again, and write it anew without the past."""
        began = set(self.buckets)
        if self._journal.exists():
            for line in self._journal.read_bytes().split(b"\n")[:-1]:
                self._apply(json.loads(line), keep=False)
        write_atomically(self._journal, "".join(f"{json.dumps(x)}\n" for x in self._whole(began)))
        objects = (bucket.objects.values() for bucket in self.buckets.values())
        named = {stored.file for some in objects for stored in some}
        named |= {self.session_file(session).name for session in self.sessions.values()}
        for file in self._data.iterdir():
            if file.name not in named:
                file.unlink()

    def _whole(self, began: set[str]) -> Iterable[Document]:
        """What is there now, as lines of a journal that follows the scenario's buckets."""
        yield {"faults": self.fault_counts}
        yield from ({"no_bucket": name} for name in began - set(self.buckets))
        for bucket in self.buckets.values():
            yield {"bucket": {"name": bucket.name, "location": bucket.location}}
            yield from ({"object": asdict(stored)} for stored in bucket.objects.values())
        yield from ({"session": asdict(session)} for session in self.sessions.values())


_LINES: dict[str, Callable[[Shelf, Any], None]] = {
    "object": Shelf._put_object,
    "no_object": Shelf._drop_object,
    "bucket": Shelf._put_bucket,
    "no_bucket": Shelf._drop_bucket,
    "session": Shelf._put_session,
    "faults": Shelf._put_faults,
}
