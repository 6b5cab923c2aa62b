"""Records of the runs that this machine has started on a provider of batch jobs."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from tpuctl.codec import from_plain, read_json, to_plain
from tpuctl.errors import TryAgainError
from tpuctl.settings import state_dir
from tpuctl.storage.local import ensure_folder, locked, write_atomically

SCHEMA = "tpuctl-kaggle/1"
"""The format of a record, which GKE's have, too."""


@dataclass(frozen=True)
class Run:
    """One run. `key` is the same for the same command; `out` is the folder for its output here.

    `intended`: written, perhaps pushed. `pushed`: it has a version. `ended`: its exit code is
    known. `home`: its output is here as well. `deleted`: a user deleted it. `data_set` is the
    private one that was made for it.
    """

    name: str
    key: str
    script: str
    endpoint: str
    owner: str
    out: str
    asked: datetime
    limit_s: float
    phase: Literal["intended", "pushed", "ended", "home", "deleted"] = "intended"
    version: int | None = None
    exit_code: int | None = None
    data_set: str | None = None

    @property
    def url(self) -> str:
        """Its page."""
        return f"https://www.kaggle.com/code/{self.owner}/{self.name}"

    @property
    def ends_by(self) -> datetime:
        """When Kaggle ends the session if it started as soon as it was requested."""
        return self.asked + timedelta(seconds=self.limit_s)


class RunStore:
    """The runs in a folder; safe for several processes at once."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or state_dir() / "kaggle"

    def write(self, run: Run, **changes: Any) -> Run:
        """Write a run with some changes; raises WriteError."""
        changed = replace(run, **changes)
        text = json.dumps({"schema": SCHEMA, **to_plain(changed)}, indent=1)
        write_atomically(self._path(run.name), text, private=True)
        return changed

    def find(self, name: str) -> Run | None:
        """Read a run; None where it is missing or damaged."""
        try:
            document = read_json(self._path(name))
            return from_plain(Run, document) if document["schema"] == SCHEMA else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def runs(self, endpoint: str) -> list[Run]:
        """Read the runs at an endpoint, newest first."""
        found = (self.find(path.stem) for path in self.folder.glob("*.json"))
        ours = [run for run in found if run and run.endpoint == endpoint]
        return sorted(ours, key=lambda run: run.asked, reverse=True)

    def forget(self, run: Run) -> None:
        """Remove a run."""
        self._path(run.name).unlink(missing_ok=True)

    @contextmanager
    def lock(self, word: str, wait_s: float = 0.0) -> Iterator[None]:
        """Hold the lock of a run or a command; raises TryAgainError while another process does."""
        ensure_folder(self.folder, private=True)
        path = self.folder / f"{word}.lock"
        with locked(path, wait_s=wait_s, busy="Another tpuctl is busy with this run."):
            try:
                yield
            finally:
                path.unlink(missing_ok=True)

    def is_followed(self, run: Run) -> bool:
        """Whether a process of this machine follows it."""
        try:
            with self.lock(run.name):
                return False
        except TryAgainError:
            return True

    def _path(self, name: str) -> Path:
        return self.folder / f"{Path(name).name}.json"
