"""Take a measurement in a fresh process: start it, listen, and end it whatever happens."""

import contextlib
import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import IO, Any

from tpuctl.errors import (
    InvalidInputError,
    MissingExtraError,
    NotFoundError,
    TargetError,
    TpuctlError,
)
from tpuctl.pipeline.complaint import last_words
from tpuctl.pipeline.models import Measurement
from tpuctl.pipeline.records import from_plain, to_plain
from tpuctl.pipeline.request import Request
from tpuctl.pipeline.targets import try_alone
from tpuctl.progress import OnProgress, Progress

START_LIMIT_S = 180.0
SILENCE_LIMIT_S = 60.0
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu"}
ERRORS = {kind.code: kind for kind in (InvalidInputError, NotFoundError, TargetError)}


def measure(request: Request, *, on_progress: OnProgress) -> Measurement:
    """Measure a pipeline in a child process, which is gone when this returns.

    Raises what the child raised, and TargetError when it hangs or dies.
    """
    if importlib.util.find_spec("tensorflow") is None:
        raise MissingExtraError("Profiling an input pipeline", extra="tf", module="tensorflow")
    receive, send = os.pipe()
    with tempfile.TemporaryFile() as log, os.fdopen(receive, "rb") as messages:
        child = _start(request, send, log)
        os.close(send)
        try:
            for message in _listen(child, messages, request):
                if "result" in message:
                    return from_plain(Measurement, message["result"])
                if "error" in message:
                    raise _error(message, log)
                on_progress(_progress(message, request))
            raise _death(child.wait(), log, request)
        finally:
            _end(child)


def _start(request: Request, send: int, log: IO[bytes]) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "tpuctl.pipeline.child"]
    return subprocess.Popen(
        [*command, json.dumps(to_plain(request)), str(send)],
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=log,
        pass_fds=(send,),
        start_new_session=True,
        env={**os.environ, **QUIET, "PYTHONPATH": _python_path()},
    )


def _python_path() -> str:
    """Let the child find the tpuctl that is running, wherever it was started."""
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))


def _listen(
    child: "subprocess.Popen[bytes]", messages: IO[bytes], request: Request
) -> Iterator[dict[str, Any]]:
    """Yield what the child says until it has said all; raises TargetError when it hangs."""
    heard, buffer, last = time.monotonic(), b"", {"phase": "starting"}
    while True:
        if select.select([messages], [], [], 0.5)[0]:
            chunk = os.read(messages.fileno(), 1 << 20)
            if not chunk:
                return
            heard, buffer = time.monotonic(), buffer + chunk
            *lines, buffer = buffer.split(b"\n")
            for line in lines:
                last = json.loads(line)
                yield last
        _check_patience(last, time.monotonic() - heard, request)


def _check_patience(last: dict[str, Any], silent_s: float, request: Request) -> None:
    starting = last["phase"] == "starting"
    limit_s = START_LIMIT_S if starting else request.wait_limit_s
    waiting_s = last.get("waiting_s", 0.0) + silent_s
    if waiting_s > limit_s and (last.get("waiting_s") or silent_s > SILENCE_LIMIT_S):
        place = f" It was at {last['stuck']}." if last.get("stuck") else ""
        raise TargetError(
            f"Nothing came for {limit_s:.0f} s while {last['phase']}.{place}",
            hint="If it is slow and not stuck, give it more time with --seconds.",
        )


def _progress(message: dict[str, Any], request: Request) -> Progress:
    return Progress("profile", round(message["done_s"], 1), None, "s", message["phase"])


def _error(message: dict[str, Any], log: IO[bytes]) -> Exception:
    if message["error"] == "bug":
        return RuntimeError(f"{message['message']}\n{_tail(log)}")
    if message["error"] == MissingExtraError.code:
        return MissingExtraError("Profiling an input pipeline", extra="tf", module="tensorflow")
    kind: type[TpuctlError] = ERRORS.get(message["error"], TpuctlError)
    return kind(message["message"], hint=message["hint"])


def _death(code: int, log: IO[bytes], request: Request) -> TargetError:
    if code < 0:
        name = signal.Signals(-code).name
        memory = "; the machine may have run out of memory" if name == "SIGKILL" else ""
        end = f"was killed by {name}{memory}"
    else:
        end = f"ended with code {code} and without a result"
    hint = try_alone(request.target, iterate=True)
    return TargetError(f"The measuring process {end}. {_tail(log)}".rstrip(), hint=hint)


def _tail(log: IO[bytes]) -> str:
    log.seek(0)
    words = last_words(log.read().decode("utf-8", "replace"))
    return f"Its last words: {words}" if words else ""


def _end(child: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    if child.stdin:
        child.stdin.close()
