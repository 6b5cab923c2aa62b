"""Keep commands on an emulated worker from harming this machine, if the system allows it.

A worker is a set of Linux namespaces. It sees only its own processes, can write only to its home
and its own temporary folders, and cannot reach system services (systemd, D-Bus) that turn off the
machine. It can read what its user may read, except keys and settings in that user's home, and it
shares the machine's network. Run as a program, this module is the first process of a worker.
"""

import ctypes
import glob
import itertools
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from tpuctl.emulator.worker_processes import DEVICES, kill_everything
from tpuctl.start_python import ROOT, child_environment, python_command

_LIBC = ctypes.CDLL(None, use_errno=True)
_MOUNT_SETATTR = 442
_HERE, _RECURSIVE, _READ_ONLY = -100, 0x8000, 1
_TOOLS = ("unshare", "nsenter", "setpriv")
_BIND, _READY = 4096, b"ready\n"
_SERVICES = ("/run",)
HOSTS = "/etc/hosts"
"""The file that maps host names to addresses."""

# Folders of which each worker has its own.
_TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 (replaced)
_PYTHON = (sys.prefix, sys.base_prefix, ROOT)


class Confinement:
    """The namespaces of one worker, created for its first program; `close` ends all processes.

    The worker can write to `home`, and to `temporary` as its /tmp; `names` is its /etc/hosts.
    Without `temporary`, or without support for namespaces, programs run unconfined.
    """

    def __init__(
        self,
        home: Path,
        temporary: Path | None = None,
        env: Mapping[str, str] | None = None,
        names: Path = Path(HOSTS),
    ) -> None:
        self.home, self.temporary, self._env, self._names = home, temporary, env, names
        self._lock = threading.Lock()
        self._first: subprocess.Popen[bytes] | None = None
        self._prefix: list[str] | None = None

    @property
    def is_supported(self) -> bool:
        """Whether this user may create namespaces."""
        return bool(self.command(()))

    def command(self, command: Sequence[str]) -> list[str]:
        """Wrap a command so that it runs on the worker."""
        with self._lock:
            if self._prefix is None:
                self._prefix = self._start()
            return [*self._prefix, *command]

    def close(self) -> None:
        """End every process of the worker."""
        with self._lock:
            if self._first and self._first.stdout:
                self._first.kill()
                self._first.wait()
                self._first.stdout.close()
            self._first, self._prefix = None, None

    def _start(self) -> list[str]:
        """Start the first process; returns the prefix of every command, or nothing."""
        if not self.temporary or not all(map(shutil.which, _TOOLS)):
            return []
        start = ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork"]
        start += ["--kill-child", "--mount-proc", "--propagation", "private", "--"]
        paths = (self.temporary, self.home, self._names, os.path.expanduser("~"))
        start += python_command("tpuctl.emulator.confine", *map(str, paths))
        # Processes left by a killed emulator would be in namespaces that cannot be entered.
        kill_everything(self.home)
        self.temporary.mkdir(exist_ok=True)
        self._first = subprocess.Popen(  # noqa: S603 (our own program)
            start,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=child_environment(self._env),
            start_new_session=True,
        )
        assert self._first.stdout
        if self._first.stdout.read(len(_READY)) != _READY:
            return []
        (inner,) = psutil.Process(self._first.pid).children()
        prefix = ["nsenter", f"--target={inner.pid}", "--user", "--mount", "--pid"]
        # Without capabilities, so that no process can undo what the first one did.
        prefix += ["--preserve-credentials", "--", "setpriv", "--bounding-set=-all", "--"]
        # The working folder in a new mount namespace is its root.
        return [*prefix, "/bin/sh", "-c", 'cd "$0" && exec "$@"', str(self.home)]


class _Attributes(ctypes.Structure):
    _fields_ = (("set", ctypes.c_uint64), ("clear", ctypes.c_uint64), ("more", ctypes.c_uint64 * 2))


def main() -> None:
    """Prepare the file systems of a worker, report that, and wait to be killed."""
    own, home, names, user_home = sys.argv[1:]
    hidden = [name for name in _TEMPORARY if os.path.isdir(name) and not os.path.islink(name)]
    # Opened before the folders above them are hidden.
    below = tuple(f"{name}/" for name in hidden)
    others = [path for path in (*_PYTHON, os.environ.get(DEVICES)) if path]
    kept = [home, *(path for path in others if path.startswith(below))]
    needed = (own, home, *others, *sys.path, *os.environ.get("PATH", "").split(os.pathsep))
    private = [path for path in _private(user_home, needed) if not path.startswith(below)]
    opened = {path: os.open(path, os.O_PATH) for path in kept}
    source = os.open(own, os.O_PATH)
    hosts = os.open(names, os.O_PATH) if os.path.isfile(HOSTS) else None
    _set_read_only("/", read_only=True)
    for name in hidden:
        _bind(source, name, read_only=False)
    # Sorted, so that a home inside another folder is bound after it.
    for path, descriptor in sorted(opened.items()):
        os.makedirs(path, exist_ok=True)
        _bind(descriptor, path, read_only=path != home)
    if hosts is not None:
        _bind(hosts, HOSTS, read_only=True)
    nothing = os.open(os.devnull, os.O_PATH)
    for name in itertools.filterfalse(os.path.isdir, private):
        _bind(nothing, name, read_only=True)
    for name in filter(os.path.isdir, (*_SERVICES, *private)):
        _check(_LIBC.mount(b"none", os.fsencode(name), b"tmpfs", 0, None))
    os.write(1, _READY)
    # So the kernel itself reaps processes whose parents have ended.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    os.closerange(0, 3)
    os.execvp("sleep", ["sleep", "1000000000"])  # noqa: S606, S607 (its own PATH)


def _private(home: str, needed: Sequence[str]) -> Iterator[str]:
    """Yield the paths to hide in a home, such as .ssh, except those that programs need."""
    real = [os.path.realpath(path) + "/" for path in needed if path]
    for path in glob.glob(os.path.join(glob.escape(os.path.realpath(home)), ".*")):
        if not os.path.islink(path) and not any(each.startswith(f"{path}/") for each in real):
            yield path


def _bind(source: int, target: str, *, read_only: bool) -> None:
    path = f"/proc/self/fd/{source}".encode()
    _check(_LIBC.mount(path, os.fsencode(target), None, _BIND, None))
    _set_read_only(target, read_only=read_only)


def _set_read_only(path: str, *, read_only: bool) -> None:
    """Make a mount, and all mounts below it, read-only or writable."""
    change = _Attributes(_READ_ONLY, 0) if read_only else _Attributes(0, _READ_ONLY)
    size = ctypes.c_size_t(ctypes.sizeof(change))
    name = os.fsencode(path)
    _check(_LIBC.syscall(_MOUNT_SETATTR, _HERE, name, _RECURSIVE, ctypes.byref(change), size))


def _check(result: int) -> None:
    if result:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
