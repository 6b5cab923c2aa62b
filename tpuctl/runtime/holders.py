"""Find the processes that hold the TPU: by open device nodes, libtpu's lock and the driver.

This module is sent to workers, so it must run on Python 3.8 with nothing else installed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from tpuctl.runtime.machine import LOCKFILE, Process, parse_count
from tpuctl.runtime.redact import safe_command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.runtime.machine import HostView

_NODE = re.compile(r"/dev/(?:accel|vfio/)\d+")
_KERNEL = re.compile(r"ipykernel|colab_kernel_launcher|ipykernel_launcher")
_LONGEST_CHAIN = 64
BY_NODE, BY_LOCK = "open device node", "lock in /proc/locks"
BY_DRIVER = "device_owner of the driver"


@dataclass(frozen=True)
class Holder:
    """A process that holds the TPU, and how that is known."""

    pid: int
    user: str | None
    command: str | None
    device: str
    is_this_notebook: bool
    is_ours: bool = field(metadata={"internal": True})
    is_a_notebook: bool = field(metadata={"internal": True})
    seen_by: str


@dataclass(frozen=True)
class State:
    """Whether the TPU is free, and how much of the machine could be inspected."""

    holders: tuple[Holder, ...] = ()
    uninspected: int = 0
    lock_pids: tuple[int, ...] = ()
    lockfile_uid: int | None = None
    metrics_port_open: bool | None = None
    sick: tuple[str, ...] = ()


def find_state(machine: HostView, nodes: Sequence[str]) -> State:
    """Find the processes that hold this machine's TPU.

    `nodes` are the device nodes of its chips; if empty, every path that looks like one counts.
    """
    scan = machine.scan_open_files(
        lambda path: path in nodes if nodes else _NODE.fullmatch(path) is not None
    )
    ours = _ancestors(machine)
    found = {pid: (", ".join(paths), BY_NODE) for pid, paths in scan.open_files.items()}
    lock_pids = _lock_pids(machine)
    for pid in lock_pids:
        found.setdefault(pid, (LOCKFILE, BY_LOCK))
    for pid, devices in _owners(machine).items():
        found.setdefault(pid, (", ".join(devices), BY_DRIVER))
    lockfile = machine.lockfile
    return State(
        holders=tuple(_holder(machine, pid, *found[pid], ours) for pid in sorted(found)),
        uninspected=len(scan.refused),
        lock_pids=lock_pids,
        lockfile_uid=lockfile.uid if lockfile else None,
        metrics_port_open=machine.is_listening(8431),
        sick=_sick(machine),
    )


def _holder(
    machine: HostView, pid: int, device: str, seen_by: str, ours: dict[int, Process]
) -> Holder:
    # The driver reports pids of the host; inside a container they mean another process or none.
    process = machine.process(pid) or Process(pid)
    words = process.cmdline or process.comm or ""
    is_kernel = bool(_KERNEL.search(words))
    return Holder(
        pid=pid,
        user=_user(machine, process.uid),
        command=safe_command(words) if words else None,
        device=device,
        is_this_notebook=pid in ours and is_kernel,
        is_ours=pid in ours,
        is_a_notebook=is_kernel,
        seen_by=seen_by,
    )


def _ancestors(machine: HostView) -> dict[int, Process]:
    """Return this process and its ancestors, as far up as they are visible."""
    chain: dict[int, Process] = {}
    process: Process | None = machine.self_process
    while process and process.pid > 1 and process.pid not in chain and len(chain) < _LONGEST_CHAIN:
        chain[process.pid] = process
        if process.ppid is None:
            break
        process = machine.process(process.ppid) or Process(process.ppid)
    return chain


def _lock_pids(machine: HostView) -> tuple[int, ...]:
    lockfile = machine.lockfile
    if lockfile is None or lockfile.inode is None:
        return ()
    pids = []
    # A line: `1: POSIX  ADVISORY  WRITE 4242 fe:00:77 0 EOF`, pid and device:inode in the middle.
    for line in machine.locks:
        words = line.split()
        # `1: -> POSIX ...` is a process that waits for the lock and does not hold it.
        pid = parse_count(words[4]) if len(words) > 5 and words[1] != "->" else None
        if pid is not None and words[5].rpartition(":")[2] == str(lockfile.inode):
            pids.append(pid)
    return tuple(dict.fromkeys(pids))


def _owners(machine: HostView) -> dict[int, list[str]]:
    owners: dict[int, list[str]] = {}
    for name in sorted(machine.names("/sys/class/accel")):
        folder = f"/sys/class/accel/{name}"
        owner = parse_count(machine.read(f"{folder}/device_owner"))
        owned = (machine.read(f"{folder}/is_device_owned") or "").strip()
        if owned not in ("", "0") and owner:
            owners.setdefault(owner, []).append(f"/dev/{name}")
    return owners


def _sick(machine: HostView) -> tuple[str, ...]:
    found = []
    for name in sorted(machine.names("/sys/class/accel")):
        status = (machine.read(f"/sys/class/accel/{name}/status") or "").strip()
        if status and status != "ALIVE":
            found.append(f"/dev/{name} is {status[:40]}")
    return tuple(found)


def _user(machine: HostView, uid: int | None) -> str | None:
    if uid is None:
        return None
    for line in (machine.read("/etc/passwd") or "").splitlines():
        fields = line.split(":")
        if len(fields) > 2 and fields[2] == str(uid):
            return fields[0]
    return "root" if uid == 0 else f"uid {uid}"
