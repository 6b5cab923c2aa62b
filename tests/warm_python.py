"""A Python that has imported heavy libraries once, and forks for each program that it runs.

TensorFlow and Keras take longer to import than a test's training runs, and tpuctl longer than most
of its commands take. A program runs in a process of its own, as `__main__`, and ends as usual: only
its imports are already done. Run as a program with a socket's path, this file starts what the rest
of its arguments name, and ends like it.
"""

import atexit
import contextlib
import fcntl
import gc
import importlib
import json
import os
import runpy
import selectors
import shlex
import socket
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from functools import cache
from typing import IO, Any

KIND = socket.AF_UNIX, socket.SOCK_SEQPACKET
END_S = 600
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
    """Any number of programs at a time; it ends with the last process that uses it."""

    def __init__(self, modules: Sequence[str], env: Mapping[str, str], place: str) -> None:
        self.place = place
        self._server: subprocess.Popen[bytes] | None = None
        with open(f"{place}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not self._is_joined():
                self._serve(modules, env)
                assert self._is_joined(), "it ended as it began"
        # What a test forks must not keep it alive.
        os.register_at_fork(after_in_child=self._link.close)
        atexit.register(self._end)

    def _is_joined(self) -> bool:
        """Whether there is a server; it stays for as long as this connection."""
        self._link = socket.socket(*KIND)
        with contextlib.suppress(OSError):
            self._link.connect(self.place)
            self._link.send(b'{"stays": true}')
            if self._link.recv(100):
                return True
        self._link.close()
        return False

    def _serve(self, modules: Sequence[str], env: Mapping[str, str]) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.place)
        with socket.socket(*KIND) as listener:
            listener.bind(self.place)
            listener.listen(64)
            stream = listener.fileno()
            self._server = subprocess.Popen(
                [sys.executable, __file__, str(stream), *modules],
                env=env,
                pass_fds=[stream],
                stdin=subprocess.DEVNULL,
            )

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

    def command(self, *words: str) -> list[str]:
        """Return the command that starts a program here and ends like it."""
        return [sys.executable, "-I", "-S", __file__, self.place, *words]

    def in_shell(self, *words: str) -> str:
        """Return the words with which a shell starts a program here, before its arguments."""
        return shlex.join(self.command(*words))

    def _end(self) -> None:
        self._link.close()
        if self._server:
            self._server.wait(END_S)


@cache
def warm_python(modules: tuple[str, ...], env: tuple[tuple[str, str], ...] = ()) -> WarmPython:
    """The one of all workers of pytest for these modules; what they read at import is in `env`."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    folder = os.path.join(tempfile.gettempdir(), f"tpuctl-warm-{run}")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    place = os.path.join(folder, f"{zlib.crc32(repr((modules, env)).encode()):08x}")
    return WarmPython(modules, {**os.environ, **dict(env)}, place)


def next_program(listener: socket.socket) -> list[str]:
    """Serve until a fork of this process is to run a program; returns its arguments."""
    staying: dict[int, socket.socket] = {}
    running: dict[int, tuple[socket.socket, int]] = {}
    with selectors.DefaultSelector() as events:
        events.register(listener, selectors.EVENT_READ)
        while True:
            for key, _ in events.select():
                if key.fileobj is not listener:
                    events.unregister(key.fd)
                    if key.fd in running:
                        _end_of(*running.pop(key.fd))
                        os.close(key.fd)
                    else:
                        staying.pop(key.fd).close()
                        if not staying:
                            _remove(listener.getsockname())
                            sys.exit()
                    continue
                client, request, streams = _accept(listener)
                if "stays" in request:
                    _answer(client, os.getpid())
                    staying[client.fileno()] = client
                    events.register(client, selectors.EVENT_READ)
                    continue
                if not (pid := os.fork()):
                    for each in (listener, client, *staying.values()):
                        each.close()
                    return begin(request, streams)
                _started(client, pid, request, streams)
                handle = os.pidfd_open(pid)
                running[handle] = client, pid
                events.register(handle, selectors.EVENT_READ)


def _remove(place: str) -> None:
    with contextlib.suppress(OSError):  # Another one is in the folder.
        os.unlink(place)
        os.unlink(f"{place}.lock")
        os.rmdir(os.path.dirname(place))


def _started(
    client: socket.socket, pid: int, request: dict[str, Any], streams: Sequence[int]
) -> None:
    for stream in streams:
        os.close(stream)
    if request.get("new_group"):
        os.setpgid(pid, pid)
    _answer(client, pid)


def _end_of(client: socket.socket, pid: int) -> None:
    with client:
        _answer(client, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


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


def serve(listener: int, *modules: str) -> None:
    """Import modules, and run programs until nobody stays."""
    for module in modules:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(module)
    # A fork that looks through all of this when it ends takes most of a second, with TensorFlow.
    gc.collect()
    gc.freeze()
    sys.argv = next_program(socket.socket(fileno=listener))
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
        serve(int(sys.argv[1]), *sys.argv[2:])
    else:
        code = Program(sys.argv[1], sys.argv[2:], os.environ, {0: 0, 1: 1, 2: 2}).wait()
        sys.exit(code if code >= 0 else 128 - code)
