"""Jobs on a worker: commands that outlive the connection, and a record of how they ended.

`~/.tpuctl/jobs/JOB` holds `job.json` (the request), `pid.json` (its processes), `log` (its output,
or the end of it), `stopped.json` (it was asked to stop) and `exit.json` (how it ended).
"""

from __future__ import annotations

import errno
import json
import os
import re
import select
import signal
import stat
import time
from contextlib import suppress

from tpuctl.remote.agent import process
from tpuctl.remote.agent.joblog import LogLimit, read_from, tail_offset
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
_LOG_LIMIT_S = 0.5
_REPORT_BYTES = 4096
_SETTLE_S = 5.0


def start(request: dict[str, Any], stdin: BinaryIO) -> None:
    """Start a job under its own supervisor process and report its process id."""
    folder = _make_folder(request)
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.close(reader)
        _supervise(request, folder, writer)
    os.close(writer)
    answer = b"".join(iter(lambda: os.read(reader, 4096), b""))
    report = json.loads(answer) if answer else {"refused": ["worker_failed", "it did not start"]}
    if "refused" in report:
        raise Refusal(*report["refused"])
    send(note(job=request["job"], pid=report["pid"]))


def logs(request: dict[str, Any], stdin: BinaryIO) -> None:
    """Send a job's log from an offset; with `follow`, until the job has ended."""
    job = _find(request["job"])
    folder = _folder_of(job)
    log = os.open(os.path.join(folder, "log"), os.O_RDONLY)
    offset = request["offset"]
    if request["tail"] is not None:
        offset = tail_offset(log, request["tail"])
    send(note(job=job, offset=offset))
    while True:
        # The state is read first, so that output written just before the end is sent, too.
        state = _state(folder)
        offset = _send_rest(log, offset)
        if not request["follow"] or state["state"] != RUNNING:
            break
        if not _is_watched():
            return
    send(note(ended=state))


def _send_rest(log: int, offset: int) -> int:
    """Send the log from an offset, and report dropped parts; returns the new offset."""
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
    """End a job's whole session, TERM first, then KILL; report its state before and after."""
    job = _find(request["job"])
    folder = _folder_of(job)
    before, processes = _state(folder), _read(folder, _PID)
    if before["state"] == RUNNING and processes and _session_is_ours(processes):
        _report(folder, _STOPPED, {})
        steps = ((signal.SIGTERM, request["grace_s"]), (signal.SIGKILL, _SETTLE_S))
        process.end_session(processes["pid"][0], steps)
        deadline = time.monotonic() + _SETTLE_S
        while _state(folder)["state"] == RUNNING and time.monotonic() < deadline:
            time.sleep(_POLL_S)
    send(note(job=job, was=before["state"], state=_state(folder)))


def show(request: dict[str, Any], stdin: BinaryIO) -> None:
    """Report every job of this worker, oldest first."""
    send(note(jobs=[{**_request_of(job), **_state(_folder_of(job))} for job in _all_jobs()]))


def _supervise(request: dict[str, Any], folder: str, writer: int) -> None:
    """Start the command, wait for it and record how it ended; never returns."""
    try:
        # Two forks: a process that is not a session leader never gets a controlling terminal.
        os.setsid()
        if os.fork():
            os._exit(0)
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        _run(request, folder, writer)
    finally:
        os._exit(0)


def _run(request: dict[str, Any], folder: str, writer: int) -> None:
    log = _open_private(os.path.join(folder, "log"), os.O_APPEND)
    oom_kills, wake = process.oom_kills(), wake_on_child()
    try:
        pid = process.spawn(
            request["argv"], request["env"], request["folder"], stdout=log, stderr=log
        )
    except Refusal as refusal:
        ended = {"code": 127, "signal": None, "out_of_memory": False}
        _report(folder, _EXIT, {**ended, "ended_s": time.time()})
        os.write(writer, json.dumps({"refused": [refusal.code, str(refusal)]}).encode())
        return
    both = {"pid": _identity(pid), "supervisor": _identity(os.getpid())}
    _report(folder, _PID, {**both, "boot": _boot()})
    os.write(writer, json.dumps({"pid": pid}).encode())
    os.close(writer)
    limit = LogLimit(log, request["log_bytes"])
    while not process.has_ended(pid):
        if select.select([wake], [], [], _LOG_LIMIT_S)[0]:
            os.read(wake, 4096)
        limit.enforce()
    limit.enforce()
    process.end_session(pid, process.LEFT_BEHIND)
    ended = {**process.reap(pid, oom_kills), "disk_free_bytes": process.free_bytes(folder)}
    _report(folder, _EXIT, {**ended, "ended_s": time.time()})


def _report(folder: str, name: str, content: dict[str, Any]) -> None:
    """Write a file into the space reserved for it, and rename it in one step; keep an older one."""
    path = os.path.join(folder, name)
    if not os.path.exists(path):
        _save(path + _PART, json.dumps(content).encode().ljust(_REPORT_BYTES))
        os.replace(path + _PART, path)


def _state(folder: str) -> dict[str, Any]:
    """Return a job's state, process id and exit report."""
    # Asked first: who starts the job ends after pid.json is there, so a new job is never lost.
    is_alive = _is_starting(folder)
    if processes := _read(folder, _PID):
        is_alive = _is_alive(processes)
    # Read after that check: a supervisor writes this before it ends, so an ended job is never lost.
    ended = _read(folder, _EXIT)
    pid = processes["pid"][0] if processes else None
    if ended is None:
        return {"state": RUNNING if is_alive else LOST, "pid": pid, "exit": None}
    stopped = os.path.exists(os.path.join(folder, _STOPPED))
    return {"state": STOPPED if stopped else FINISHED, "pid": pid, "exit": ended}


def _identity(pid: int) -> list[int | None]:
    """Return a process id with its start time, because ids are reused."""
    return [pid, process.start_ticks(pid)]


def _is_starting(folder: str) -> bool:
    """Whether the process that was asked to start the job still runs."""
    starter = (_read(folder, _JOB) or {}).get("starter")
    return starter is not None and starter == [_boot(), *_identity(starter[1])]


def _is_alive(processes: dict[str, Any]) -> bool:
    """Whether the job's supervisor is running, or any process of its session."""
    if processes["boot"] != _boot():
        return False
    if _identity(processes["supervisor"][0]) == processes["supervisor"]:
        return True
    return _session_is_ours(processes) and bool(process.members(processes["pid"][0]))


def _session_is_ours(processes: dict[str, Any]) -> bool:
    """Whether the session's id has not been reused."""
    pid, ticks = processes["pid"]
    # None means that the leader has ended: its id is not reused while its session has processes.
    return process.start_ticks(pid) in (ticks, None)


def _make_folder(request: dict[str, Any]) -> str:
    """Create the job's folder in one step.

    Space for its small files is reserved now, because the job may fill the disk.
    """
    folder = _folder_of(request["job"])
    part = os.path.join(os.path.dirname(folder), f".{request['job']}.{os.getpid()}.part")
    kept = {key: request[key] for key in ("job", "argv", "folder", "log_bytes")}
    jobs, before = os.path.dirname(folder), os.umask(0o077)
    try:
        os.makedirs(part)
        # Folders of an earlier version could be read by others.
        for each in (os.path.dirname(jobs), jobs):
            os.chmod(each, 0o700)
        kept |= {"started_s": time.time(), "starter": [_boot(), *_identity(os.getpid())]}
        _save(os.path.join(part, _JOB), json.dumps(kept).encode())
        for name in (_PID, _EXIT, _STOPPED):
            _save(os.path.join(part, name + _PART), b" " * _REPORT_BYTES)
        os.rename(part, folder)
    except OSError as error:
        from shutil import rmtree

        rmtree(part, ignore_errors=True)
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise Refusal("job_exists", f"job {request['job']} exists already") from None
        raise
    finally:
        # The command gets the user's own.
        os.umask(before)
    return folder


def _folder_of(job: str) -> str:
    if not NAME.fullmatch(job):
        raise Refusal("no_job", f"{job!r} is not a valid job name")
    return os.path.join(_all_folder(), job)


def _all_folder() -> str:
    """Return the folder of all jobs, unless another user could have put jobs there."""
    folder = os.path.expanduser(_FOLDER)
    for each in (os.path.dirname(folder), folder):
        with suppress(FileNotFoundError):
            seen = os.lstat(each)
            others = 0o002 if seen.st_gid == os.getegid() else 0o022
            is_ours = seen.st_uid in (os.geteuid(), 0) and not seen.st_mode & others
            if not stat.S_ISDIR(seen.st_mode) or not is_ours:
                raise Refusal("worker_failed", f"{each} is not a folder that only you can write to")
    return folder


def _find(job: str | None) -> str:
    """Return the job of that name, or the newest one."""
    names = _all_jobs()
    if not names:
        raise Refusal("no_job", "no job was ever started")
    if job is None:
        return names[-1]
    if job not in names:
        raise Refusal("no_job", f"job {job} does not exist; the newest are {', '.join(names[-5:])}")
    return job


def _all_jobs() -> list[str]:
    """List the jobs, oldest first."""
    try:
        names = os.listdir(_all_folder())
    except FileNotFoundError:
        return []
    started = [(_request_of(name).get("started_s"), name) for name in names if NAME.fullmatch(name)]
    return [name for _, name in sorted(pair for pair in started if pair[0] is not None)]


def _request_of(job: str) -> dict[str, Any]:
    return _read(_folder_of(job), _JOB) or {}


def _read(folder: str, name: str) -> dict[str, Any] | None:
    try:
        with open(os.path.join(folder, name), encoding="ascii") as file:
            content = json.load(file)
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _save(path: str, content: bytes) -> None:
    """Write and sync a file; where space is reserved, it takes no more."""
    file = _open_private(path)
    try:
        os.write(file, content)
        os.fsync(file)
    finally:
        os.close(file)


def _open_private(path: str, flags: int = 0) -> int:
    """Open a file to write that only its owner can read, whatever the umask."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | flags, 0o600)
    os.fchmod(file, 0o600)
    return file


def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def _is_watched() -> bool:
    """Wait a moment; returns False when the other end has closed."""
    if not select.select([0], [], [], _POLL_S)[0]:
        return True
    return bool(os.read(0, 4096))
