"""A worker's chips: which processes have them open, and ending these."""

from __future__ import annotations

import os
import re
import select
import signal
import time

from tpuctl.remote.agent.process import start_ticks
from tpuctl.remote.agent.wire import note, send
from tpuctl.runtime.holders import BY_DRIVER, find_state
from tpuctl.runtime.local import LocalMachine, nodes_of_chips, number_of
from tpuctl.runtime.machine import LOCKFILE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, BinaryIO

    from tpuctl.runtime.holders import Holder, State
    from tpuctl.runtime.machine import HostView, LockFile

DEVICES = "TPUCTL_EMULATED_DEVICES"
"""Names a folder that stands for /dev on a worker that is none."""

TOLD, KILLED, GONE = "ended", "killed", "gone"
REFUSED, STAYS, LEFT = "refused", "stays", "left"
"""What became of a process that had chips: it obeyed TERM, needed KILL, was gone already; we may
not end it, it does not end, or it was left alone."""

_GOOGLE = "0x1ae0"
_NODE = re.compile(r"accel\d+|vfio/\d+")
_POLL_S = 0.05


class Emulated(LocalMachine):
    """A worker that is none: the machine under it is somebody else's, its driver and lock too."""

    lockfile: LockFile | None = None

    def names(self, folder: str) -> tuple[str, ...]:
        """The names in a folder; of what the kernel shows, only the processes."""
        return super().names(folder) if folder == "/proc" else ()


class Chips:
    """What there is to look at: the machine, and the device nodes of each of its chips."""

    def __init__(self, known: Mapping[str, int]) -> None:
        """`known` tells the PCI ids of TPUs, and how many devices libtpu counts on a chip."""
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
        """Who has them; None without chips."""
        every = [node for chip in self.nodes for node in chip]
        return find_state(self.machine, every) if every else None


def look(request: dict[str, Any], stdin: BinaryIO) -> None:
    """Report the chips and who has them."""
    send(note(**_seen(Chips(request["known"]))))


def release(request: dict[str, Any], stdin: BinaryIO) -> None:
    """End processes that have chips: TERM, after `grace_s` KILL; report what became of each.

    `processes` are pairs of a process id and the time of its start. One that no longer has a chip,
    or has got the id since, is left alone, and so is a lock file that somebody may need.
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
            outcomes[pid] = LEFT
        else:
            ending[pid] = ticks
    outcomes.update(_end(ending, request["grace_s"], request["settle_s"]))
    # What was seen of the machine is kept: look at it anew.
    after = Chips(request["known"])
    removed = _remove_lockfile(after)
    send(note(outcomes=sorted(outcomes.items()), lockfile_removed=removed, **_seen(after)))


def holder_line(holder: Holder) -> dict[str, Any]:
    """A holder as a note tells it."""
    return {
        "pid": holder.pid,
        "started": start_ticks(holder.pid),
        "user": holder.user,
        "command": holder.command,
        "device": holder.device,
        "seen_by": holder.seen_by,
        "is_this_notebook": holder.is_this_notebook,
        "may_end": _may_end(holder),
    }


def stale_lockfile(state: State, uid: int | None) -> bool:
    """Whether libtpu's lock file is another user's and nobody has it: libtpu stumbles over it."""
    busy = state.holders or state.lock_pids or state.uninspected
    return state.lockfile_uid not in (None, uid) and not busy


def _seen(chips: Chips) -> dict[str, Any]:
    state = chips.state()
    return {
        "chips": len(chips.nodes),
        "holders": [holder_line(holder) for holder in state.holders] if state else [],
        "uninspected": state.uninspected if state else 0,
        "stale_lockfile": bool(state and stale_lockfile(state, os.geteuid())),
    }


def _may_end(holder: Holder) -> bool:
    """Not our own parents; nor whom only the driver names: its ids are those of the host."""
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
    """Send TERM, then KILL, to all at once; what became of each."""
    outcomes: dict[int, str] = {}
    alive = dict(ending)
    for number, wait_s, outcome in (
        (signal.SIGTERM, grace_s, TOLD),
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
    outcomes.update(dict.fromkeys(alive, STAYS))
    return outcomes


def _remove_lockfile(chips: Chips) -> bool | None:
    """Remove a lock file that nobody has; None when there is none, False when we may not."""
    state = chips.state()
    if state is None or not stale_lockfile(state, os.geteuid()):
        return None
    try:
        os.unlink(LOCKFILE)
    except OSError:
        return False
    return True
