"""What to copy where, and the results of a copy."""

import enum
import re
from dataclasses import dataclass, field
from pathlib import Path

from tpuctl.errors import TpuctlError, UsageError
from tpuctl.outcome import Outcome, Status
from tpuctl.remote.hosts import name_workers
from tpuctl.remote.results import CommandResult, Results

_REMOTE = re.compile(r"(?P<name>[^/:]*):(?P<path>.*)", re.DOTALL)
_NAMED = 3


class Direction(enum.Enum):
    """To the workers or from them."""

    UP = "to"
    DOWN = "from"


@dataclass(frozen=True)
class LeftOut:
    """A file or folder that is not copied."""

    path: str
    why: str
    is_secret: bool = False


@dataclass(frozen=True)
class CopyFile:
    """A file that would be copied: its path in the source, or where it would be written here."""

    path: str
    size_bytes: int


@dataclass(frozen=True)
class CopyPreview(Outcome):
    """What a copy would do; unchanged files among these would not be sent again."""

    direction: Direction
    workers: int
    files: tuple[CopyFile, ...]
    left_out: tuple[LeftOut, ...]
    size_bytes: int
    failures: tuple[TpuctlError, ...] = field(default=(), metadata={"internal": True})

    @property
    def status(self) -> Status:
        """Partial when some workers could not say what they have."""
        return ("partial" if self.files else "error") if self.failures else "ok"


@dataclass(frozen=True, kw_only=True)
class CopyResult(CommandResult):
    """What was copied to or from one worker; `files` counts all files, sent or not."""

    path: str | None = None
    files: int = 0
    sent: int = 0
    sent_bytes: int = 0
    changed: tuple[str, ...] = ()
    odd: tuple[str, ...] = ()
    left_out: tuple[LeftOut, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CopyResults(Results):
    """The result of a copy to or from all workers."""

    workers: tuple[CopyResult, ...]
    direction: Direction
    seconds: float
    odd: tuple[str, ...] = ()
    left_out: tuple[LeftOut, ...] = ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """Files that could not be copied."""
        warnings = []
        odd = sorted({*self.odd, *(name for worker in self.workers for name in worker.odd)})
        if odd:
            warnings.append(f"Not copied, as neither file, folder nor link: {_some(odd)}.")
        if secrets := [f"{one.path} ({one.why})" for one in self.left_out if one.is_secret]:
            warnings.append(
                f"Not copied, as they may hold secrets: {_some(secrets)}. To copy one, add a line "
                "like !NAME to .tpuignore; --include-secrets copies all of them."
            )
        for worker in self.workers:
            if refused := [f"{one.path} ({one.why})" for one in worker.left_out]:
                warnings.append(f"Not copied from worker {worker.index}: {_some(refused)}.")
        messy = [worker for worker in self.workers if worker.changed]
        if messy:
            names = sorted({name for worker in messy for name in worker.changed})
            where = name_workers(worker.index for worker in messy)
            warnings.append(
                f"Not copied, as they could not be read completely ({where}): {_some(names)}. "
                "If they were being written, run the command again."
            )
        return tuple(warnings)


@dataclass(frozen=True)
class CopyPlan:
    """The path on the workers, the local path, and the direction."""

    direction: Direction
    name: str | None
    remote: str
    local: str
    include_secrets: bool = False

    @property
    def local_path(self) -> Path:
        """The local path with the home folder in the place of ~."""
        return Path(self.local or ".").expanduser()


def plan_copy(
    source: str, target: str, *, has_hosts: bool, include_secrets: bool = False
) -> CopyPlan:
    """Read `NAME:path` on exactly one side; raises UsageError.

    With `--host` the name is empty: `:path`.
    """
    from_there, to_there = _REMOTE.fullmatch(source), _REMOTE.fullmatch(target)
    there = from_there or to_there
    if there is None or (from_there and to_there):
        raise UsageError(
            "Exactly one of source and target must be on the workers.",
            hint="Use NAME:path (with --host :path); for a local path with a colon, ./a:b.",
        )
    name = there["name"] or None
    if has_hosts and name:
        raise UsageError(
            f"{name}:{there['path']} cannot be combined with --host.", hint="Use :path."
        )
    if "\0" in source + target:
        raise UsageError("A path cannot contain a NUL character.")
    direction = Direction.DOWN if from_there else Direction.UP
    local = target if from_there else source
    return CopyPlan(direction, name, there["path"], local, include_secrets)


def _some(names: list[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
