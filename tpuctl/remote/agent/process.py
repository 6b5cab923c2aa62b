"""Commands on a worker: started in a session of their own, and ended with all that they started."""

from __future__ import annotations

import os
import select
import signal
import time

from tpuctl.remote.agent.wire import Refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

INTERRUPT = ((signal.SIGINT, 2.0), (signal.SIGTERM, 8.0), (signal.SIGKILL, 5.0))
"""How a command ends that somebody interrupts: signals, and seconds to act on each."""

LEFT_BEHIND = ((signal.SIGTERM, 2.0), (signal.SIGKILL, 5.0))
"""How processes end that a command left in its session when it ended itself."""

_POLL_S = 0.02


def words(texts: Sequence[str]) -> list[bytes]:
    """The bytes that the user typed, whatever this machine's language is set to."""
    return [text.encode("utf-8", "surrogateescape") for text in texts]


def environment(added: dict[str, str]) -> dict[bytes, bytes]:
    """This machine's environment, with what the user adds.

    Python's output is not held back unless the user wants it to be.
    """
    mine = {**os.environb, b"PYTHONUNBUFFERED": os.environb.get(b"PYTHONUNBUFFERED", b"1")}
    names, values = words(list(added)), words(list(added.values()))
    return {**mine, **{name: values[index] for index, name in enumerate(names)}}


def spawn(
    argv: Sequence[str],
    added: dict[str, str],
    folder: str | None,
    *,
    stdout: int,
    stderr: int,
) -> int:
    """Start a command as the leader of a new session, its stdin closed; its process id.

    Raises Refusal when there is no such command or folder.
    """
    env, command = environment(added), words(argv)
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        _become(command, env, folder, stdout, stderr, tell)
    os.close(tell)
    complaint = os.read(told, 4096)
    os.close(told)
    if complaint:
        os.waitpid(child, 0)
        code, _, reason = complaint.decode("utf-8", "replace").partition(" ")
        what = f"start {argv[0]!r}" if code == "no_command" else f"enter the folder {folder!r}"
        raise Refusal(code, f"could not {what}: {reason}")
    return child


def _become(
    command: list[bytes],
    env: dict[bytes, bytes],
    folder: str | None,
    stdout: int,
    stderr: int,
    tell: int,
) -> None:
    """Turn into the command, or tell why not; never returns."""
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGHUP, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        code = "no_folder"
        if folder:
            os.chdir(os.path.expanduser(words([folder])[0]))
        code = "no_command"
        os.execvpe(command[0], command, env)
    except OSError as error:
        os.write(tell, f"{code} {error.strerror}".encode("utf-8", "replace"))
    finally:
        os._exit(127)


def has_ended(pid: int) -> bool:
    """Whether our child has ended; it keeps its id until it is reaped."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def reap(pid: int, oom_kills_before: int) -> dict[str, Any]:
    """Wait for our child and say how it ended."""
    status = os.waitpid(pid, 0)[1]
    if not os.WIFSIGNALED(status):
        return {"code": os.WEXITSTATUS(status), "signal": None, "out_of_memory": False}
    number = os.WTERMSIG(status)
    out_of_memory = number == signal.SIGKILL and oom_kills() > oom_kills_before
    return {"code": None, "signal": number, "out_of_memory": out_of_memory}


def oom_kills() -> int:
    """How many processes the kernel has killed for memory, as far as this machine says."""
    total = 0
    for path in ("/proc/vmstat", "/sys/fs/cgroup/memory.events"):
        try:
            with open(path, encoding="ascii") as file:
                lines = file.read().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
    return total


def free_bytes(path: str) -> int | None:
    """Return the free disk space where `path` is."""
    try:
        state = os.statvfs(path)
    except OSError:
        return None
    return state.f_bavail * state.f_frsize


def start_ticks(pid: int) -> int | None:
    """When a process started, in the kernel's ticks since boot; None when it does not live."""
    fields = _stat(str(pid))
    return None if fields is None or fields[0] == b"Z" else int(fields[19])


def members(session: int) -> list[int]:
    """Every living process of a session, whatever group of it they are in."""
    wanted = str(session).encode()
    found = []
    for name in os.listdir("/proc"):
        fields = _stat(name) if name.isdigit() else None
        if fields and fields[3] == wanted and fields[0] not in (b"Z", b"X"):
            found.append(int(name))
    return found


def _stat(pid: str) -> list[bytes] | None:
    """The fields of /proc/PID/stat from the third on: the second may hold anything."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return None


def end_session(session: int, steps: Sequence[tuple[int, float]]) -> int:
    """Send each signal to all of a session until nobody is left; how many there were at first."""
    first = alive = members(session)
    for number, wait_s in steps:
        deadline = time.monotonic() + wait_s
        for pid in alive:
            _signal(pid, number)
        while alive and time.monotonic() < deadline:
            select.select([], [], [], _POLL_S)
            alive = members(session)
        if not alive:
            break
    return len(first)


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return
