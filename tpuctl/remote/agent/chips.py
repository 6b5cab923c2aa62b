"""A worker's chips: find and end the processes that hold them, and check before a job."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import time
from dataclasses import asdict

from tpuctl.remote.agent.process import free_bytes, start_ticks
from tpuctl.remote.agent.wire import note, send
from tpuctl.runtime.holders import BY_DRIVER, find_state
from tpuctl.runtime.local import LocalMachine, installed, nodes_of_chips, number_of
from tpuctl.runtime.machine import LOCKFILE, normalized

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, BinaryIO

    from tpuctl.runtime.holders import Holder, State
    from tpuctl.runtime.machine import HostView, LockFile

DEVICES = "TPUCTL_EMULATED_DEVICES"
"""Environment variable with the folder that replaces /dev on an emulated worker."""

ENDED, KILLED, GONE = "ended", "killed", "gone"
REFUSED, STILL_RUNNING, LEFT_ALONE = "refused", "stays", "left"
"""Outcomes for a process: ended by TERM or killed, gone before, not permitted to us, not ending
although killed, or left alone."""

_GOOGLE = "0x1ae0"
_NODE = re.compile(r"accel\d+|vfio/\d+")
_POLL_S = 0.05
_ABOUT = """
import importlib.util, json, os, sys
spec = importlib.util.find_spec("libtpu")
places = ["/lib/libtpu.so", "/usr/lib/libtpu.so"]
if spec and spec.origin:
    places.append(os.path.join(os.path.dirname(spec.origin), "libtpu.so"))
libtpu = next(filter(os.path.isfile, places), None)
print(json.dumps({"python": sys.version.split()[0], "path": sys.path, "libtpu": libtpu}))
"""


class Emulated(LocalMachine):
    """An emulated worker: the driver and lock file of the machine below are not its own."""

    lockfile: LockFile | None = None

    def names(self, folder: str) -> tuple[str, ...]:
        """List a folder; of what the kernel shows, only the processes."""
        return super().names(folder) if folder == "/proc" else ()


class Chips:
    """The machine, and the device nodes of each of its chips."""

    def __init__(self, known: Mapping[str, int]) -> None:
        """`known` maps the PCI ids of TPUs to how many devices libtpu counts on a chip."""
        folder = os.environ.get(DEVICES)
        self.devices_per_chip: int | None = None
        if folder is not None:
            self.machine: HostView = Emulated()
            self.nodes = _emulated_nodes(folder)
            return
        self.machine = LocalMachine()
        found = [one for one in self.machine.pci if one.vendor == _GOOGLE and one.device in known]
        self.nodes = nodes_of_chips(self.machine, found)
        if found:
            self.devices_per_chip = known[found[0].device]

    def state(self) -> State | None:
        """Find who holds the chips; None without chips."""
        every = [node for chip in self.nodes for node in chip]
        return find_state(self.machine, every) if every else None


def look(request: dict[str, Any], stdin: BinaryIO) -> None:
    """Report the chips and the processes that hold them."""
    send(note(**_report(Chips(request["known"]))))


def release(request: dict[str, Any], stdin: BinaryIO) -> None:
    """End processes that hold chips: TERM, after `grace_s` KILL; report each one's outcome.

    `processes` are pairs of a process id and its start time. A process that no longer holds a chip
    or that has reused the id is left alone, and so is a lock file that may be in use.
    """
    chips = Chips(request["known"])
    before = chips.state()
    holding = {holder.pid: holder for holder in before.holders} if before else {}
    outcomes, ending = {}, {}
    for pid, ticks in request["processes"]:
        holder = holding.get(pid)
        if ticks is None or start_ticks(pid) != ticks:
            outcomes[pid] = GONE
        elif holder is None or not _may_end(holder):
            outcomes[pid] = LEFT_ALONE
        else:
            ending[pid] = ticks
    outcomes.update(_end(ending, request["grace_s"], request["settle_s"]))
    # Chips keeps what it has read of the machine, so a new one is needed.
    after = Chips(request["known"])
    removed = _remove_lockfile(after)
    send(note(outcomes=sorted(outcomes.items()), lockfile_removed=removed, **_report(after)))


def probe(request: dict[str, Any], stdin: BinaryIO) -> None:
    """Report what a job needs: the time, disk, chips, and versions of Python and its packages."""
    # The time is sent first and alone, as the rest takes seconds.
    send(note(now_s=time.time()))
    chips = Chips(request["known"])
    state = chips.state()
    holders = state.holders if state else ()
    send(
        note(
            disk_free_bytes=free_bytes(os.path.expanduser("~")),
            chips=len(chips.nodes),
            holders=[f"{holder.pid} ({holder.command})" for holder in holders],
            **_versions(request["packages"]),
        )
    )


def _versions(packages: list[str]) -> dict[str, Any]:
    """Read the versions in the Python that would run a job, which need not be the agent's."""
    command = ["python3", "-c", _ABOUT]
    try:
        pipe = subprocess.PIPE
        text = subprocess.run(command, stdout=pipe, check=True, timeout=60).stdout  # noqa: S603 (ours)
        about = dict(json.loads(text))
    except (OSError, ValueError, subprocess.SubprocessError):
        return {"python": None, "packages": {}, "libtpu": None}
    found = installed(about.pop("path"))
    names = {name: normalized(name) for name in packages}
    about["packages"] = {name: found[key][0] for name, key in names.items() if key in found}
    return about


def stale_lockfile(state: State, uid: int | None) -> bool:
    """Whether libtpu's lock file is another user's and unused, which makes libtpu fail."""
    busy = state.holders or state.lock_pids or state.uninspected
    return state.lockfile_uid not in (None, uid) and not busy


def _report(chips: Chips) -> dict[str, Any]:
    state = chips.state()
    return {
        "chips": len(chips.nodes),
        "holders": [
            {**asdict(one), "started": start_ticks(one.pid), "may_end": _may_end(one)}
            for one in (state.holders if state else ())
        ],
        "uninspected": state.uninspected if state else 0,
        "stale_lockfile": bool(state and stale_lockfile(state, os.geteuid())),
    }


def _may_end(holder: Holder) -> bool:
    # The driver's process ids are the host's, which mean other processes in a container.
    return not holder.is_ours and holder.seen_by != BY_DRIVER


def _emulated_nodes(folder: str) -> list[tuple[str, ...]]:
    found = []
    for place in (folder, os.path.join(folder, "vfio")):
        for name in os.listdir(place) if os.path.isdir(place) else ():
            path = os.path.join(place, name)
            if _NODE.fullmatch(os.path.relpath(path, folder)):
                found.append(path)
    return [(path,) for path in sorted(found, key=number_of)]


def _end(ending: dict[int, int], grace_s: float, settle_s: float) -> dict[int, str]:
    """Send TERM, then KILL, to all at once; returns each one's outcome."""
    outcomes: dict[int, str] = {}
    alive = dict(ending)
    for number, wait_s, outcome in (
        (signal.SIGTERM, grace_s, ENDED),
        (signal.SIGKILL, settle_s, KILLED),
    ):
        for pid in list(alive):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
            except PermissionError:
                outcomes[pid] = REFUSED
                del alive[pid]
        deadline = time.monotonic() + wait_s
        while alive:
            for pid, ticks in list(alive.items()):
                if start_ticks(pid) != ticks:
                    outcomes[pid] = outcome
                    del alive[pid]
            if not alive or time.monotonic() > deadline:
                break
            select.select([], [], [], _POLL_S)
    outcomes.update(dict.fromkeys(alive, STILL_RUNNING))
    return outcomes


def _remove_lockfile(chips: Chips) -> bool | None:
    """Remove a stale lock file; None when there is none, False when we may not."""
    state = chips.state()
    if state is None or not stale_lockfile(state, os.geteuid()):
        return None
    try:
        os.unlink(LOCKFILE)
    except OSError:
        return False
    return True
