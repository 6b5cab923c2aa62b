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
from tpuctl.diagnosis.report import Diagnosis
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


# 128 x 128 ones times the same: 128 in each of 16,384 places.
_SUM = 128.0 * 128 * 128


@dataclass(frozen=True)
class Deep:
    """Whether the accelerator works, device by device."""

    ok: bool
    framework: str
    devices: tuple[str, ...]
    expected_devices: int | None
    seconds: float
    error: str | None
    matches: tuple[Match, ...] = ()


def try_devices(diagnosis: Diagnosis) -> Deep:
    """Use the accelerator once, in a child; not while somebody else has it."""
    framework = diagnosis.recommended.framework
    expected = diagnosis.devices or diagnosis.gpus or None
    if reason := why_not(diagnosis):
        return Deep(False, framework, (), expected, 0.0, reason)
    return judge_devices(framework, try_out("devices", framework, options(diagnosis)), expected)


def why_not(diagnosis: Diagnosis) -> str | None:
    """What makes a trial pointless: it would hang, or could not even start."""
    if diagnosis.recommended.strategy in ("not-installed", "none-on-tpu"):
        return f"{diagnosis.recommended.because}; there is nothing to try it with."
    if diagnosis.free is False:
        pids = ", ".join(str(holder.pid) for holder in diagnosis.holders)
        return f"The TPU is held by pid {pids}: a trial would fail or hang."
    if diagnosis.accelerator == "tpu-remote":
        return "The TPU is on another machine."
    return None


def options(diagnosis: Diagnosis) -> tuple[str, ...]:
    """What the child has to be told about this machine."""
    return ("local",) if diagnosis.recommended.strategy == "tpu-local" else ()


def judge_devices(framework: str, trial: Trial, expected: int | None) -> Deep:
    """Compare the devices that computed with those that ought to be there."""
    if trial.answer is None:
        return Deep(False, framework, (), expected, trial.seconds, trial.error, trial.matches)
    devices = tuple(trial.answer["devices"])
    sums = trial.answer["sums"]
    wrong = [name for name, total in zip(devices, sums, strict=True) if total != _SUM]
    error = None
    if wrong:
        error = f"A multiplication of ones came out wrong on {', '.join(wrong)}."
    elif expected is not None and len(devices) != expected:
        error = f"{framework} sees {len(devices)} devices; this machine has {expected}."
    return Deep(error is None, framework, devices, expected, trial.seconds, error)
