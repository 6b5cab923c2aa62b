"""What runs on an emulated worker, and its end."""

import os
import signal
from pathlib import Path

MARK = "TPUCTL_EMULATED_WORKER"
"""The variable by which everything that runs on an emulated worker is found again."""


def kill_everything(folder: Path) -> None:
    """End every process that runs on the emulated worker with this home."""
    mark = f"{MARK}={folder}".encode()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if mark in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                os.kill(int(name), signal.SIGKILL)
        except OSError:
            continue
