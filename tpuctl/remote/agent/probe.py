"""What a worker is like right before a job: its time, disk, Python, frameworks and chips."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time

from tpuctl.remote.agent.run import free_bytes
from tpuctl.remote.agent.wire import note, send

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, BinaryIO

DEVICES = "TPUCTL_EMULATED_DEVICES"
"""Names a folder that stands for /dev on a worker that is none."""

_NODE = re.compile(r"accel\d+|vfio/\d+")
_VERSIONS = """
import importlib.metadata as m, importlib.util, json, os, platform, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = m.version(name)
    except m.PackageNotFoundError:
        pass
spec = importlib.util.find_spec("libtpu")
places = ["/lib/libtpu.so", "/usr/lib/libtpu.so"]
if spec and spec.origin:
    places.append(os.path.join(os.path.dirname(spec.origin), "libtpu.so"))
libtpu = next(filter(os.path.isfile, places), None)
print(json.dumps({"python": platform.python_version(), "packages": found, "libtpu": libtpu}))
"""


def probe(request: dict[str, Any], stdin: BinaryIO) -> None:
    """Look, without touching a chip; the time comes first and alone, for it must be fresh."""
    send(note(now_s=time.time()))
    chips = _chips()
    send(
        note(
            disk_free_bytes=free_bytes(os.path.expanduser("~")),
            chips=len(chips),
            holders=_holders(chips),
            **_versions(request["packages"]),
        )
    )


def _versions(packages: list[str]) -> dict[str, Any]:
    """What the Python that a job would be started with has."""
    command = ["python3", "-c", _VERSIONS, *packages]
    try:
        text = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=60).stdout
        return dict(json.loads(text))
    except (OSError, ValueError, subprocess.SubprocessError):
        return {"python": None, "packages": {}, "libtpu": None}


def _chips() -> set[str]:
    root = os.environ.get(DEVICES, "/dev")
    found = set()
    for folder in (root, os.path.join(root, "vfio")):
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            path = os.path.join(folder, name)
            if _NODE.fullmatch(os.path.relpath(path, root)):
                found.add(path)
    return found


def _holders(chips: set[str]) -> list[dict[str, Any]]:
    """Every process that has a chip open, as far as we may see that."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc") if chips else ()):
        try:
            paths = {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                command = file.read().rstrip(b"\0").replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue
        if paths & chips:
            found.append({"pid": int(pid), "command": command[:200]})
    return found
