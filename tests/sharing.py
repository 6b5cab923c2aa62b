"""What the workers of pytest-xdist make once and all use, and what tests need to be installed."""

import errno
import fcntl
import importlib.util
import os
import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

HEAVY: dict[str, str] = {}
"""The environment of programs that import TensorFlow or JAX."""


def needs(*modules: str) -> None:
    """Skip a test where a module is not installed; `pytest.importorskip` would import it here."""
    for name in modules:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")


def free_port() -> int:
    """A port that nobody uses, and that the system gives to none of its connections meanwhile."""
    lowest = 32768
    with suppress(OSError), open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        lowest = int(file.read().split()[0])
    while True:
        port = secrets.choice(range(lowest // 2, lowest))
        with suppress(OSError), socket.create_server(("", port)):
            return port


def without_locks(descriptor: int, how: int) -> None:
    """What `fcntl.flock` does on Lustre without `-o flock`."""
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


def shared_folder(factory: pytest.TempPathFactory) -> Path:
    """A folder of this run of pytest, the same one in all its workers."""
    folder = factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A folder that the first test that needs it fills, while the others wait."""
    folder = shared_folder(factory) / name
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = folder / "made"
        if not done.exists():
            folder.mkdir(exist_ok=True)
            make(folder)
            done.touch()
    return folder
