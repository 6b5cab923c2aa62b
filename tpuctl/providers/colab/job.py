"""The one job of a runtime that exists for it: find it again, fetch its output, delete the runtime.

The command that follows the job does this, or the guard where the command has ended.
"""

from contextlib import suppress

from tpuctl.errors import JobLostError, NotFoundError
from tpuctl.providers.colab.guard import FETCHED
from tpuctl.providers.colab.provider import Colab, job_states
from tpuctl.providers.colab.records import Record, Records
from tpuctl.providers.port import Login
from tpuctl.remote.copy import copy
from tpuctl.remote.copy_plan import CopyPlan, Direction
from tpuctl.storage.local import locked

_FETCH_S = 600.0


def expect_job(name: str, job: str, folder: str, output: str) -> None:
    """Note the job of a runtime before it starts: its folder there, and where that comes to."""
    records = Records()
    if record := records.find(name):
        records.save(records.update(record, until_done=job, folder=folder, output=output))


def has_job(name: str, job: str) -> bool:
    """Whether the runtime has a job of this name already, from an interrupted command."""
    record = Records().find(name)
    return bool(record and record.until_done == job and job in job_states(record))


def fetch_output(records: Records, record: Record) -> Record:
    """Copy the folder of the job to this machine; raises the first failure.

    The command and the guard both do this: the second finds that it was done.
    """
    if not record.folder or not record.output:
        return record
    busy = f"Another process fetches the output of {record.name}."
    with locked(records.lock(record.name, "fetch"), wait_s=_FETCH_S, busy=busy):
        now = records.find(record.name)
        if now is None or now.is_home:
            return now or record
        hosts, access, _ = Colab(None, lambda text: None).reach(record.name, Login())
        plan = CopyPlan(Direction.DOWN, None, f"{record.folder}/", record.output)
        copied = copy(hosts, access, plan)
        if copied.failures:
            raise copied.failures[0]
        return records.update(now, is_home=True)


def finish(name: str) -> str:
    """Fetch the output and delete the runtime; returns what was done."""
    records = Records()
    if record := records.find(name):
        output = fetch_output(records, record).output
    if records.find(name):
        _delete(name)
    elif FETCHED not in (Colab(None, lambda text: None).why_gone(name) or ""):
        left = Colab(None, lambda text: None).balance().left
        raise JobLostError(
            f"Colab took the runtime {name} away, and with it the output of the job"
            f"{': no units are left' if left == 0 else ''}.",
            hint="To resume from checkpoints when this happens: tpuctl watch --on colab,kaggle "
            "--checkpoints DIR -- CMD",
        )
    where = f"The output is in {output}" if record else "The output was fetched"
    return f"{where}; the runtime {name} was deleted."


def delete_unused(name: str, job: str) -> None:
    """Delete a runtime on which no job was started: it would use units for nothing."""
    if not has_job(name, job):
        _delete(name)


def _delete(name: str) -> None:
    provider = Colab(None, lambda text: None)
    with suppress(NotFoundError):
        plan = provider.plan_delete([name], None)
        done = provider.delete(plan, timeout_s=0, on_progress=lambda progress: None)
        if done.failures:
            raise done.failures[0]
