"""What a worker is like right before a job: its time, disk, Python, frameworks and chips."""

from __future__ import annotations

import json
import os
import subprocess
import time

from tpuctl.remote.agent.chips import Chips, holder_line
from tpuctl.remote.agent.run import free_bytes
from tpuctl.remote.agent.wire import note, send

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, BinaryIO

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
    chips = Chips(request["known"])
    state = chips.state()
    send(
        note(
            disk_free_bytes=free_bytes(os.path.expanduser("~")),
            chips=len(chips.nodes),
            holders=[holder_line(holder) for holder in state.holders] if state else [],
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
