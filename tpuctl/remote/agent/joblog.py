"""A job's log, bounded: what is too old is cut out of the file, and nothing moves.

The job writes to the file itself, so there is no pipe that could break or hold it up. The oldest
part becomes a hole: its blocks are free again and every byte keeps its place, so who reads at an
offset goes on as before. Where the hole ends, the file system tells.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

LOG_BYTES = 1 << 30
"""How much of its log a job keeps on each worker, unless it is told otherwise."""

_KEEP_SIZE_PUNCH_HOLE = 1 | 2
_BLOCK_BYTES = 1 << 12
_TAIL_BYTES = 1 << 16
_LONGEST_LINE = 1 << 16
_SLACK = 16


class LogLimit:
    """Keeps a log within a number of bytes, and a sixteenth of it; 0 means no bound."""

    def __init__(self, log: int, most_bytes: int) -> None:
        self._log, self._most = log, most_bytes
        self._start = 0
        self._punch = _find_punch() if most_bytes else None

    def keep(self) -> None:
        """Cut out what is too old by now."""
        if self._punch is None:
            return
        start = (os.fstat(self._log).st_size - self._most) // _BLOCK_BYTES * _BLOCK_BYTES
        if start - self._start < max(_BLOCK_BYTES, self._most // _SLACK):
            return
        if self._punch(self._log, start):
            self._start = start
        else:
            self._punch = None


def _find_punch() -> Callable[[int, int], bool] | None:
    """What frees the first so many bytes of a file; None where there is no such thing."""
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
    """Where the log still is, at `offset` or behind it."""
    try:
        return os.lseek(log, offset, os.SEEK_DATA)
    except OSError:
        return offset


def read_from(log: int, offset: int, size: int) -> tuple[int, bytes]:
    """Read on from an offset, or from the first whole line behind a hole; from where, and what."""
    data = os.pread(log, size, offset)
    # Looked at after reading: what has been cut out meanwhile reads as zeros.
    begin = data_start(log, offset) if data else offset
    if begin == offset:
        return offset, data
    begin = _next_line(log, begin)
    return begin, b""


def _next_line(log: int, offset: int) -> int:
    """The beginning of the next whole line, if there is one soon."""
    found = os.pread(log, _LONGEST_LINE, offset).find(b"\n")
    return offset + found + 1


def is_too_large(log: int, most_bytes: int) -> bool:
    """Whether a log takes far more room than it should, for it could not be cut."""
    return bool(most_bytes) and os.fstat(log).st_blocks * 512 > 2 * most_bytes + (1 << 20)


def tail_offset(log: int, lines: int) -> int:
    """Where the last so many lines begin, as far as they are still there."""
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
