"""Attackers on this machine: programs that run as another user, without any rights."""

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import psutil
import pytest

NOBODY = 65534
_ENV = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "PYTHONPATH": sysconfig.get_path("purelib"),
    "TF_CPP_MIN_LOG_LEVEL": "3",
}
_WITHOUT_RIGHTS = (
    "setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--inh-caps=-all",
    "--bounding-set=-all",
)  # fmt: skip


def as_nobody(program: str, *arguments: str) -> list[str]:
    """A Python program as another user; skips the test where we cannot start one."""
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("only root, with setpriv, can start an attacker of another user")
    if not (python := _python()):
        pytest.skip("another user cannot run a Python with our packages")
    return [*_WITHOUT_RIGHTS, python, "-c", program, *arguments]


@cache
def _python() -> str | None:
    """Our Python, or that of the system if the other user cannot enter where ours is."""
    for python in (sys.executable, shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin")):
        words = [*_WITHOUT_RIGHTS, python or "", "-c", "import subprocess, sys, grpc; "
                 "subprocess.run([sys.executable, '-c', ''], check=True)"]  # fmt: skip
        if subprocess.run(words, capture_output=True, env=_ENV, cwd="/").returncode == 0:
            return python
    return None


def attack(program: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a Python program as another user."""
    words = as_nobody(program, *arguments)
    return subprocess.run(words, capture_output=True, text=True, env=_ENV, timeout=120, cwd="/")


CONNECT = """
import socket, sys
for place in sys.argv[1:]:
    try:
        if place.startswith("unix:"):
            socket.socket(socket.AF_UNIX).connect(place[5:])
        else:
            host, _, port = place.rpartition(":")
            socket.create_connection((host, int(port)))
        print("in", place)
    except OSError as error:
        print(type(error).__name__, place)
"""


def own_address() -> str:
    """An address of this machine that is not loopback; skips the test where there is none."""
    for addresses in psutil.net_if_addrs().values():
        for each in addresses:
            if each.family.name == "AF_INET" and not each.address.startswith("127."):
                return each.address
    pytest.skip("this machine has no address but loopback")


def listening_on(processes: Sequence[psutil.Process]) -> list[tuple[str, int]]:
    """The TCP addresses of this machine's network where some processes listen."""
    inodes = set()
    for process in processes:
        for descriptor in Path(f"/proc/{process.pid}/fd").iterdir():
            try:
                inodes.add(os.readlink(descriptor))
            except OSError:
                continue
    found = []
    for line in (Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()).split(
        "\n"
    ):
        words = line.split()
        if len(words) > 9 and words[3] == "0A" and f"socket:[{words[9]}]" in inodes:
            address, port = words[1].split(":")
            found.append((address, int(port, 16)))
    return found
