"""The memory that all workers together may use for decoding."""

import fcntl
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from tpuctl.datasets.quarantine import BadImageError
from tpuctl.storage.cgroups import memory_limit_bytes
from tpuctl.storage.local import LOCK_FLAGS, set_lock
from tpuctl.units import format_bytes

# The rest is for the processes themselves, the page cache and everything else on the machine.
_SHARE_OF_RAM = 0.6
# A photograph of 100 megapixels fits, in every format.
MAX_IMAGE_BYTES = 1 << 30
# Read-ahead from buckets, stacks of threads, and what the allocators hold back.
_SLACK_BYTES = 256 << 20


def memory_budget_bytes(root: Path = Path("/")) -> int:
    """Take 60 % of the RAM, or of the container's limit where that is less."""
    import psutil

    total = psutil.virtual_memory().total
    return int(min(total, memory_limit_bytes(root) or total) * _SHARE_OF_RAM)


Admit = Callable[[int], AbstractContextManager[None]]


class Admission:
    """Lets workers decode at once while each keeps to its share; a larger image is decoded alone.

    Two lock files work between processes as a fair read-write lock: `room` is held while decoding,
    shared or alone, and `gate` while waiting for it. Without the gate, a stream of small images
    could keep a large one waiting forever. The kernel enforces what was admitted, for a header may
    hide what a decoder will do.
    """

    def __init__(
        self, folder: Path, *, budget_bytes: int, workers: int, image_bytes: int = MAX_IMAGE_BYTES
    ) -> None:
        self._gate = os.open(folder / "gate.lock", LOCK_FLAGS, 0o600)
        self._room = os.open(folder / "room.lock", LOCK_FLAGS, 0o600)
        self._budget, self._image = budget_bytes, image_bytes
        self._share = budget_bytes // workers

    def __call__(self, needed_bytes: int) -> AbstractContextManager[None]:
        """Wait until that much memory may be used; raises BadImageError."""
        for limit, name, remedy in (
            (
                self._image,
                "the limit",
                "; raise it with --max-image-memory and --retry-quarantined",
            ),
            (self._budget, "the memory budget", ""),
        ):
            if needed_bytes > limit:
                raise BadImageError(
                    "bomb",
                    f"decoding needs about {format_bytes(needed_bytes)}, "
                    f"{name} is {format_bytes(limit)}{remedy}",
                )
        if needed_bytes <= self._share:
            return self._hold(fcntl.LOCK_SH, min(self._share, self._image))
        return self._hold(fcntl.LOCK_EX, min(self._budget, self._image))

    @contextmanager
    def _hold(self, how: int, limit_bytes: int) -> Iterator[None]:
        set_lock(self._gate, fcntl.LOCK_EX)
        try:
            set_lock(self._room, how)
        finally:
            set_lock(self._gate, fcntl.LOCK_UN)
        try:
            with limited_memory(limit_bytes):
                yield
        finally:
            set_lock(self._room, fcntl.LOCK_UN)


@contextmanager
def limited_memory(more_bytes: int) -> Iterator[None]:
    """Limit how much more this process can allocate; beyond that, allocations fail."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    pages = int(Path("/proc/self/statm").read_text().split()[5])
    limit = pages * resource.getpagesize() + more_bytes + _SLACK_BYTES
    limits = [limit, *(each for each in (soft, hard) if each != resource.RLIM_INFINITY)]
    resource.setrlimit(resource.RLIMIT_DATA, (min(limits), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
