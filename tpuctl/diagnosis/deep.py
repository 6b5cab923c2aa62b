"""Really using the accelerator once: initialise, one multiplication on each device, count."""

from dataclasses import dataclass

from tpuctl.diagnosis.explain import Match
from tpuctl.diagnosis.report import Diagnosis
from tpuctl.diagnosis.trial import Trial, try_out

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
