"""One visit to the doctor: this machine or a recorded one, and what was asked for besides."""

import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tpuctl.diagnosis.diagnose import diagnose, find_problems
from tpuctl.diagnosis.finding import View
from tpuctl.diagnosis.report import Diagnosis
from tpuctl.errors import UsageError, WriteError
from tpuctl.runtime.detect import detect
from tpuctl.runtime.live import LiveMachine, live_machine
from tpuctl.runtime.machine import Machine

Approve = Callable[[str], None]


def examine(
    *,
    record: Path | None = None,
    replay: Path | None = None,
    deep: bool = False,
    numerics: bool = False,
    approve: Approve | None = None,
    machine: LiveMachine | None = None,
) -> Diagnosis:
    """Diagnose this machine, or the recorded one in `replay`.

    `approve` allows repairs: it is called with each one and stops the program on a no. `deep` and
    `numerics` use the accelerator, in a child process. Raises UsageError for options that exclude
    each other, WriteError for a record in a folder that does not exist, and what `open_recorded`
    raises.
    """
    if replay is not None:
        if record or deep or numerics or approve:
            raise UsageError("--replay looks at another machine: it excludes the other options.")
        return _replayed(replay)
    live = machine or live_machine()
    diagnosis = _recorded(live, record) if record else diagnose(live)
    if approve:
        diagnosis = _repaired(live, diagnosis, approve)
    if deep or numerics:
        diagnosis = _tried(diagnosis, deep=deep, numerics=numerics)
    return diagnosis


def _replayed(path: Path) -> Diagnosis:
    from tpuctl.runtime.recorded import open_recorded

    return replace(diagnose(open_recorded(path)), is_replay=True)


def _recorded(machine: Machine, path: Path) -> Diagnosis:
    from tpuctl.runtime.record import RecordingMachine, to_json
    from tpuctl.storage.local import write_atomically

    if not path.parent.is_dir():
        raise WriteError(
            f"Could not write {path}: the folder {path.parent} does not exist.",
            hint=f"mkdir -p {shlex.quote(str(path.parent))}",
        )
    recording = RecordingMachine(machine)
    diagnosis = diagnose(recording)
    write_atomically(path, to_json(recording.document()))
    return replace(diagnosis, recorded_to=str(path))


def _repaired(machine: LiveMachine, diagnosis: Diagnosis, approve: Approve) -> Diagnosis:
    from tpuctl.diagnosis.repair import carry_out, plan_repairs, verify

    view = View(machine, detect(machine))
    plans = plan_repairs(view, find_problems(view), root=machine.root)
    repairs = []
    for plan in plans:
        approve(f"{plan.repair.code}: {plan.repair.what}? (undo: {plan.repair.undo})")
        repairs.append(carry_out(plan))
    if not repairs:
        return replace(diagnosis, repairs=())
    after = diagnose(machine.again())
    return replace(
        after, repairs=verify(tuple(repairs), after.problems), recorded_to=diagnosis.recorded_to
    )


def _tried(diagnosis: Diagnosis, *, deep: bool, numerics: bool) -> Diagnosis:
    from tpuctl.diagnosis.deep import try_devices
    from tpuctl.diagnosis.numerics import try_numerics

    if deep:
        diagnosis = replace(diagnosis, deep=try_devices(diagnosis))
    if numerics:
        diagnosis = replace(diagnosis, numerics=try_numerics(diagnosis))
    return diagnosis
