"""The memory that all workers together may use for decoding."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from tpuctl.datasets.quarantine import BadImageError
from tpuctl.storage.cgroups import memory_limit_bytes
from tpuctl.units import format_bytes

# The rest is for the processes themselves, the page cache and everything else on the machine.
_SHARE_OF_RAM = 0.6


def memory_budget_bytes(root: Path = Path("/")) -> int:
    """Take 60 % of the RAM, or of the container's limit where that is less."""
    import psutil

    total = psutil.virtual_memory().total
    return int(min(total, memory_limit_bytes(root) or total) * _SHARE_OF_RAM)


Admit = Callable[[int], AbstractContextManager[None]]


class Admission:
    """Lets workers decode at once while each keeps to its share; a larger image goes alone.

    Two lock files work between processes as a fair read-write lock: `room` is held while decoding,
    shared or alone, and `gate` while waiting for it. Without the gate, a stream of small images
    could keep a large one waiting forever.
    """

    def __init__(self, folder: Path, *, budget_bytes: int, workers: int) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._gate = os.open(folder / "gate.lock", flags, 0o644)
        self._room = os.open(folder / "room.lock", flags, 0o644)
        self._budget = budget_bytes
        self._share = budget_bytes // workers

    def __call__(self, needed_bytes: int) -> AbstractContextManager[None]:
        """Wait until that much memory may be used; raises BadImageError."""
        if needed_bytes > self._budget:
            raise BadImageError(
                "bomb",
                f"decoding needs about {format_bytes(needed_bytes)}, "
                f"the memory budget is {format_bytes(self._budget)}",
            )
        return self._hold(fcntl.LOCK_SH if needed_bytes <= self._share else fcntl.LOCK_EX)

    @contextmanager
    def _hold(self, how: int) -> Iterator[None]:
        fcntl.flock(self._gate, fcntl.LOCK_EX)
        try:
            fcntl.flock(self._room, how)
        finally:
            fcntl.flock(self._gate, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(self._room, fcntl.LOCK_UN)
