"""A Python that has imported heavy libraries once, and forks for each program that it runs.

TensorFlow and Keras take longer to import than a test's training runs, and tpuctl longer than most
of its commands take. A program runs in a process of its own, as `__main__`, and ends as usual: only
its imports are already done. Run as a program with a socket's path, this file starts what the rest
of its arguments name, and ends like it.
"""

import atexit
import contextlib
import importlib
import json
import os
import runpy
import selectors
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from typing import IO, Any

KIND = socket.AF_UNIX, socket.SOCK_SEQPACKET
TPUCTL = (
    "grpc._auth", "rich.table", "typer._adapters", "tpuctl.cli.app", "tpuctl.cli.cloud",
    "tpuctl.cli.create", "tpuctl.cli.data", "tpuctl.cli.machine", "tpuctl.cli.practice",
    "tpuctl.cli.profile", "tpuctl.cli.training", "tpuctl.cli.watch", "tpuctl.cli.workers",
    "tpuctl.cloud._google_api", "tpuctl.cloud._google_quotas", "tpuctl.cloud.gce._api",
    "tpuctl.diagnosis.diagnose", "tpuctl.providers.colab.provider", "tpuctl.providers.gke.provider",
    "tpuctl.providers.kaggle.provider", "tpuctl.providers.registry", "tpuctl.remote._asyncssh",
)  # fmt: skip
"""What most commands import."""


class Program:
    """A running program; `streams` are descriptors by their number there."""

    def __init__(
        self,
        place: str,
        command: Sequence[str],
        env: Mapping[str, str],
        streams: Mapping[int, int],
        *,
        new_group: bool = False,
    ) -> None:
        self._link = socket.socket(*KIND)
        self._link.connect(place)
        request = {
            "argv": list(command), "env": dict(env), "folder": os.getcwd(),
            "numbers": list(streams), "new_group": new_group,
        }  # fmt: skip
        socket.send_fds(self._link, [json.dumps(request).encode()], list(streams.values()))
        self.pid = int(self._link.recv(100))
        self.stdin: IO[bytes] | None = None
        self._code: int | None = None

    def wait(self) -> int:
        """Return the exit code; a signal is negative."""
        if self._code is None:
            with self._link:
                self._code = int(self._link.recv(100))
        return self._code


class WarmPython:
    """Any number of programs at a time; everything ends with this process."""

    def __init__(self, modules: Sequence[str], env: Mapping[str, str]) -> None:
        self._folder = tempfile.mkdtemp(prefix="tpuctl-warm-")
        self.place = os.path.join(self._folder, "socket")
        ours, theirs = socket.socketpair(*KIND)
        self._alive = ours
        with theirs, socket.socket(*KIND) as listener:
            listener.bind(self.place)
            listener.listen(64)
            streams = theirs.fileno(), listener.fileno()
            self._server = subprocess.Popen(
                [sys.executable, __file__, *map(str, streams), *modules],
                env=env,
                pass_fds=streams,
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
        with open(os.devnull, "rb") as nothing:
            streams = {0: nothing.fileno(), **streams}
            return Program(self.place, command, env, streams, new_group=new_group)

    def run(
        self, command: Sequence[str], env: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """Run a script to its end."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            code = self.start(command, env, {1: out.fileno(), 2: err.fileno()}).wait()
            texts = [os.pread(file.fileno(), 1 << 20, 0).decode() for file in (out, err)]
        return subprocess.CompletedProcess(list(command), code, texts[0], texts[1])

    def in_shell(self, *command: str) -> str:
        """Return the words with which a shell starts a program here, before its arguments."""
        return f'"{sys.executable}" -I -S "{__file__}" "{self.place}" {" ".join(command)}'

    def _end(self) -> None:
        self._alive.close()
        self._server.wait()
        shutil.rmtree(self._folder)


@cache
def warm_python(modules: tuple[str, ...], env: tuple[tuple[str, str], ...] = ()) -> WarmPython:
    """The one for these modules; what they read at import is in `env`."""
    return WarmPython(modules, {**os.environ, **dict(env)})


def next_program(alive: socket.socket, listener: socket.socket) -> list[str]:
    """Serve until a fork of this process is to run a program; returns its arguments."""
    running: dict[int, tuple[socket.socket, int]] = {}
    with selectors.DefaultSelector() as events:
        for each in (alive, listener):
            events.register(each, selectors.EVENT_READ)
        while True:
            for key, _ in events.select():
                if key.fileobj is alive:
                    sys.exit()
                if found := running.pop(key.fd, None):
                    client, pid = found
                    events.unregister(key.fd)
                    os.close(key.fd)
                    with client:
                        _answer(client, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                    continue
                client, request, streams = _accept(listener)
                if not (pid := os.fork()):
                    for each in (alive, listener, client):
                        each.close()
                    return begin(request, streams)
                for stream in streams:
                    os.close(stream)
                if request.get("new_group"):
                    os.setpgid(pid, pid)
                _answer(client, pid)
                handle = os.pidfd_open(pid)
                running[handle] = client, pid
                events.register(handle, selectors.EVENT_READ)


def _accept(listener: socket.socket) -> tuple[socket.socket, dict[str, Any], list[int]]:
    client, _ = listener.accept()
    message, streams, _, _ = socket.recv_fds(client, 1 << 20, 8)
    # Nothing comes from a client that was killed meanwhile.
    return client, json.loads(message or '{"numbers": []}'), streams


def begin(request: dict[str, Any], streams: Sequence[int]) -> list[str]:
    """Take over what a program was started with, in the fork that is to run it."""
    if not request["numbers"]:
        os._exit(0)
    for number, stream in zip(request["numbers"], streams, strict=True):
        os.dup2(stream, number)
        os.close(stream)
    # Those that there are know whether the server's streams can be sought.
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = os.fdopen(1, "w", buffering=1, encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8", closefd=False)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["folder"])
    argv: list[str] = request["argv"]
    return argv


def serve(alive: int, listener: int, *modules: str) -> None:
    """Import modules, and run programs until the other end is closed."""
    for module in modules:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(module)
    sys.argv = next_program(socket.socket(fileno=alive), socket.socket(fileno=listener))
    if sys.argv[0] == "-m":
        # As Python itself does.
        sys.path[0] = ""
        runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(sys.argv[0])
        runpy.run_path(sys.argv[0], run_name="__main__")


def _answer(client: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):  # Killed meanwhile.
        client.send(str(number).encode())


if __name__ == "__main__":
    if sys.argv[1].isdecimal():
        serve(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
    else:
        code = Program(sys.argv[1], sys.argv[2:], os.environ, {0: 0, 1: 1, 2: 2}).wait()
        sys.exit(code if code >= 0 else 128 - code)
