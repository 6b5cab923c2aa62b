"""Jobs on a worker: they outlive the connection, and their exit code outlives them.

`~/.tpuctl/jobs/JOB` holds `job.json` (what was asked), `pid.json` (who does it), `log` (all it
printed, or the end of it), `stopped.json` (somebody asked it to end) and `exit.json` (how it
ended).
"""

from __future__ import annotations

import errno
import json
import os
import re
import select
import signal
import time

from tpuctl.remote.agent import process
from tpuctl.remote.agent.joblog import LogLimit, is_too_large, read_from, tail_offset
from tpuctl.remote.agent.run import wake_on_child
from tpuctl.remote.agent.wire import BLOCK_BYTES, Refusal, block, note, send

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, BinaryIO

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
RUNNING, FINISHED, STOPPED, LOST = "running", "finished", "stopped", "lost"

_JOB, _PID, _EXIT, _STOPPED = "job.json", "pid.json", "exit.json", "stopped.json"
_PART = ".part"
_FOLDER = "~/.tpuctl/jobs"
_POLL_S = 0.1
_BOUND_S = 0.5
_REPORT_BYTES = 4096
_SETTLE_S = 5.0


def start(request: dict[str, Any], stdin: BinaryIO) -> None:
    """Start a job under a supervisor of its own and report its process id."""
    folder = _make_folder(request)
    told, tell = os.pipe()
    if os.fork() == 0:
        os.close(told)
        _supervise(request, folder, tell)
    os.close(tell)
    answer = b"".join(iter(lambda: os.read(told, 4096), b""))
    report = json.loads(answer) if answer else {"refused": ["worker_failed", "it did not start"]}
    if "refused" in report:
        raise Refusal(*report["refused"])
    send(note(job=request["job"], pid=report["pid"]))


def logs(request: dict[str, Any], stdin: BinaryIO) -> None:
    """Send a job's log from a byte on; with `follow`, until the job has ended."""
    job = _find(request["job"])
    folder = _folder_of(job)
    log = os.open(os.path.join(folder, "log"), os.O_RDONLY)
    offset = request["offset"]
    if request["tail"] is not None:
        offset = tail_offset(log, request["tail"])
    most = _asked(job).get("log_bytes", 0)
    send(note(job=job, offset=offset, keeps_bytes=most, too_large=is_too_large(log, most)))
    while True:
        # The state is read first: what was written before the end is then surely sent.
        state = _state(folder)
        offset = _send_rest(log, offset)
        if not request["follow"] or state["state"] != RUNNING:
            break
        if not _is_watched():
            return
    send(note(ended=state))


def _send_rest(log: int, offset: int) -> int:
    """Send what there is from an offset on, and say what has been dropped; how far it goes."""
    while True:
        begin, data = read_from(log, offset, BLOCK_BYTES)
        if begin > offset:
            send(note(offset=begin, dropped_bytes=begin - offset))
        elif not data:
            return offset
        else:
            send(block(data))
        offset = begin + len(data)


def stop(request: dict[str, Any], stdin: BinaryIO) -> None:
    """End a job's whole session, TERM first, then KILL; report what state it is in then."""
    job = _find(request["job"])
    folder = _folder_of(job)
    before, who = _state(folder), _read(folder, _PID)
    if before["state"] == RUNNING and who and _session_is_ours(who):
        _report(folder, _STOPPED, {})
        steps = ((signal.SIGTERM, request["grace_s"]), (signal.SIGKILL, _SETTLE_S))
        process.end_session(who["pid"][0], steps)
        deadline = time.monotonic() + _SETTLE_S
        while _state(folder)["state"] == RUNNING and time.monotonic() < deadline:
            time.sleep(_POLL_S)
    send(note(job=job, was=before["state"], state=_state(folder)))


def show(request: dict[str, Any], stdin: BinaryIO) -> None:
    """Report every job of this worker, the oldest first."""
    send(note(jobs=[{**_asked(job), **_state(_folder_of(job))} for job in _all()]))


def _supervise(request: dict[str, Any], folder: str, tell: int) -> None:
    """Start the command, wait for it and write down how it ended; never returns."""
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nowhere, descriptor)
        _watch(request, folder, tell)
    finally:
        os._exit(0)


def _watch(request: dict[str, Any], folder: str, tell: int) -> None:
    log = os.open(os.path.join(folder, "log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    oom_kills, wake = process.oom_kills(), wake_on_child()
    try:
        pid = process.spawn(
            request["argv"], request["env"], request["folder"], stdout=log, stderr=log
        )
    except Refusal as refusal:
        never = {"code": 127, "signal": None, "out_of_memory": False}
        _report(folder, _EXIT, {**never, "ended_s": time.time()})
        os.write(tell, json.dumps({"refused": [refusal.code, str(refusal)]}).encode())
        return
    both = {"pid": _identity(pid), "supervisor": _identity(os.getpid())}
    _report(folder, _PID, {**both, "boot": _boot()})
    os.write(tell, json.dumps({"pid": pid}).encode())
    os.close(tell)
    _wait_and_bound(pid, wake, LogLimit(log, request["log_bytes"]))
    process.end_session(pid, process.LEFT_BEHIND)
    ended = {**process.reap(pid, oom_kills), "disk_free_bytes": process.free_bytes(folder)}
    _report(folder, _EXIT, {**ended, "ended_s": time.time()})


def _wait_and_bound(pid: int, wake: int, bound: LogLimit) -> None:
    """Wait for a job to end, and keep its log within bounds meanwhile."""
    while not process.has_ended(pid):
        if select.select([wake], [], [], _BOUND_S)[0]:
            os.read(wake, 4096)
        bound.keep()
    bound.keep()


def _report(folder: str, name: str, content: dict[str, Any]) -> None:
    """Write a file into the room that was kept for it, and give it its name in one step."""
    path = os.path.join(folder, name)
    if not os.path.exists(path):
        _save(path + _PART, json.dumps(content).encode().ljust(_REPORT_BYTES))
        os.replace(path + _PART, path)


def _state(folder: str) -> dict[str, Any]:
    """What a job is doing: its state, its process and its end, as far as there is one."""
    who = _read(folder, _PID)
    lives = who is not None and _lives(who)
    # Read after that look: who ends writes this first, so nobody is taken for lost too early.
    ended = _read(folder, _EXIT)
    pid = who["pid"][0] if who else None
    if ended is None:
        return {"state": RUNNING if lives else LOST, "pid": pid, "exit": None}
    stopped = os.path.exists(os.path.join(folder, _STOPPED))
    return {"state": STOPPED if stopped else FINISHED, "pid": pid, "exit": ended}


def _identity(pid: int) -> list[int | None]:
    """A process id with the time of its start, because ids come again."""
    return [pid, process.start_ticks(pid)]


def _lives(who: dict[str, Any]) -> bool:
    """Whether the job's supervisor lives, or its process, or one that this has started."""
    if who["boot"] != _boot():
        return False
    if _identity(who["supervisor"][0]) == who["supervisor"]:
        return True
    return _session_is_ours(who) and bool(process.members(who["pid"][0]))


def _session_is_ours(who: dict[str, Any]) -> bool:
    """Whether the session's id cannot have gone to somebody else in the meantime."""
    pid, ticks = who["pid"]
    return process.start_ticks(pid) in (ticks, None)


def _make_folder(request: dict[str, Any]) -> str:
    """Make the job's folder in one step, with room for all that is still to be written there.

    That room is taken now because the job may fill the disk.
    """
    folder = _folder_of(request["job"])
    part = os.path.join(os.path.dirname(folder), f".{request['job']}.{os.getpid()}.part")
    asked = {key: request[key] for key in ("job", "argv", "folder", "log_bytes")}
    try:
        os.makedirs(part)
        _save(os.path.join(part, _JOB), json.dumps({**asked, "started_s": time.time()}).encode())
        for name in (_PID, _EXIT, _STOPPED):
            _save(os.path.join(part, name + _PART), b" " * _REPORT_BYTES)
        os.rename(part, folder)
    except OSError as error:
        _remove(part)
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise Refusal("job_exists", f"there is a job {request['job']} already") from None
        raise
    return folder


def _remove(folder: str) -> None:
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        os.unlink(os.path.join(folder, name))
    if os.path.isdir(folder):
        os.rmdir(folder)


def _folder_of(job: str) -> str:
    if not NAME.fullmatch(job):
        raise Refusal("no_job", f"{job!r} is no name of a job")
    return os.path.join(os.path.expanduser(_FOLDER), job)


def _find(job: str | None) -> str:
    """The job of that name, or the one that was started last."""
    names = _all()
    if not names:
        raise Refusal("no_job", "no job was ever started there")
    if job is None:
        return names[-1]
    if job not in names:
        raise Refusal("no_job", f"there is no job {job}; the last ones are {', '.join(names[-5:])}")
    return job


def _all() -> list[str]:
    """Every job, the oldest first."""
    try:
        names = os.listdir(os.path.expanduser(_FOLDER))
    except FileNotFoundError:
        return []
    known = [name for name in names if NAME.fullmatch(name) and _asked(name)]
    return sorted(known, key=lambda name: (_asked(name)["started_s"], name))


def _asked(job: str) -> dict[str, Any]:
    return _read(_folder_of(job), _JOB) or {}


def _read(folder: str, name: str) -> dict[str, Any] | None:
    try:
        with open(os.path.join(folder, name), encoding="ascii") as file:
            content = json.load(file)
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _save(path: str, content: bytes) -> None:
    """Write to the disk; over what is there already this takes no further room."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.write(file, content)
        os.fsync(file)
    finally:
        os.close(file)


def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def _is_watched() -> bool:
    """Wait a moment; False when the other end has closed its side."""
    if not select.select([0], [], [], _POLL_S)[0]:
        return True
    return bool(os.read(0, 4096))
