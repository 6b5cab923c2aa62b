"""Run one command and send its output; it is stopped when the other end is gone."""

from __future__ import annotations

import os
import select
import signal
import time

from tpuctl.remote.agent import process
from tpuctl.remote.agent.wire import STDERR, STDOUT, frame, note, send

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, BinaryIO

_STDIN = 0
_CHUNK_BYTES = 1 << 16
_PIPE_BYTES = 1 << 20
_QUIET_S = 0.2


def run(request: dict[str, Any], stdin: BinaryIO) -> None:
    """Start the command, send its output, and report how it ended.

    The command is stopped when the other end closes, or sends nothing for `lease_s`.
    """
    oom_kills, wake = process.oom_kills(), wake_on_child()
    out, err = os.pipe(), os.pipe()
    pid = process.spawn(
        request["argv"], request["env"], request["folder"], stdout=out[1], stderr=err[1]
    )
    os.close(out[1])
    os.close(err[1])
    pipes = {out[0]: STDOUT, err[0]: STDERR}
    try:
        watched = _pass_on(pid, pipes, wake, request["lease_s"])
    except BrokenPipeError:
        watched = False
    left_behind = process.end_session(pid, process.LEFT_BEHIND if watched else process.INTERRUPT)
    ended = process.reap(pid, oom_kills)
    for descriptor, kind in pipes.items():
        _drain(descriptor, kind)
    ended["left_behind"] = left_behind if watched else 0
    ended["disk_free_bytes"] = process.free_bytes(".")
    send(note(exit=ended))


def wake_on_child() -> int:
    """Return a descriptor that becomes readable when a child ends."""
    wake, write = os.pipe()
    os.set_blocking(write, False)
    # Python writes a byte there for every signal that has a handler, so poll() cannot miss one.
    signal.set_wakeup_fd(write)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return wake


def _pass_on(pid: int, pipes: dict[int, bytes], wake: int, lease_s: float) -> bool:
    """Send output until the command has ended; returns False when the other end is gone."""
    poll, waiting = select.poll(), set(pipes)
    for descriptor in (_STDIN, wake, *pipes):
        poll.register(descriptor, select.POLLIN)
    deadline, quiet_at = time.monotonic() + lease_s, 0.0
    while waiting or not process.has_ended(pid):
        ready = {descriptor for descriptor, _ in poll.poll(_QUIET_S * 1000)}
        if _STDIN in ready:
            if not os.read(_STDIN, _CHUNK_BYTES):
                return False
            deadline = time.monotonic() + lease_s
        elif time.monotonic() > deadline:
            return False
        if wake in ready:
            os.read(wake, _CHUNK_BYTES)
            quiet_at = time.monotonic() + _QUIET_S
        for descriptor in ready & waiting:
            if not _forward(descriptor, pipes[descriptor]):
                poll.unregister(descriptor)
                waiting.remove(descriptor)
        # Processes that the command left behind may keep the pipes open forever: do not wait.
        if quiet_at and time.monotonic() > quiet_at and process.has_ended(pid):
            return True
    return True


def _forward(descriptor: int, kind: bytes) -> bool:
    data = os.read(descriptor, _CHUNK_BYTES)
    if data:
        send(frame(kind, data))
    return bool(data)


def _drain(descriptor: int, kind: bytes) -> None:
    """Send what is left in a pipe, without waiting for more."""
    os.set_blocking(descriptor, False)
    try:
        for _ in range(_PIPE_BYTES // _CHUNK_BYTES):
            if not _forward(descriptor, kind):
                break
    except BlockingIOError:
        return
