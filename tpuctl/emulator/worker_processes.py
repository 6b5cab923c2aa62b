"""The processes of an emulated worker; run as a program, this module holds its chips."""

import argparse
import os
import re
import signal
from pathlib import Path

MARK = "TPUCTL_EMULATED_WORKER"
"""Marks the environment of every process on an emulated worker."""

DEVICES = "TPUCTL_EMULATED_DEVICES"
"""The folder that replaces /dev on an emulated worker, with a file for each chip."""

PORTS = "TPU_RUNTIME_METRICS_PORTS"
"""libtpu's variable for the ports on which it serves metrics."""

HBM_BYTES = "TPUCTL_EMULATED_HBM_BYTES"
"""The memory of each chip of an emulated worker."""

_CHIP = re.compile(r"accel\d+|\d+")


def kill_everything(folder: Path) -> None:
    """Kill every process of the emulated worker with this home."""
    mark = f"{MARK}={folder}".encode()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if mark in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                os.kill(int(name), signal.SIGKILL)
        except OSError:
            # It has ended in the meantime, or belongs to another user.
            continue


def main() -> None:
    """Open every chip, serve metrics, and wait to be killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--duty-cycle-percent", type=float, default=75.0)
    parser.add_argument("--hbm-used-bytes", type=int, default=4 << 30)
    options = parser.parse_args()
    devices = Path(os.environ[DEVICES])
    files = (path for path in (*devices.iterdir(), *(devices / "vfio").glob("*")) if path.is_file())
    chips = sorted(path for path in files if _CHIP.fullmatch(path.name))
    opened = [os.open(path, os.O_RDONLY) for path in chips]
    hbm_bytes = int(os.environ.get(HBM_BYTES, 16 << 30))
    metrics = {
        "tpu.runtime.tensorcore.dutycycle.percent": [options.duty_cycle_percent] * len(opened),
        "tpu.runtime.hbm.memory.usage.bytes": [options.hbm_used_bytes] * len(opened),
        "tpu.runtime.hbm.memory.total.bytes": [hbm_bytes] * len(opened),
    }
    from tpuctl.emulator._metrics import serve_metrics

    ports = map(int, os.environ.get(PORTS, "8431").split(","))
    # gRPC stops a server that is garbage-collected.
    servers = [serve_metrics(lambda: metrics, port) for port in ports]
    signal.pause()
    del servers


if __name__ == "__main__":
    main()
