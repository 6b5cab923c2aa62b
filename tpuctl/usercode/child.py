"""Run user code in a supervised child process: the parent's `Child` and the child's `Channel`.

They exchange JSON documents, one per line: requests on the child's stdin, answers on a pipe. The
child exits as soon as its parent is gone, for whatever reason.
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

from tpuctl.errors import (
    CompilerError,
    InvalidInputError,
    NotFoundError,
    NotLoggedInError,
    PermissionDeniedError,
    RateLimitedError,
    SourceChangedError,
    TargetError,
    TpuctlError,
    UnavailableError,
    WriteError,
)
from tpuctl.start_python import child_environment, python_command, signal_name
from tpuctl.units import format_bytes
from tpuctl.usercode.error_summary import last_line, ran_out_of_memory
from tpuctl.usercode.frames import current_frames, no_collection


class Channel:
    """The child's end: receives requests and sends answers."""

    def __init__(self, descriptor: int) -> None:
        self._file = os.fdopen(descriptor, "w", encoding="utf-8")
        self._requests_fd = _take_over_stdin()
        self._lock = threading.Lock()
        self._requests: queue.Queue[dict[str, Any]] = queue.Queue()
        self._phase, self._since = "starting", time.perf_counter()
        self.waiting_since: Callable[[], float | None] = lambda: self._since
        threading.Thread(target=self._listen, name="tpuctl-parent-watch", daemon=True).start()

    def requests(self) -> Iterator[dict[str, Any]]:
        """Yield requests as they arrive, until the parent ends."""
        while True:
            yield self._requests.get()

    def enter(self, phase: str) -> None:
        """Start a phase of the work, which has its own time limit."""
        self._phase, self._since = phase, time.perf_counter()
        self.beat()

    def beat(self) -> None:
        """Tell the parent the current phase and how long it has been waiting for user code."""
        since = self.waiting_since()
        waiting_s = time.perf_counter() - since if since else 0.0
        done_s = time.perf_counter() - self._since
        stuck = running_user_line() if waiting_s > 1 else None
        self.send(phase=self._phase, done_s=done_s, waiting_s=waiting_s, stuck=stuck)

    def send(self, **message: Any) -> None:
        """Send one document; exit if the parent no longer reads."""
        line = json.dumps(message) + "\n"
        with self._lock:
            try:
                self._file.write(line)
                self._file.flush()
            except OSError:
                os._exit(1)

    def _listen(self) -> None:
        # Raw reads: a process forked by user code would inherit a file object's lock as held.
        rest = b""
        while chunk := os.read(self._requests_fd, 1 << 16):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._requests.put(json.loads(line))
        os._exit(1)


def _take_over_stdin() -> int:
    """Keep stdin for requests; user code that reads stdin gets end of file instead of hanging."""
    requests = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return requests


_NOT_THE_USERS = ("site-packages", "tpuctl", "/lib/python", "<")


def running_user_line() -> str | None:
    """Return the line of user code that another thread is executing, as `file:line`."""
    own = threading.get_ident()
    with no_collection():
        for ident, frame in current_frames():
            walker: FrameType | None = frame
            while walker is not None and ident != own:
                name = walker.f_code.co_filename
                if not any(part in name for part in _NOT_THE_USERS):
                    return f"{name}:{walker.f_lineno}"
                walker = walker.f_back
    return None


SILENCE_LIMIT_S = 60.0
TICK_S = 0.5
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu"}
ERRORS: dict[str, type[TpuctlError]] = {
    kind.code: kind
    for kind in (
        CompilerError,
        InvalidInputError,
        NotFoundError,
        NotLoggedInError,
        PermissionDeniedError,
        RateLimitedError,
        SourceChangedError,
        TargetError,
        UnavailableError,
        WriteError,
    )
}


class Child:
    """A running module that answers requests through a `Channel`."""

    def __init__(
        self, process: "subprocess.Popen[bytes]", messages: IO[bytes], log: IO[bytes]
    ) -> None:
        self._process, self._messages, self._log = process, messages, log
        self._buffer = b""
        self._silent_since, self._last = time.monotonic(), {"phase": "starting"}

    def ask(self, request: Mapping[str, Any]) -> None:
        """Send one request; if the child is gone, `listen` reports why."""
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()

    def listen(
        self, limits_s: Mapping[str, float], limit_s: float, *, more_time: str
    ) -> Iterator[dict[str, Any]]:
        """Yield the child's answers until it closes the pipe.

        Raises TargetError, with the hint `more_time`, if a phase makes no progress for
        `limits_s[phase]`; other phases are allowed `limit_s`, and at least a minute.
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
            self._check_progress(limits_s, limit_s, more_time)

    def _check_progress(
        self, limits_s: Mapping[str, float], limit_s: float, more_time: str
    ) -> None:
        # The child reports how long it has waited for user code; time without reports counts too.
        silent_s = time.monotonic() - self._silent_since
        reported_s = float(self._last.get("waiting_s", 0.0))
        phase = str(self._last.get("phase", ""))
        has_own_limit, limit_s = phase in limits_s, limits_s.get(phase, limit_s)
        counts = has_own_limit or reported_s or silent_s > SILENCE_LIMIT_S
        if counts and reported_s + silent_s > limit_s:
            place = f" It is stuck at {self._last['stuck']}." if self._last.get("stuck") else ""
            raise TargetError(
                f"No progress for {limit_s:.0f} s while {phase}.{place}", hint=more_time
            )

    def error(self, message: Mapping[str, Any]) -> Exception:
        """Rebuild the exception that the child reported."""
        if message["error"] == "bug":
            return RuntimeError(f"{message['message']}\n{self._tail()}")
        kind: type[TpuctlError] = ERRORS.get(message["error"], TpuctlError)
        error = kind(message["message"], hint=message["hint"])
        error.code = message["error"]
        return error

    def exit_error(self, what: str, hint: str | None) -> TargetError:
        """Return the error for a child that ended without a result."""
        code = self._process.wait()
        if code < 0:
            end = f"was killed by {signal_name(-code)}{self._memory(-code)}"
        else:
            end = f"exited with code {code} without a result"
        return TargetError(f"The {what} process {end}. {self._tail()}".rstrip(), hint=hint)

    def _memory(self, number: int) -> str:
        """Explain a signal that may mean lack of memory: the kernel kills, libraries abort."""
        limit_bytes, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit_bytes != resource.RLIM_INFINITY:
            return f"; a process has {format_bytes(limit_bytes)} of memory here (ulimit -v)"
        if number == signal.SIGKILL or ran_out_of_memory(self._read_log()):
            return "; the machine may have run out of memory"
        return ""

    def wait(self) -> str:
        """Wait for the child to end; returns the signal or the exit code."""
        code = self._process.wait()
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def last_line(self) -> str:
        """The last line that the child printed; may be empty."""
        return last_line(self._read_log())

    def _tail(self) -> str:
        words = self.last_line()
        return f"Last output: {words}" if words else ""

    def _read_log(self) -> str:
        self._log.seek(0)
        return self._log.read().decode("utf-8", "replace")

    def kill(self) -> None:
        """Kill the child and every process it started; any thread may call this."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def end(self) -> None:
        """Kill the child and wait until it has ended."""
        self.kill()
        self._process.wait()
        if self._process.stdin:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()


@contextmanager
def start_child(
    module: str,
    *,
    env: Mapping[str, str] | None = None,
    python: str = sys.executable,
    inherit: tuple[int, ...] = (),
) -> Iterator[Child]:
    """Run a module as a child that is killed when the block ends.

    It inherits the file descriptors in `inherit`.
    """
    receive, send = os.pipe()
    with tempfile.TemporaryFile() as log, os.fdopen(receive, "rb") as messages:
        try:
            process = subprocess.Popen(  # noqa: S603 (a module of ours)
                python_command(module, str(send), python=python),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=(send, *inherit),
                start_new_session=True,
                env=child_environment({**QUIET, **(env or {})}),
            )
        finally:
            os.close(send)
        child = Child(process, messages, log)
        try:
            yield child
        finally:
            child.end()
