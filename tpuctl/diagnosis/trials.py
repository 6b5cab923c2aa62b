"""Test the accelerator in a child process: does it compute, and how precisely?"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tpuctl.diagnosis._trial import MARK, PRECISIONS, Q
from tpuctl.diagnosis.explain import Match, explain
from tpuctl.diagnosis.report import Diagnosis
from tpuctl.runtime.machine import LOCKFILE
from tpuctl.runtime.redact import redact
from tpuctl.start_python import child_environment, python_command, stop_process

DEADLINE_S = 180.0
GRACE_S = 5.0
_STDERR_CHARACTERS = 2000
# A 128 x 128 matrix of ones times itself: 128 in each of 16,384 elements.
_SUM = 128.0 * 128 * 128
# Single precision keeps 24 bits, bfloat16 keeps 8: an error this large comes from bfloat16.
_BFLOAT16_ERROR = 1e-3

Rows = Sequence[Sequence[float]]
# What exact arithmetic gives, rounded once to float64; a test computes it with fractions.
REFERENCE: dict[str, Rows] = {
    "QEP": (
        (18.115791092938885, -5.244236090168335e-06, -0.0040599949212647935, 0.004219927421382212),
        (-5.244236090168335e-06, 18.11577612194586, -5.625759921824158, 5.855370893646427),
        (-0.0040599949212647935, -5.625759921824158, 189.9977530269888, -147.9760073653136),
        (0.004219927421382212, 5.855370893646427, -147.9760073653136, 114.9625155404409),
    ),
    "Q": Q,
}


@dataclass(frozen=True)
class Trial:
    """The result of a child process, or why there is none."""

    answer: Mapping[str, Any] | None
    seconds: float
    error: str | None = field(metadata={"lines": True})
    matches: tuple[Match, ...]


@dataclass(frozen=True)
class DeviceTrial:
    """Whether the accelerator works, device by device."""

    ok: bool
    framework: str
    devices: tuple[str, ...]
    expected_devices: int | None
    seconds: float
    error: str | None = field(metadata={"lines": True})
    matches: tuple[Match, ...] = ()


@dataclass(frozen=True)
class PrecisionError:
    """The error of one result in one precision, relative to float64."""

    precision: str
    result: str
    max_abs_error: float
    max_rel_error: float


@dataclass(frozen=True)
class Numerics:
    """The matrix test on one device."""

    framework: str
    device: str | None
    errors: tuple[PrecisionError, ...]
    explanation: str
    seconds: float
    error: str | None = field(metadata={"lines": True})


def try_devices(diagnosis: Diagnosis) -> DeviceTrial:
    """Multiply once on every device, unless another process has the TPU."""
    framework = diagnosis.recommended.framework
    expected = diagnosis.devices or diagnosis.gpus or None
    if reason := _why_not(diagnosis):
        return DeviceTrial(False, framework, (), expected, 0.0, reason)
    return check_devices(framework, _run_recommended("devices", diagnosis), expected)


def try_numerics(diagnosis: Diagnosis) -> Numerics:
    """Run the matrix test with the recommended framework."""
    framework = diagnosis.recommended.framework
    if reason := _why_not(diagnosis):
        return Numerics(framework, None, (), "", 0.0, reason)
    return check_numerics(framework, _run_recommended("numerics", diagnosis))


def check_devices(framework: str, trial: Trial, expected: int | None) -> DeviceTrial:
    """Compare the devices that computed with those that should be there."""
    if trial.answer is None:
        return DeviceTrial(
            False, framework, (), expected, trial.seconds, trial.error, trial.matches
        )
    devices = tuple(trial.answer["devices"])
    pairs = zip(devices, trial.answer["sums"], strict=True)
    wrong = [name for name, total in pairs if total != _SUM]
    error = None
    if wrong:
        error = f"A multiplication of ones gave a wrong result on {', '.join(wrong)}."
    elif expected is not None and len(devices) != expected:
        error = f"{framework} sees {len(devices)} devices; this machine has {expected}."
    return DeviceTrial(error is None, framework, devices, expected, trial.seconds, error)


def check_numerics(framework: str, trial: Trial) -> Numerics:
    """Compare what a device computed with the reference, and explain the difference."""
    if trial.answer is None:
        return Numerics(framework, None, (), "", trial.seconds, trial.error)
    errors = tuple(
        _precision_error(precision, name, trial.answer["results"][precision][name])
        for precision in PRECISIONS
        for name in REFERENCE
    )
    explanation = _explain_errors(errors)
    return Numerics(framework, trial.answer["device"], errors, explanation, trial.seconds, None)


def run_trial(
    arguments: Sequence[str],
    *,
    deadline_s: float = DEADLINE_S,
    grace_s: float = GRACE_S,
    program: Sequence[str] = python_command("tpuctl.diagnosis._trial"),
) -> Trial:
    """Run a trial in a child process, which has ended with all its children afterwards."""
    # Not usercode.child, which kills at once and judges by heartbeats: chips stay busy for up to
    # 30 s after a SIGKILL, so this child is first asked to end, and libtpu can block a whole
    # process inside one call, so only the total time counts. Its lock file must be removed, too.
    began, steps = time.monotonic(), ((signal.SIGTERM, grace_s), (signal.SIGKILL, grace_s))
    had_lock = os.path.lexists(LOCKFILE)
    child = subprocess.Popen(  # noqa: S603 (our own trial)
        [*program, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
        env=child_environment(),
    )
    error = None
    try:
        out, err = child.communicate(timeout=deadline_s)
    except subprocess.TimeoutExpired:
        error = f"It had not finished after {deadline_s:.0f} s and was stopped."
        stop_process(child, *steps, group=True)
        out, err = child.communicate()
    finally:
        stop_process(child, *steps, group=True)
        if not had_lock:
            _remove_own_lock()
    seconds, answer = time.monotonic() - began, _parse_answer(out)
    if error is None and answer is None:
        stderr = redact(err.strip()[-_STDERR_CHARACTERS:])
        error = stderr or f"It ended with exit code {child.returncode}."
    if error is None:
        return Trial(answer, seconds, None, ())
    return Trial(None, seconds, error, explain(err).matches if err.strip() else ())


def _run_recommended(trial: str, diagnosis: Diagnosis) -> Trial:
    best = diagnosis.recommended
    options = ("local",) if best.strategy == "tpu-local" else ()
    return run_trial((best.framework, trial, *options))


def _why_not(diagnosis: Diagnosis) -> str | None:
    """Return why a trial would hang or could not start; None if it can run."""
    if diagnosis.recommended.strategy in ("not-installed", "none-on-tpu"):
        return f"{diagnosis.recommended.because}; there is nothing to test it with."
    if diagnosis.free is False:
        pids = ", ".join(str(holder.pid) for holder in diagnosis.holders)
        return f"The TPU is held by pid {pids}: a trial would fail or hang."
    if diagnosis.accelerator == "tpu-remote":
        return "The TPU is on another machine."
    return None


def _remove_own_lock() -> None:
    """Remove the lock file that a killed child leaves; the lock itself ended with the process."""
    try:
        if os.stat(LOCKFILE).st_uid == os.geteuid():
            os.unlink(LOCKFILE)
    except OSError:
        return


def _parse_answer(out: str) -> dict[str, Any] | None:
    for line in reversed(out.splitlines()):
        if line.startswith(MARK):
            try:
                answer = json.loads(line.removeprefix(MARK))
            except ValueError:
                return None
            return answer if isinstance(answer, dict) else None
    return None


def _precision_error(precision: str, name: str, result: Rows) -> PrecisionError:
    rows = zip(result, REFERENCE[name], strict=True)
    pairs = [pair for ours, exact in rows for pair in zip(ours, exact, strict=True)]
    absolute = max(abs(ours - exact) for ours, exact in pairs)
    return PrecisionError(precision, name, absolute, absolute / max(abs(x) for _, x in pairs))


def _explain_errors(errors: tuple[PrecisionError, ...]) -> str:
    default, highest = (
        max(error.max_rel_error for error in errors if error.precision == precision)
        for precision in PRECISIONS
    )
    if default > _BFLOAT16_ERROR and default > 4 * highest:
        return (
            "By default this device multiplies in bfloat16, which keeps 8 bits: fine for training, "
            "too coarse for this computation. The highest precision is accurate, but slower."
        )
    if default > 4 * highest:
        return "By default this device multiplies in less than single precision."
    return "Default and highest precision agree: this device multiplies in single precision."
