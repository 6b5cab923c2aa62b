"""Copies: what goes where, and what came of it."""

import enum
import re
from dataclasses import dataclass

from tpuctl.errors import TpuctlError, UsageError
from tpuctl.remote.ends import Ends, WorkerEnd
from tpuctl.remote.hosts import Host, name_workers

_REMOTE = re.compile(r"(?P<name>[^/:]*):(?P<path>.*)", re.DOTALL)
_NAMED = 3


class Direction(enum.Enum):
    """Which way the files go."""

    UP = "to"
    DOWN = "from"


@dataclass(frozen=True)
class CopyEnd(WorkerEnd):
    """What was copied to or from one worker; `files` is how many there are, sent or not."""

    path: str | None = None
    files: int = 0
    sent: int = 0
    sent_bytes: int = 0
    changed: tuple[str, ...] = ()
    odd: tuple[str, ...] = ()


@dataclass(frozen=True)
class Copied(Ends):
    """A copy to or from all workers."""

    workers: tuple[CopyEnd, ...]
    direction: Direction
    seconds: float
    odd: tuple[str, ...] = ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """What could not be copied, and is no failure."""
        said = []
        odd = sorted({*self.odd, *(name for worker in self.workers for name in worker.odd)})
        if odd:
            said.append(f"Neither file, folder nor link, so not copied: {_some(odd)}.")
        messy = [worker for worker in self.workers if worker.changed]
        if messy:
            names = sorted({name for worker in messy for name in worker.changed})
            where = name_workers(worker.index for worker in messy)
            said.append(
                f"Could not be read whole, so not copied ({where}): {_some(names)}. "
                "If it was written meanwhile, the same command again takes it."
            )
        return tuple(said)


@dataclass(frozen=True)
class CopyPlan:
    """Which path of the workers, which one here, and which way."""

    direction: Direction
    name: str | None
    remote: str
    local: str


def plan_copy(source: str, target: str, *, has_hosts: bool) -> CopyPlan:
    """Read `NAME:path` on exactly one side; raises UsageError.

    With machines given by address the name is empty: `:path`.
    """
    from_there, to_there = _REMOTE.fullmatch(source), _REMOTE.fullmatch(target)
    there = from_there or to_there
    if there is None or (from_there and to_there):
        raise UsageError(
            "Exactly one side must be on the workers.",
            hint="Write it like NAME:path (with --host like :path), and ./a:b for a local file.",
        )
    name = there["name"] or None
    if has_hosts and name:
        raise UsageError(
            f"With --host, {name}:{there['path']} names no machine.", hint="Write only :path."
        )
    if "\0" in source + target:
        raise UsageError("No path can hold a NUL character.")
    direction = Direction.DOWN if from_there else Direction.UP
    return CopyPlan(direction, name, there["path"], target if from_there else source)


def copy_failed(host: Host, error: TpuctlError) -> CopyEnd:
    """What came of a copy that failed."""
    return CopyEnd(host.index, host.address, None, None, str(error), failure=error)


def _some(names: list[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
