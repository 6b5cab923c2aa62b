"""Run a job on a machine that has nothing but this package: `launch` as there, told in lines.

    python start_python.py tpuctl.training.hosted_job job.json

The machine is diagnosed once; variables that would break a framework are changed before the script
starts. What came of it is in `tpuctl/training.json`, which `launch` shows when it is fetched.
"""

import json
import os
import signal
import sys
from pathlib import Path

from tpuctl.codec import read_json, to_plain
from tpuctl.diagnosis.diagnose import diagnose
from tpuctl.errors import TpuctlError, UsageError
from tpuctl.runtime.live import live_machine
from tpuctl.storage.local import write_atomically
from tpuctl.training.plan import plan_training
from tpuctl.training.watched import watch_training

_EMULATED = "TPUCTL_EMULATED_DEVICES"


def main() -> None:
    """Run the job that the file describes, and end with its exit code."""
    if os.getpid() == 1:
        # The first process of a container gets only the signals that it handles, and nobody else
        # gets any: without this a job could not save itself when its node is taken away.
        signal.signal(signal.SIGTERM, lambda *_: os.kill(-1, signal.SIGTERM))
    try:
        code = _run(read_json(Path(sys.argv[1])))
    except TpuctlError as error:
        _say(f"Error: {error}" + (f" {error.hint}" if error.hint else ""))
        code = error.exit_code
    sys.exit(code)


def _run(job: dict[str, dict[str, object]]) -> int:
    here = diagnose(live_machine())
    _say(f"doctor: {here.runtime}, accelerator {here.accelerator}, {here.devices} devices")
    for problem in here.problems:
        _say(f"doctor: {problem.code} {problem.severity}: {problem.summary}")
    # On an emulated machine, devices of the CPU stand for the chips.
    chips = len(os.listdir(f"{emulated}/vfio")) if (emulated := os.environ.get(_EMULATED)) else None
    try:
        plan = plan_training(here=here, cpu_devices=chips, **job["plan"])  # type: ignore[arg-type]
    except UsageError:
        if not chips:
            raise
        plan = plan_training(here=here, **job["plan"])  # type: ignore[arg-type]
    for reason in plan.because:
        _say(reason)
    training = watch_training(plan)
    write_atomically(Path("tpuctl") / "training.json", json.dumps(to_plain(training)))
    for failure in training.failures:
        _say(f"Error: {failure}" + (f" {failure.hint}" if failure.hint else ""))
    return training.exit_code


def _say(text: str) -> None:
    sys.stdout.write(f"tpuctl: {text}\n")
    sys.stdout.flush()
