"""Records of requests to Colab, on disk before each is sent: a file per runtime, by name."""

import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from tpuctl.codec import from_plain, read_json, to_plain
from tpuctl.errors import WriteError
from tpuctl.settings import load_settings, state_dir
from tpuctl.storage.local import ensure_folder, is_locked, locked, write_atomically

SCHEMA = "tpuctl-colab/1"
TAKEN_AWAY = "Colab took it away"


@dataclass(frozen=True)
class Record:
    """One runtime that tpuctl requested.

    `intended`: requested, and may exist. `running`: it existed. `key` makes the create
    unique. `until_done` lets the guard delete it when the job of that name has ended and `is_home`
    says that its output was fetched: its `folder` there, to `output` here. Times are Colab's.
    """

    name: str
    key: str
    accelerator_type: str
    created: datetime
    endpoint: str = ""
    phase: Literal["intended", "running"] = "intended"
    plane: str = ""
    runtime_id: str = ""
    expires: datetime | None = None
    max_units: float | None = None
    units_before: float | None = None
    units_per_hour: float | None = None
    until_done: str | None = None
    is_home: bool = False
    folder: str | None = None
    output: str | None = None


def new_record(name: str, accelerator_type: str, **known: Any) -> Record:
    """Make the record of a new create, with a new key."""
    place = load_settings({})["colab_endpoint"] or ""
    return Record(name, uuid.uuid4().hex, accelerator_type, endpoint=place, **known)


class Records:
    """The records of this account's service, real or emulated."""

    def __init__(self) -> None:
        self.folder = state_dir() / "colab"
        self._endpoint = load_settings({})["colab_endpoint"] or ""

    def find(self, name: str) -> Record | None:
        """Read one record; None if it is missing or belongs to another service."""
        try:
            document = read_json(self.path(name))
            record = from_plain(Record, document)
        except (OSError, ValueError):
            return None
        return record if record.endpoint == self._endpoint else None

    def all(self) -> tuple[Record, ...]:
        """Read all records."""
        found = (self.find(path.stem) for path in sorted(self.folder.glob("*.json")))
        return tuple(record for record in found if record)

    def save(self, record: Record) -> Record:
        """Write a record; raises WriteError, and then nothing may be requested."""
        document = {"schema": SCHEMA, **to_plain(record)}
        write_atomically(self.path(record.name), json.dumps(document, indent=1), private=True)
        if rate := record.units_per_hour:
            known = json.dumps({"endpoint": self._endpoint, "units_per_hour": rate})
            write_atomically(self.path(record.accelerator_type, "rate"), known, private=True)
        return record

    def rate(self, accelerator_type: str) -> float | None:
        """Return the units per hour of a type, as a create has measured them."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            known = read_json(self.path(accelerator_type, "rate"))
            return float(known["units_per_hour"]) if known["endpoint"] == self._endpoint else None
        return None

    def update(self, record: Record, **changes: Any) -> Record:
        """Record changes; on a full disk what was written before still leads to the runtime."""
        changed = replace(record, **changes)
        with suppress(WriteError):
            self.save(changed)
        return changed

    def expect_end(self, record: Record, why: str) -> None:
        """Record why a runtime is deleted before it is, for a watch that looks meanwhile."""
        if self._is_current(record):
            with suppress(WriteError):
                write_atomically(self.path(record.name, "gone"), why, private=True)

    def forget(self, record: Record, why: str = "") -> None:
        """Remove a record of which nothing is left; a later one of that name is kept.

        `why` is how the runtime ended, unless it is known already; without it there was none.
        """
        if self._is_current(record):
            if why and self.why_gone(record.name) is None:
                write_atomically(self.path(record.name, "gone"), why, private=True)
            self.path(record.name).unlink(missing_ok=True)

    def _is_current(self, record: Record) -> bool:
        now = self.find(record.name)
        return now is not None and now.key == record.key

    def why_gone(self, name: str) -> str | None:
        """Return how a runtime that we had ended; None if nothing is known."""
        with suppress(OSError, ValueError):
            return self.path(name, "gone").read_text(encoding="utf-8")
        return None

    @contextmanager
    def creating(self, name: str) -> Iterator[None]:
        """Hold the lock of a create; the system drops it when this process dies."""
        ensure_folder(self.folder, private=True)
        with locked(self.lock(name), wait_s=0, busy=f"Another command is creating {name}."):
            yield

    def is_being_created(self, name: str) -> bool:
        """Whether a living process is creating it."""
        return is_locked(self.lock(name))

    def path(self, name: str, kind: str = "json") -> Path:
        """Return a file of a runtime."""
        return self.folder / f"{os.path.basename(name)}.{kind}"

    def lock(self, name: str, kind: str = "creating") -> Path:
        """Return a lock file of a runtime."""
        return self.path(name, f"{kind}.lock")
