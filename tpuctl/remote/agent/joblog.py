"""The size limit of a job's log: its oldest part is freed as a hole in the file.

The job writes to the file directly, so no pipe can break or block it. A hole takes no disk space
and moves nothing, so readers keep their offsets; SEEK_DATA finds where it ends.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

LOG_BYTES = 1 << 30
"""How much of its log a job keeps on each worker by default."""

# FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
_KEEP_SIZE_PUNCH_HOLE = 1 | 2
_BLOCK_BYTES = 1 << 12
_TAIL_BYTES = 1 << 16
_LONGEST_LINE = 1 << 16
_SLACK = 16


class LogLimit:
    """Keeps a log within a number of bytes plus a sixteenth; 0 means no limit."""

    def __init__(self, log: int, most_bytes: int) -> None:
        self._log, self._most = log, most_bytes
        self._start = 0
        self._punch = _find_punch() if most_bytes else None

    def enforce(self) -> None:
        """Free the part that exceeds the limit."""
        if self._punch is None:
            return
        # Only whole blocks can be freed, and not a few at a time: each call is a disk transaction.
        start = (os.fstat(self._log).st_size - self._most) // _BLOCK_BYTES * _BLOCK_BYTES
        if start - self._start < max(_BLOCK_BYTES, self._most // _SLACK):
            return
        if self._punch(self._log, start):
            self._start = start
        else:
            self._punch = None


def _find_punch() -> Callable[[int, int], bool] | None:
    """Return a function that frees the first bytes of a file; None where the C library has none."""
    try:
        import ctypes

        library = ctypes.CDLL(None, use_errno=True)
        call = getattr(library, "fallocate64", None) or library.fallocate
    except (ImportError, OSError, AttributeError):
        return None
    call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]

    def punch(descriptor: int, size: int) -> bool:
        return int(call(descriptor, _KEEP_SIZE_PUNCH_HOLE, 0, size)) == 0

    return punch


def data_start(log: int, offset: int) -> int:
    """Return the first offset, from `offset` on, that is not in a hole."""
    try:
        return os.lseek(log, offset, os.SEEK_DATA)
    except OSError:
        return offset


def read_from(log: int, offset: int, size: int) -> tuple[int, bytes]:
    """Read from an offset, or from the first whole line behind a hole; returns offset and data."""
    data = os.pread(log, size, offset)
    # Checked after reading, because a part that was freed in the meantime reads as zeros.
    begin = data_start(log, offset) if data else offset
    if begin == offset:
        return offset, data
    begin = _next_line(log, begin)
    return begin, b""


def _next_line(log: int, offset: int) -> int:
    """Return where the next whole line begins, within the longest line."""
    found = os.pread(log, _LONGEST_LINE, offset).find(b"\n")
    return offset + found + 1


def tail_offset(log: int, lines: int) -> int:
    """Return where the last lines begin, as far as they still exist."""
    end = position = os.fstat(log).st_size
    first = data_start(log, 0)
    missing = lines + 1
    while position > first:
        start = max(first, position - _TAIL_BYTES)
        chunk = os.pread(log, position - start, start)
        if position == end and not chunk.endswith(b"\n"):
            missing -= 1
        found = chunk.count(b"\n")
        if found >= missing:
            for _ in range(missing):
                chunk = chunk[: chunk.rindex(b"\n")]
            return start + len(chunk) + 1
        missing -= found
        position = start
    return _next_line(log, first) if first else 0
