"""Run a training on a machine that has only this package, and report what it waited for.

    python start_python.py tpuctl.training.hosted_job job.json
    python start_python.py tpuctl.training.hosted_job -- python3 train.py

The file describes a launch, which is planned here after diagnosing the machine, or a command. The
measurements are in `tpuctl/training.json` and `tpuctl/profile.tpuprof`, which are fetched.
"""

import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tpuctl.codec import read_json, to_plain
from tpuctl.errors import TpuctlError, UsageError
from tpuctl.storage.local import write_atomically
from tpuctl.training.plan import LaunchPlan
from tpuctl.training.run import Training
from tpuctl.training.watched import watch_training

_EMULATED = "TPUCTL_EMULATED_DEVICES"
_OURS = Path("tpuctl")


def main() -> None:
    """Run the job that the file describes, and exit with its exit code."""
    if os.getpid() == 1:
        _wait_for_the_script()
    # The log is followed through a pipe, and a killed session flushes nothing.
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    try:
        if sys.argv[1] == "--":
            code = _measure(_plan_of(sys.argv[2:], {})).returncode
        else:
            code = _run(read_json(Path(sys.argv[1])))
    except TpuctlError as error:
        _say(f"Error: {error}" + (f" {error.hint}" if error.hint else ""))
        code = error.exit_code
    except FileNotFoundError as error:
        _say(f"Error: {error.filename} could not be started: {error.strerror}.")
        code = 127
    if code < 0:
        sys.stdout.flush()
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


def _wait_for_the_script() -> None:
    """Keep running after SIGTERM, which is passed to the script, to report its measurements."""

    def pass_on(number: int, frame: object) -> None:
        # In a container, only the first process gets signals, and only those that it handles:
        # otherwise the job could not save its state when its node is preempted.
        if os.getpid() == 1:
            os.kill(-1, number)

    signal.signal(signal.SIGTERM, pass_on)


def _plan_of(words: Sequence[str], env: Mapping[str, str]) -> LaunchPlan:
    script = next((word for word in words if word.endswith(".py")), words[0])
    return LaunchPlan(script, tuple(words), env, (), "", "", 0, 1, ())


def _measure(plan: LaunchPlan) -> Training:
    """Run a plan, and report what it waited for."""
    profile = _OURS / "profile.tpuprof"
    profile.unlink(missing_ok=True)
    training = watch_training(plan, profile=profile, on_start=_wait_for_the_script)
    write_atomically(_OURS / "training.json", json.dumps(to_plain(training)))
    if os.environ.get("TPU_WORKER_ID", "0") == "0":
        if training.executed:
            _say(f"steps executed by: {', '.join(map(str, training.executed))}")
        shares = "; ".join(f"{name} {part:.0%}" for name, part in training.idle_shares.items())
        _say(shares or "input wait and MXU idle are unknown: too few training steps were measured")
    return training


def _run(job: dict[str, Any]) -> int:
    from tpuctl.diagnosis.diagnose import diagnose
    from tpuctl.runtime.live import live_machine
    from tpuctl.training.plan import plan_training

    here = diagnose(live_machine())
    _say(f"doctor: {here.runtime}, accelerator {here.accelerator}, {here.devices} devices")
    for problem in here.problems:
        _say(f"doctor: {problem.code} {problem.severity}: {problem.summary}")
    if "command" in job:
        return _measure(_plan_of(job["command"], job["env"])).returncode
    # On an emulated machine, CPU devices replace the chips.
    chips = len(os.listdir(f"{emulated}/vfio")) if (emulated := os.environ.get(_EMULATED)) else None
    try:
        plan = plan_training(here=here, cpu_devices=chips, **job["plan"])
    except UsageError:
        if not chips:
            raise
        plan = plan_training(here=here, **job["plan"])
    for reason in plan.because:
        _say(reason)
    training = _measure(plan)
    for failure in training.failures:
        _say(f"Error: {failure}" + (f" {failure.hint}" if failure.hint else ""))
    return training.exit_code


def _say(text: str) -> None:
    sys.stdout.write(f"tpuctl: {text}\n")
    sys.stdout.flush()
