"""A child's side of the line to its parent: requests come in, one JSON document each way a line.

Both ends notice when the other has gone: the child leaves as soon as its parent has, however that
went.
"""

import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any


class Channel:
    """What a child says to its parent, and what it is asked."""

    def __init__(self, descriptor: int) -> None:
        self._file = os.fdopen(descriptor, "w", encoding="utf-8")
        self._questions = _take_over_stdin()
        self._lock = threading.Lock()
        self._asked: queue.Queue[dict[str, Any]] = queue.Queue()
        self._phase, self._since = "starting", time.perf_counter()
        self.waiting_since: Callable[[], float | None] = lambda: self._since
        threading.Thread(target=self._listen, name="tpuctl-parent-watch", daemon=True).start()

    def requests(self) -> Iterator[dict[str, Any]]:
        """Wait for one request after the other; the process ends with its parent."""
        while True:
            yield self._asked.get()

    def enter(self, phase: str) -> None:
        """Begin a part of the work."""
        self._phase, self._since = phase, time.perf_counter()
        self.beat()

    def beat(self) -> None:
        """Say that we live, what we do and how long we have been waiting for it."""
        since = self.waiting_since()
        waiting_s = time.perf_counter() - since if since else 0.0
        done_s = time.perf_counter() - self._since
        stuck = where_python_is() if waiting_s > 1 else None
        self.send(phase=self._phase, done_s=done_s, waiting_s=waiting_s, stuck=stuck)

    def send(self, **message: Any) -> None:
        """Send one document; without a reader there is nothing left to do."""
        line = json.dumps(message) + "\n"
        with self._lock:
            try:
                self._file.write(line)
                self._file.flush()
            except OSError:
                os._exit(1)

    def _listen(self) -> None:
        # No file object, whose lock a process forked meanwhile would inherit as held.
        waiting = b""
        while chunk := os.read(self._questions, 1 << 16):
            *lines, waiting = (waiting + chunk).split(b"\n")
            for line in lines:
                self._asked.put(json.loads(line))
        os._exit(1)


def _take_over_stdin() -> int:
    """Keep stdin for the parent: the user's code, which may ask somebody, finds nobody there."""
    questions = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return questions


def where_python_is() -> str | None:
    """Find the line of the user's code that some thread is in."""
    own = threading.get_ident()
    for ident, frame in sys._current_frames().items():
        walker: FrameType | None = frame
        while walker is not None and ident != own:
            name = walker.f_code.co_filename
            if not any(part in name for part in ("site-packages", "tpuctl", "/lib/python", "<")):
                return f"{name}:{walker.f_lineno}"
            walker = walker.f_back
    return None
