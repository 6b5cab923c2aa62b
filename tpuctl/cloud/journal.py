"""The journal: every request for a TPU is on the disk before it is sent.

One JSON file for each request, named after its create id, which the TPU carries as a label. So
whatever happens to this program, the next one knows what there may be, and where.
"""

import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from tpuctl import settings
from tpuctl.cloud.api import TpuApi
from tpuctl.errors import TryAgainError, WriteError
from tpuctl.storage.local import ensure_folder, locked, write_atomically

Kind = Literal["node", "queued"]
Phase = Literal["intended", "accepted", "ready", "abandoned", "closed"]

SCHEMA = "tpuctl-create/1"
KEEP_CLOSED = timedelta(days=30)

DELETED = "deleted"
"""The outcome of an entry whose TPU somebody has deleted while it was alive."""

COLLECTED = "collected"
"""The outcome of one whose TPU was dead already when it was deleted, or gone."""


@dataclass(frozen=True)
class Entry:
    """One request for a TPU, and what became of it.

    `intended`: written, perhaps sent. `accepted`: the service works on it. `ready`: it is usable.
    `abandoned`: we gave it up, and it may still exist. `closed`: nothing of it exists any more.
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
        """Whether it is not known yet what becomes of it."""
        return self.phase in ("intended", "accepted")


class Journal:
    """The entries in a folder; may be used by many processes at once."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or settings.state_dir() / "creates"

    def intend(self, entry: Entry) -> None:
        """Write an entry before its request is sent; raises WriteError: then do not send it."""
        write_atomically(self._path(entry.create_id), _to_json(entry))

    def update(self, entry: Entry, **changes: Any) -> Entry:
        """Write what is newly known about a request, and return the changed entry.

        A disk that is full by now loses nothing: what was written before leads back to the TPU.
        """
        changed = replace(entry, **changes)
        try:
            write_atomically(self._path(entry.create_id), _to_json(changed))
        except WriteError:
            return changed
        return changed

    def find(self, create_id: str) -> Entry | None:
        """Read one entry, if there is a readable one."""
        return _read(self._path(create_id))

    def entries(self, api: TpuApi) -> tuple[Entry, ...]:
        """Read all entries of this project at this endpoint, in no order."""
        found = (_read(path) for path in sorted(self.folder.glob("*.json")))
        ours = (api.project, api.endpoint)
        return tuple(e for e in found if e and (e.project, e.endpoint) == ours)

    def foresee(self, create_id: str | None, outcome: str) -> None:
        """Note how a request is to end, before the service is asked to end it.

        Whoever finds its TPU gone a moment later knows why; the note stays when the deletion fails,
        for then nobody is to make another one unasked. Unknown ids are none of ours.
        """
        if create_id and (entry := self.find(create_id)):
            self.update(entry, outcome=outcome)

    def close(self, create_id: str | None, outcome: str, *, at: datetime) -> None:
        """Note that nothing of a request exists any more; unknown ids are none of ours."""
        if create_id and (entry := self.find(create_id)):
            self.update(entry, phase="closed", outcome=outcome, closed=at)

    def forget(self, entry: Entry) -> None:
        """Remove an entry for good."""
        self._path(entry.create_id).unlink(missing_ok=True)

    @contextmanager
    def session(self) -> Iterator[str]:
        """Keep others from settling the entries that carry the yielded name; a crash ends it.

        Raises WriteError where no journal can be kept.
        """
        name = str(uuid.uuid4())
        path = self._lock(name)
        ensure_folder(path.parent)
        with locked(path, wait_s=0, busy="This journal's session is taken."):
            try:
                yield name
            finally:
                with suppress(OSError):
                    path.unlink()

    def is_alive(self, session: str) -> bool:
        """Whether the process that opened a session still works on its entries."""
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


def new_create_id() -> str:
    """Make an id that no other request has; it is a valid label value and request id."""
    return str(uuid.uuid4())


def _to_json(entry: Entry) -> str:
    known = {name: value for name, value in asdict(entry).items() if value is not None}
    return json.dumps({"schema": SCHEMA, **known}, indent=1, default=datetime.isoformat)


def _read(path: Path) -> Entry | None:
    """Read an entry; None when it is gone, or no entry of ours that anything could be done with."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        known = {f.name: document[f.name] for f in fields(Entry) if f.name in document}
        for name in ("created", "missing_since", "closed"):
            if name in known:
                known[name] = datetime.fromisoformat(known[name])
        return Entry(**known) if document.get("schema") == SCHEMA else None
    except (OSError, ValueError, TypeError, AttributeError):
        return None
