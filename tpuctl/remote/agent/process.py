"""Commands on a worker: started in their own session, and ended with all processes of it."""

from __future__ import annotations

import os
import select
import signal
import time

from tpuctl.remote.agent.wire import Refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

INTERRUPT = ((signal.SIGINT, 2.0), (signal.SIGTERM, 8.0), (signal.SIGKILL, 5.0))
"""The signals for an interrupted command, and seconds to wait after each."""

LEFT_BEHIND = ((signal.SIGTERM, 2.0), (signal.SIGKILL, 5.0))
"""The signals for processes that a command has left behind in its session."""

_POLL_S = 0.02


def encode(texts: Iterable[str]) -> list[bytes]:
    """Return the bytes that the user typed, whatever this machine's locale is."""
    return [text.encode("utf-8", "surrogateescape") for text in texts]


def environment(added: dict[str, str]) -> dict[bytes, bytes]:
    """Return this machine's environment with added variables, and Python's output unbuffered."""
    # Python buffers its output in a pipe, so a log would be minutes behind.
    return {
        b"PYTHONUNBUFFERED": b"1",
        **os.environb,
        **dict(encode(pair) for pair in added.items()),
    }


def spawn(
    argv: Sequence[str],
    added: dict[str, str],
    folder: str | None,
    *,
    stdout: int,
    stderr: int,
) -> int:
    """Start a command as the leader of a new session, its stdin closed; returns its process id.

    Raises Refusal if the command or folder does not exist.
    """
    env, command = environment(added), encode(argv)
    # exec closes the pipe if it succeeds, so an empty read means that the command runs.
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _exec(command, env, folder, stdout, stderr, writer)
    os.close(writer)
    error = os.read(reader, 4096)
    os.close(reader)
    if error:
        os.waitpid(child, 0)
        code, _, reason = error.decode("utf-8", "replace").partition(" ")
        what = f"start {argv[0]!r}" if code == "no_command" else f"enter the folder {folder!r}"
        if code == "no_command" and len(argv[0].split()) > 1:
            code = "no_shell"
        raise Refusal(code, f"could not {what}: {reason}")
    return child


def _exec(
    command: list[bytes],
    env: dict[bytes, bytes],
    folder: str | None,
    stdout: int,
    stderr: int,
    writer: int,
) -> None:
    """Turn into the command, or report why not; never returns."""
    # After fork() nothing may return or raise into the agent's code: this is a second copy of it.
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGHUP, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        code = "no_folder"
        if folder:
            os.chdir(os.path.expanduser(encode([folder])[0]))
        code = "no_command"
        os.execvpe(command[0], command, env)  # noqa: S606 (what the user runs there)
    except OSError as error:
        os.write(writer, f"{code} {error.strerror}".encode("utf-8", "replace"))
    finally:
        os._exit(127)


def has_ended(pid: int) -> bool:
    """Whether a child has ended; it keeps its id until it is reaped."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def reap(pid: int, oom_kills_before: int) -> dict[str, Any]:
    """Wait for a child and report how it ended."""
    status = os.waitpid(pid, 0)[1]
    if not os.WIFSIGNALED(status):
        return {"code": os.WEXITSTATUS(status), "signal": None, "out_of_memory": False}
    number = os.WTERMSIG(status)
    out_of_memory = number == signal.SIGKILL and oom_kills() > oom_kills_before
    return {"code": None, "signal": number, "out_of_memory": out_of_memory}


def oom_kills() -> int:
    """Count the processes that the kernel has killed for memory, as far as this machine shows."""
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
    """Return when a process started, in ticks since boot; None if it is not running."""
    fields = _stat(str(pid))
    return None if fields is None or fields[0] == b"Z" else int(fields[19])


def members(session: int) -> list[int]:
    """List the running processes of a session, in any process group."""
    wanted = str(session).encode()
    found = []
    for name in os.listdir("/proc"):
        fields = _stat(name) if name.isdigit() else None
        if fields and fields[3] == wanted and fields[0] not in (b"Z", b"X"):
            found.append(int(name))
    return found


def _stat(pid: str) -> list[bytes] | None:
    """Read the fields of /proc/PID/stat from the third on: the second is a name with any bytes."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return None


def end_session(session: int, steps: Sequence[tuple[int, float]]) -> int:
    """Send each signal to all of a session until it is empty; returns how many there were."""
    first = alive = members(session)
    for number, wait_s in steps:
        deadline = time.monotonic() + wait_s
        for pid in alive:
            try:
                os.kill(pid, number)
            except (ProcessLookupError, PermissionError):
                continue
        while alive and time.monotonic() < deadline:
            select.select([], [], [], _POLL_S)
            alive = members(session)
        if not alive:
            break
    return len(first)
