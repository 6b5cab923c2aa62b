"""Trying the accelerator out: always in a child process, with a deadline, leaving no lock."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tpuctl.diagnosis.explain import Match, explain
from tpuctl.runtime.machine import LOCKFILE
from tpuctl.runtime.redact import redact

DEADLINE_S = 180.0
MARK = "tpuctl-trial:"
GRACE_S = 5.0
_TAIL = 2000


@dataclass(frozen=True)
class Trial:
    """How one child went: what it answered, or why it could not."""

    answer: Mapping[str, Any] | None
    seconds: float
    error: str | None
    matches: tuple[Match, ...]


def try_out(
    what: str,
    framework: str,
    options: Sequence[str] = (),
    *,
    deadline_s: float = DEADLINE_S,
    grace_s: float = GRACE_S,
    command: Sequence[str] = (),
) -> Trial:
    """Run one of the adapters' trials in a child; it dies with all its children in the end."""
    module = f"tpuctl.diagnosis._try_{framework}"
    words = command or (sys.executable, "-m", module, what, *options)
    began = time.monotonic()
    had_lock = os.path.lexists(LOCKFILE)
    child = _start(words)
    try:
        out, err = child.communicate(timeout=deadline_s)
        late = False
    except subprocess.TimeoutExpired:
        late = True
        _end(child, grace_s)
        out, err = child.communicate()
    finally:
        _end(child, grace_s)
        if not had_lock:
            _remove_own_lock()
    seconds = time.monotonic() - began
    answer = _answer(out)
    if late:
        error = f"It had not finished after {deadline_s:.0f} s and was stopped."
    elif answer is None:
        error = redact(err.strip()[-_TAIL:]) or f"It ended with exit code {child.returncode}."
    else:
        error = None
    return Trial(None if error else answer, seconds, error, _matches(err) if error else ())


def _start(words: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )


def _end(child: subprocess.Popen[str], grace_s: float) -> None:
    """Ask the child's whole session to stop, then make it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, number)
            child.wait(grace_s)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def _remove_own_lock() -> None:
    """A killed child leaves libtpu's lock file behind; its lock itself is gone with it."""
    try:
        if os.stat(LOCKFILE).st_uid == os.geteuid():
            os.unlink(LOCKFILE)
    except OSError:
        return


def _answer(out: str) -> dict[str, Any] | None:
    for line in reversed(out.splitlines()):
        if line.startswith(MARK):
            try:
                answer = json.loads(line.removeprefix(MARK))
            except ValueError:
                return None
            return answer if isinstance(answer, dict) else None
    return None


def _matches(err: str) -> tuple[Match, ...]:
    return explain(err).matches if err.strip() else ()
