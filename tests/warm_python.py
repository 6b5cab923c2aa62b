"""A Python that has imported heavy libraries once, and forks for each program that it runs.

TensorFlow and Keras take longer to import than a test's training runs. A program runs in a process
of its own, as `__main__`, and ends as usual: only its imports are already done.
"""

import atexit
import importlib
import json
import os
import runpy
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from typing import IO


class Program:
    """A running program."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self.pid = int(link.recv(100))
        self._code: int | None = None
        self.stdin: IO[bytes] | None = None

    def wait(self) -> int:
        """Return the exit code; a signal is negative."""
        if self._code is None:
            self._code = int(self._link.recv(100))
        return self._code


class WarmPython:
    """One program at a time; everything ends with this process."""

    def __init__(self, modules: Sequence[str], env: Mapping[str, str]) -> None:
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._server = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno()), *modules],
                env=env,
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
            )
        atexit.register(self._end)

    def start(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        streams: Mapping[int, int],
        *,
        new_group: bool = False,
    ) -> Program:
        """Start a script with its arguments; `streams` are descriptors by their number there."""
        request = {"argv": list(command), "env": dict(env), "numbers": list(streams)}
        message = json.dumps({**request, "new_group": new_group}).encode()
        socket.send_fds(self._link, [message], list(streams.values()))
        return Program(self._link)

    def run(
        self, command: Sequence[str], env: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """Run a script to its end."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            code = self.start(command, env, {1: out.fileno(), 2: err.fileno()}).wait()
            texts = [os.pread(file.fileno(), 1 << 20, 0).decode() for file in (out, err)]
        return subprocess.CompletedProcess(list(command), code, texts[0], texts[1])

    def _end(self) -> None:
        self._link.close()
        self._server.wait()


@cache
def warm_python(modules: tuple[str, ...], env: tuple[tuple[str, str], ...]) -> WarmPython:
    """The one for these modules; what they read at import is in `env`."""
    return WarmPython(modules, {**os.environ, **dict(env)})


def next_program(link: socket.socket) -> list[str]:
    """Serve until a fork of this process is to run a program; returns its arguments."""
    while True:
        message, streams, _, _ = socket.recv_fds(link, 1 << 20, 8)
        if not message:
            sys.exit()
        request = json.loads(message)
        pid = os.fork()
        if not pid:
            for number, stream in zip(request["numbers"], streams, strict=True):
                os.dup2(stream, number)
                os.close(stream)
            link.close()
            os.environ.clear()
            os.environ.update(request["env"])
            argv: list[str] = request["argv"]
            return argv
        if request["new_group"]:
            os.setpgid(pid, pid)
        for stream in streams:
            os.close(stream)
        link.send(str(pid).encode())
        link.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())


if __name__ == "__main__":
    for module in sys.argv[2:]:
        importlib.import_module(module)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.argv = next_program(socket.socket(fileno=int(sys.argv[1])))
    sys.path[0] = os.path.dirname(sys.argv[0])
    runpy.run_path(sys.argv[0], run_name="__main__")
