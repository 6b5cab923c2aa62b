"""A child's side of the line to its parent: requests come in, one JSON document each way a line.

Both ends notice when the other has gone: the child leaves as soon as its parent has, however that
went.
"""

import contextlib
import json
import os
import queue
import resource
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import IO, Any

from tpuctl.errors import InvalidInputError, NotFoundError, TargetError, TpuctlError
from tpuctl.units import format_bytes
from tpuctl.usercode.error_summary import last_words, ran_out_of_memory


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


SILENCE_LIMIT_S = 60.0
TICK_S = 0.5
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu"}
ERRORS = {kind.code: kind for kind in (InvalidInputError, NotFoundError, TargetError)}


class Child:
    """A running `python -m MODULE DESCRIPTOR` that answers requests through a `Channel`."""

    def __init__(
        self, process: "subprocess.Popen[bytes]", messages: IO[bytes], log: IO[bytes]
    ) -> None:
        self._process, self._messages, self._log = process, messages, log
        self._buffer = b""
        self._silent_since, self._last = time.monotonic(), {"phase": "starting"}

    def ask(self, request: Mapping[str, Any]) -> None:
        """Send one request; one that no longer listens says why in `listen`."""
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()

    def listen(
        self, limits_s: Mapping[str, float], limit_s: float, *, more_time: str
    ) -> Iterator[dict[str, Any]]:
        """Yield what the child says until it has said all.

        Raises TargetError when a phase makes no progress for `limits_s[phase]`, else `limit_s`;
        `more_time` is its hint.
        """
        while True:
            if select.select([self._messages], [], [], TICK_S)[0]:
                chunk = os.read(self._messages.fileno(), 1 << 20)
                if not chunk:
                    return
                self._silent_since, self._buffer = time.monotonic(), self._buffer + chunk
                *lines, self._buffer = self._buffer.split(b"\n")
                for line in lines:
                    self._last = json.loads(line)
                    yield self._last
            phase = str(self._last.get("phase", ""))
            self._check_patience(phase, limits_s.get(phase, limit_s), more_time)

    def _check_patience(self, phase: str, limit_s: float, more_time: str) -> None:
        silent_s = time.monotonic() - self._silent_since
        said_s = float(self._last.get("waiting_s", 0.0))
        if said_s + silent_s > limit_s and (said_s or silent_s > SILENCE_LIMIT_S):
            place = f" It was at {self._last['stuck']}." if self._last.get("stuck") else ""
            raise TargetError(
                f"Nothing came for {limit_s:.0f} s while {phase}.{place}",
                hint=more_time,
            )

    def error(self, message: Mapping[str, Any]) -> Exception:
        """What the child raised, as it sent it."""
        if message["error"] == "bug":
            return RuntimeError(f"{message['message']}\n{self._tail()}")
        kind: type[TpuctlError] = ERRORS.get(message["error"], TpuctlError)
        error = kind(message["message"], hint=message["hint"])
        error.code = message["error"]
        return error

    def death(self, what: str, hint: str | None) -> TargetError:
        """Say how a child that left without a result came to its end."""
        code = self._process.wait()
        if code < 0:
            end = f"was killed by {signal.Signals(-code).name}{self._memory(-code)}"
        else:
            end = f"ended with code {code} and without a result"
        return TargetError(f"The {what} process {end}. {self._tail()}".rstrip(), hint=hint)

    def _memory(self, number: int) -> str:
        """Whether it was for want of memory: the kernel kills, libraries abort."""
        limit_bytes, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit_bytes != resource.RLIM_INFINITY:
            return f"; a process has {format_bytes(limit_bytes)} of memory here (ulimit -v)"
        if number == signal.SIGKILL or ran_out_of_memory(self._read_log()):
            return "; the machine may have run out of memory"
        return ""

    def _tail(self) -> str:
        words = last_words(self._read_log())
        return f"Its last words: {words}" if words else ""

    def _read_log(self) -> str:
        self._log.seek(0)
        return self._log.read().decode("utf-8", "replace")

    def end(self) -> None:
        """Kill it and all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdin:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()


@contextmanager
def start_child(module: str, *, env: Mapping[str, str] | None = None) -> Iterator[Child]:
    """Start a module as a process; it is gone when the block is left."""
    receive, send = os.pipe()
    with tempfile.TemporaryFile() as log, os.fdopen(receive, "rb") as messages:
        process = subprocess.Popen(
            [sys.executable, "-m", module, str(send)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=(send,),
            start_new_session=True,
            env={**os.environ, **QUIET, **(env or {}), "PYTHONPATH": python_path()},
        )
        os.close(send)
        child = Child(process, messages, log)
        try:
            yield child
        finally:
            child.end()


def python_path() -> str:
    """Let the child find the tpuctl that is running, wherever it was started."""
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
