"""Common code of Colab, Kaggle and GKE: records of runs, refusals, deletions one by one."""

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from tpuctl.cloud.delete import DeletedEarlier, DeleteResult, TpuDeletion, failed_deletion
from tpuctl.cloud.gc import GcResult, Orphan, orphan_of
from tpuctl.cloud.lookup import attempt
from tpuctl.cloud.tpu import Tpu
from tpuctl.codec import from_plain, read_json, to_plain
from tpuctl.errors import TpuctlError, TryAgainError
from tpuctl.providers.port import Abilities, Login, refused
from tpuctl.remote.copy_plan import CopyResults
from tpuctl.remote.jobs import StoppedJob
from tpuctl.remote.output import Sink
from tpuctl.settings import state_dir
from tpuctl.storage.local import ensure_folder, locked, write_atomically

if TYPE_CHECKING:
    from tpuctl.providers.gke.follow import ClusterRun
    from tpuctl.providers.kaggle.follow import HostedRun

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


Delete = Callable[[TpuDeletion], TpuDeletion]


class BatchProvider:
    """A provider that runs whole jobs: a TPU exists only for one, and has no SSH."""

    abilities: Abilities

    plan = create = refused("create")

    def reach(self, name: str, login: Login) -> NoReturn:
        """Raise: no worker can be reached."""
        raise self.abilities.refuse("SSH", name=name)

    def logs(
        self, name: str, *, to_end: bool, sink: Sink, note: Callable[[str], None]
    ) -> "HostedRun | ClusterRun | Tpu":
        """Pass on the output of a run; `to_end` follows it to its end."""
        raise NotImplementedError

    def stop(self, name: str) -> StoppedJob:
        """Stop a run; raises UnsupportedError."""
        raise self.abilities.refuse("stop", name=name)

    def fetch(self, name: str, path: str, target: Path) -> CopyResults:
        """Copy a file or folder of a run's output; raises UnsupportedError."""
        raise self.abilities.refuse("cp", name=name)


def plan_deletions(
    names: Sequence[str] | None,
    found: Collection[str],
    describe: Callable[[str], TpuDeletion],
    *,
    was_ours: Callable[[str], bool],
    missing: Callable[[str], TpuctlError],
) -> DeleteResult:
    """Plan to delete the named ones, or all that were found; raises the error of a single name."""
    planned: list[TpuDeletion] = []
    gone: list[DeletedEarlier] = []
    failures: list[TpuctlError] = []
    for name in dict.fromkeys(found if names is None else names):
        if name in found:
            planned.append(describe(name))
        elif was_ours(name):
            gone.append(DeletedEarlier(name, None))
        else:
            failures.append(missing(name))
    if len(failures) == 1 and not planned and not gone:
        raise failures[0]
    return DeleteResult(tuple(planned), tuple(gone), not_planned=tuple(failures)).summed()


def delete_each(plan: DeleteResult, delete: Delete) -> DeleteResult:
    """Delete what was planned; failures are in the result."""
    done = tuple(_try_to_delete(each, delete) for each in plan.tpus)
    return replace(plan, tpus=done, dry_run=False).summed()


def delete_orphans_still(
    found: GcResult, is_still: Callable[[Orphan], bool], delete: Delete
) -> GcResult:
    """Delete the orphans that still are orphans."""
    done = []
    for orphan in found.found:
        deletion = replace(orphan.deletion, outcome="left_alone")
        if orphan.action == "delete" and is_still(orphan):
            deletion = _try_to_delete(orphan.deletion, delete)
        done.append(orphan_of(deletion, orphan.reason))
    return replace(found, found=tuple(done), acted=True).summed()


def _try_to_delete(planned: TpuDeletion, delete: Delete) -> TpuDeletion:
    done = attempt(partial(delete, planned))
    return failed_deletion(planned, done) if isinstance(done, TpuctlError) else done
