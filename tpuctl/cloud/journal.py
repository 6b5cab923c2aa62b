"""The journal of create requests: each one is written to disk before it is sent.

There is one JSON file per request, named after its create id, which the TPU also carries as a
label. Whatever happens to this program, the next command can find every TPU that may exist.
"""

import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from tpuctl import settings
from tpuctl.cloud.api import TpuApi
from tpuctl.codec import from_plain, read_json, to_plain
from tpuctl.errors import TryAgainError, WriteError
from tpuctl.hardware.compute_engine import CLOUD_TPU, GCE
from tpuctl.storage.local import (
    ensure_folder,
    locked,
    remove_stale_parts,
    write_atomically,
)

Kind = Literal["node", "queued"]
Phase = Literal["intended", "accepted", "ready", "abandoned", "closed"]

SCHEMA = "tpuctl-create/1"
KEEP_CLOSED = timedelta(days=30)

DELETED = "deleted"
"""The outcome of an entry whose TPU was deleted while it was alive."""

COLLECTED = "collected"
"""The outcome of an entry whose TPU was already dead or gone when it was deleted."""


LEFT = "left running"
"""The outcome of an open entry whose create returned without waiting for the TPU."""


@dataclass(frozen=True)
class JournalEntry:
    """One create request and its outcome.

    `intended`: written, perhaps sent. `accepted`: the service is working on it. `ready`: the TPU is
    usable. `abandoned`: cancelled, but the TPU may still exist. `closed`: nothing is left of it.
    All times are the service's.
    """

    create_id: str
    name: str
    zone: str
    kind: Kind
    project: str
    endpoint: str
    accelerator_type: str
    spot: bool = False
    usd_per_hour: float | None = None
    phase: Phase = "intended"
    session: str = ""
    race: str | None = None
    operation: str | None = None
    node_id: str | None = None
    created: datetime | None = None
    missing_since: datetime | None = None
    closed: datetime | None = None
    outcome: str | None = None

    @property
    def is_open(self) -> bool:
        """Whether the outcome is still unknown."""
        return self.phase in ("intended", "accepted")

    @property
    def is_ending(self) -> bool:
        """Whether its deletion was requested, and its end was not seen."""
        return self.phase == "ready" and self.outcome in (DELETED, COLLECTED)


class Journal:
    """The entries in a folder; safe for several processes at once."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or settings.state_dir() / "creates"

    def intend(self, entry: JournalEntry) -> None:
        """Write an entry before its request is sent; on WriteError the request must not be sent."""
        write_atomically(self._path(entry.create_id), _to_json(entry), private=True)

    def update(self, entry: JournalEntry, **changes: Any) -> JournalEntry:
        """Record changes to an entry and return the changed entry."""
        changed = replace(entry, **changes)
        # A full disk loses nothing here: the entry as it was written before still leads to the TPU.
        with suppress(WriteError):
            write_atomically(self._path(entry.create_id), _to_json(changed), private=True)
        return changed

    def find(self, create_id: str) -> JournalEntry | None:
        """Read one entry; None when it is missing or damaged."""
        return _read(self._path(create_id))

    def entries(self, api: TpuApi) -> tuple[JournalEntry, ...]:
        """Read all entries of this project at this endpoint."""
        found = (_read(path) for path in sorted(self.folder.glob("*.json")))
        ours = (api.project, api.endpoint)
        return tuple(e for e in found if e and (e.project, e.endpoint) == ours)

    def named(self, tpu: str | None, project: str | None) -> list[JournalEntry]:
        """Return the entries of a TPU, or of all, that may exist, on any endpoint."""
        found = (_read(path) for path in sorted(self.folder.glob("*.json")))
        return [
            entry
            for entry in found
            if entry and tpu in (None, entry.name) and entry.phase not in ("closed", "abandoned")
            if project in (None, entry.project)
        ]

    def expect_end(self, create_id: str | None, outcome: str) -> None:
        """Record why a TPU will be deleted, before its deletion is requested.

        A watch that finds the TPU gone a moment later then knows why. The record stays when the
        deletion fails, so that no watch recreates the TPU unasked. Unknown ids are ignored.
        """
        if create_id and (entry := self.find(create_id)):
            self.update(entry, outcome=outcome)

    def close(self, create_id: str | None, outcome: str, *, at: datetime) -> None:
        """Record that nothing is left of a request; unknown ids are ignored."""
        if create_id and (entry := self.find(create_id)):
            self.update(entry, phase="closed", outcome=outcome, closed=at)

    def forget(self, entry: JournalEntry) -> None:
        """Remove an entry."""
        self._path(entry.create_id).unlink(missing_ok=True)

    def clean_up(self) -> None:
        """Remove what killed commands have left: locks of their sessions, half-written entries."""
        remove_stale_parts(self.folder)
        for lock in self._lock("").parent.glob("*.lock"):
            # Asking removes it.
            self.is_alive(lock.stem)

    @contextmanager
    def session(self) -> Iterator[str]:
        """Yield a session name whose entries other processes leave alone while it lasts.

        Raises WriteError where the journal cannot be written.
        """
        name = str(uuid.uuid4())
        path = self._lock(name)
        ensure_folder(path.parent, private=True)
        # The kernel drops the lock when this process dies, so a crash ends the session too.
        with locked(path, wait_s=0, busy="This journal session is in use."):
            try:
                yield name
            finally:
                with suppress(OSError):
                    path.unlink()

    def is_alive(self, session: str) -> bool:
        """Whether the process that opened a session is still running."""
        path = self._lock(session)
        if not session or not path.exists():
            return False
        try:
            with locked(path, wait_s=0, busy=""):
                path.unlink(missing_ok=True)
                return False
        except TryAgainError:
            return True

    def _path(self, create_id: str) -> Path:
        return self.folder / f"{os.path.basename(create_id)}.json"

    def _lock(self, session: str) -> Path:
        return self.folder / "sessions" / f"{os.path.basename(session)}.lock"


def control_plane_at(endpoint: str) -> str:
    """Return the control plane at the endpoint of an API or an entry."""
    return GCE if endpoint.endswith("/compute/v1") else CLOUD_TPU


def new_create_id() -> str:
    """Make a unique id that is valid as a label value and as a request id."""
    return str(uuid.uuid4())


def _to_json(entry: JournalEntry) -> str:
    known = {name: value for name, value in to_plain(entry).items() if value is not None}
    return json.dumps({"schema": SCHEMA, **known}, indent=1)


def _read(path: Path) -> JournalEntry | None:
    """Read an entry; None when it is missing, damaged or of another schema."""
    try:
        document = read_json(path)
        if document["schema"] != SCHEMA:
            return None
        return from_plain(JournalEntry, document)
    except (OSError, ValueError, TypeError, KeyError):
        return None
