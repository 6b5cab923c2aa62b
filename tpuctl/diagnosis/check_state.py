"""Failures that the processes on this machine show: who has the TPU."""

from tpuctl.diagnosis.finding import Finding, View, found
from tpuctl.runtime.holders import Holder


def lock_held(view: View) -> Finding | None:
    """F01: another process holds libtpu's lock, and it can be seen with the device open."""
    visible = {holder.pid for holder in _others(view) if "open device node" in holder.seen_by}
    held = [h for h in _others(view) if h.pid in view.found.state.lock_pids and h.pid in visible]
    if not held or _foreign_lockfile(view):
        return None
    return _by(held, "libtpu's lock, by /proc/locks")


def foreign_lockfile(view: View) -> Finding | None:
    """F02: the lock file is another user's, so that libtpu cannot even open it."""
    state = view.found.state
    if not view.on_tpu or not _foreign_lockfile(view):
        return None
    held = ", ".join(str(pid) for pid in state.lock_pids)
    holder = f"held by pid {held}" if held else "nobody seems to hold it: it is left over"
    return found(f"/tmp/libtpu_lockfile belongs to uid {state.lockfile_uid}", holder)


def unseen_lock(view: View) -> Finding | None:
    """F03: somebody holds the lock whose open files cannot be seen."""
    visible = {h.pid for h in view.found.state.holders if "open device node" in h.seen_by}
    ours = {h.pid for h in view.found.state.holders if h.is_ours}
    unseen = [pid for pid in view.found.state.lock_pids if pid not in visible | ours]
    if not unseen or _foreign_lockfile(view):
        return None
    return found(f"/proc/locks: pid {', '.join(map(str, unseen))}", "no open device node of theirs")


def accel_owned(view: View) -> Finding | None:
    """F04: another process owns a chip of v2 to v4."""
    owners = [holder for holder in _nodes_of_others(view) if "/dev/accel" in holder.device]
    return _by(owners, "the chips") if owners else _sick(view)


def vfio_busy(view: View) -> Finding | None:
    """F05: another process has a chip of v5e or newer open."""
    holders = [holder for holder in _nodes_of_others(view) if "/dev/vfio" in holder.device]
    return _by(holders, "the chips") if holders else None


def own_notebook(view: View) -> Finding | None:
    """F07: the TPU is with this notebook's kernel, or another process above this one."""
    ours = [h for h in view.found.state.holders if h.is_ours and not _is_plain_self(view, h)]
    if not ours:
        return None
    name = "this notebook's kernel" if ours[0].is_this_notebook else "a parent of this process"
    evidence = f"pid {ours[0].pid} ({ours[0].command or 'unknown'}) is {name}"
    return found(evidence, f"{ours[0].device}, by {ours[0].seen_by}")


def busy_and_unseen(view: View) -> Finding | None:
    """F74: a TPU program answers, and nobody can be seen to have the TPU."""
    state = view.found.state
    if not state.metrics_port_open or state.holders or not state.uninspected:
        return None
    return found(
        "something listens on libtpu's metrics port 8431",
        f"{state.uninspected} processes could not be inspected",
    )


def _others(view: View) -> list[Holder]:
    return [holder for holder in view.found.state.holders if not holder.is_ours]


def _nodes_of_others(view: View) -> list[Holder]:
    """Holders by device node; one that also has the lock is refused earlier, as F01."""
    locked = view.found.state.lock_pids
    return [h for h in _others(view) if h.pid not in locked or _foreign_lockfile(view)]


def _is_plain_self(view: View, holder: Holder) -> bool:
    return holder.pid == view.machine.self_process.pid and not holder.is_this_notebook


def _foreign_lockfile(view: View) -> bool:
    mine, owner = view.machine.self_process.uid, view.found.state.lockfile_uid
    # Root opens any file, whoever owns it.
    return owner is not None and mine not in (None, 0, owner)


def _by(holders: list[Holder], what: str) -> Finding:
    lines = [
        f"pid {h.pid} ({h.command or 'cannot be seen from here'}"
        f"{', user ' + h.user if h.user else ''}): {h.device}, by {h.seen_by}"
        for h in holders
    ]
    evidence = (f"held: {what}", *lines)
    if any(holder.is_a_notebook for holder in holders):
        fix = "Another notebook's kernel has the TPU: shut that kernel down, then run this again."
        return Finding(evidence, fix=fix)
    pids = " ".join(str(pid) for pid in sorted({holder.pid for holder in holders}))
    return Finding(evidence, fix_command=f"kill {pids}")


def _sick(view: View) -> Finding | None:
    sick = view.found.state.sick
    if not sick:
        return None
    return Finding(sick, fix="The driver reports a fault: restart the VM, or make a new one.")
