"""One visit to the doctor: this machine or a recorded one, and what was asked for besides."""

from dataclasses import replace
from pathlib import Path

from tpuctl.diagnosis.diagnose import diagnose
from tpuctl.diagnosis.report import Diagnosis
from tpuctl.errors import UsageError
from tpuctl.runtime.live import live_machine
from tpuctl.runtime.machine import Machine


def examine(*, record: Path | None = None, replay: Path | None = None) -> Diagnosis:
    """Diagnose this machine, or the recorded one in `replay`.

    Raises UsageError for options that exclude each other, and what `open_recorded` raises.
    """
    if replay is None:
        return _recorded(live_machine(), record) if record else diagnose(live_machine())
    if record:
        raise UsageError("--record and --replay exclude each other.")
    from tpuctl.runtime.recorded import open_recorded

    return replace(diagnose(open_recorded(replay)), is_replay=True)


def _recorded(machine: Machine, path: Path) -> Diagnosis:
    from tpuctl.runtime.record import RecordingMachine, to_json
    from tpuctl.storage.local import write_atomically

    recording = RecordingMachine(machine)
    diagnosis = diagnose(recording)
    write_atomically(path, to_json(recording.document()))
    return replace(diagnosis, recorded_to=str(path))
