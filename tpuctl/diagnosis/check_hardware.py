"""Checks of the chips, their drivers and device nodes, and of the processes that hold them."""

from tpuctl.diagnosis.report import Finding, MachineView, found
from tpuctl.runtime.holders import BY_NODE, Holder
from tpuctl.runtime.machine import LOCKFILE, in_container, parse_count
from tpuctl.runtime.versions import minor, tables

_IMAGES = {
    "v5e": "v2-alpha-tpuv5-lite",
    "v5p": "v2-alpha-tpuv5",
    "v6e": "v2-alpha-tpuv6e",
}
_TPU_RUNTIMES = ("kaggle-tpu-vm", "colab-tpu-vm", "gke-tpu-pod", "cloud-tpu-vm")


def no_chip_to_open(view: MachineView) -> Finding | None:
    """F08: chips without nodes outside a container, or a TPU runtime without chips."""
    chips = view.detected.chips
    if not chips.count:
        if view.detected.runtime in _TPU_RUNTIMES:
            return found(*view.detected.platform.because, *chips.because)
        return None
    if chips.chips_with_node or _hidden_by_container(view):
        return None
    return Finding(chips.because, fix=_right_image(view))


def v6e_without_driver(view: MachineView) -> Finding | None:
    """F09: v6e chips without a driver, or TPU_VISIBLE_CHIPS beyond the last chip."""
    chips = view.detected.chips
    if chips.generation == "v6e" and not chips.driver_bound:
        return Finding(chips.because, fix=_right_image(view))
    numbers = map(parse_count, view.value("TPU_VISIBLE_CHIPS").split(","))
    beyond = [number for number in numbers if number is not None and number >= chips.count]
    if chips.count and beyond:
        return Finding(
            (view.shown("TPU_VISIBLE_CHIPS"), f"{chips.count} chip(s), counted from 0"),
            fix="Unset TPU_VISIBLE_CHIPS.",
            fix_command="unset TPU_VISIBLE_CHIPS",
        )
    return None


def v5e_without_nodes(view: MachineView) -> Finding | None:
    """F10: v5e chips without device nodes, outside a container."""
    chips = view.detected.chips
    if chips.generation != "v5e" or chips.chips_with_node or _hidden_by_container(view):
        return None
    return Finding(chips.because, fix=_right_image(view))


def vbar_out_of_reach(view: MachineView) -> Finding | None:
    """F11: a container on v6e or newer whose VBAR service is unknown or does not answer."""
    container = in_container(view.machine)
    if not view.detected.chips.needs("vbar") or not container:
        return None
    if not view.detected.chips.chips_with_node:
        return None
    address = view.value("VBAR_CONTROL_SERVICE_URL")
    if address.startswith("unix:"):
        return None  # a socket file, which cannot be tried like a port
    answers = view.machine.is_reachable(address or "[::]:8353")
    if answers or (address and answers is None):
        return None
    where = view.shown("VBAR_CONTROL_SERVICE_URL") if address else "VBAR_CONTROL_SERVICE_URL unset"
    return found(container, where, f"{address or '[::]:8353'} does not accept a connection")


def chips_kept_from_container(view: MachineView) -> Finding | None:
    """F12: the host's chips are on the PCI bus, but this container has no nodes for them."""
    chips = view.detected.chips
    if not chips.count or not _hidden_by_container(view):
        return None
    control = "/dev/vfio/vfio"
    is_vfio = any(node.startswith("/dev/vfio/") for node in chips.nodes)
    if is_vfio and not view.is_hosted and not view.machine.is_device(control):
        evidence = f"{control} is not in this container, and libtpu opens the chips through it"
        return found(evidence, in_container(view.machine) or "")
    missing = chips.count - chips.chips_with_node
    # A pod on a shared node is meant to get only some of the node's chips.
    if missing == 0 or (chips.chips_with_node and view.detected.runtime == "gke-tpu-pod"):
        return None
    evidence = f"{missing} of {chips.count} chips have no device node here"
    return found(*chips.because, evidence, in_container(view.machine) or "")


def hugepages_off(view: MachineView) -> Finding | None:
    """F13: transparent hugepages are not `always`, which JAX requires from v5e on."""
    path = "/sys/kernel/mm/transparent_hugepage/enabled"
    text = (view.machine.read(path) or "").strip()
    if not view.detected.chips.needs("hugepages") or not text or text.startswith("[always]"):
        return None
    return found(f"{path}: {text[:60]}", severity="note" if view.is_hosted else None)


def mixed_chips(view: MachineView) -> Finding | None:
    """F14: more than one kind of TPU on the PCI bus."""
    kinds = view.detected.chips.kinds
    return found(f"PCI devices {', '.join(kinds)}") if len(kinds) > 1 else None


def p100_without_kernels(view: MachineView) -> Finding | None:
    """F72: a P100 with a PyTorch whose cuDNN no longer supports Pascal."""
    torch = view.version("torch")
    pascal = [name for name in view.detected.gpus.names if "P100" in name]
    if not pascal or not torch or "+cpu" in torch:
        return None
    if minor(torch) < minor(tables()["torch_without_pascal"]):
        return None
    return found(f"GPU: {pascal[0]}", f"torch {torch}")


def lock_held(view: MachineView) -> Finding | None:
    """F01: another process holds libtpu's lock and visibly has the device open."""
    visible = {holder.pid for holder in _others(view) if holder.seen_by == BY_NODE}
    held = [h for h in _others(view) if h.pid in view.detected.state.lock_pids and h.pid in visible]
    if not held or _foreign_lockfile(view):
        return None
    return _held_by(held, "libtpu's lock, by /proc/locks")


def foreign_lockfile(view: MachineView) -> Finding | None:
    """F02: the lock file belongs to another user, so libtpu cannot open it."""
    state = view.detected.state
    if not view.on_tpu or not _foreign_lockfile(view):
        return None
    held = ", ".join(str(pid) for pid in state.lock_pids)
    holder = f"held by pid {held}" if held else "no process seems to hold it, so it is left over"
    return found(f"{LOCKFILE} belongs to uid {state.lockfile_uid}", holder)


def unseen_lock(view: MachineView) -> Finding | None:
    """F03: the lock is held by a process whose open files are not visible."""
    visible = {h.pid for h in view.detected.state.holders if h.seen_by == BY_NODE}
    ours = {h.pid for h in view.detected.state.holders if h.is_ours}
    unseen = [pid for pid in view.detected.state.lock_pids if pid not in visible | ours]
    if not unseen or _foreign_lockfile(view):
        return None
    return found(
        f"/proc/locks: pid {', '.join(map(str, unseen))}",
        "no device node of it is visible",
    )


def accel_owned(view: MachineView) -> Finding | None:
    """F04: another process owns a chip of v2 to v4."""
    owners = [holder for holder in _nodes_of_others(view) if "/dev/accel" in holder.device]
    if owners:
        return _held_by(owners, "the chips")
    sick = view.detected.state.sick
    fix = "The driver reports a fault: restart or recreate the VM."
    return Finding(sick, fix=fix) if sick else None


def vfio_busy(view: MachineView) -> Finding | None:
    """F05: another process has a chip of v5e or newer open."""
    holders = [holder for holder in _nodes_of_others(view) if "/dev/vfio" in holder.device]
    return _held_by(holders, "the chips") if holders else None


def own_notebook(view: MachineView) -> Finding | None:
    """F07: this notebook's kernel, or another parent of this process, holds the TPU."""
    # A script that uses the TPU itself is not a conflict, but a kernel that runs this command is.
    me = view.machine.self_process.pid
    holders = view.detected.state.holders
    ours = [h for h in holders if h.is_ours and (h.pid != me or h.is_this_notebook)]
    if not ours:
        return None
    name = "this notebook's kernel" if ours[0].is_this_notebook else "a parent of this process"
    evidence = f"pid {ours[0].pid} ({ours[0].command or 'unknown'}) is {name}"
    return found(evidence, f"{ours[0].device}, by {ours[0].seen_by}")


def busy_and_unseen(view: MachineView) -> Finding | None:
    """F74: a TPU program answers, but no process is visible that holds the TPU."""
    state = view.detected.state
    if not state.metrics_port_open or state.holders or not state.uninspected:
        return None
    return found(
        "something listens on libtpu's metrics port 8431",
        f"{state.uninspected} processes could not be inspected",
    )


def _others(view: MachineView) -> list[Holder]:
    return [holder for holder in view.detected.state.holders if not holder.is_ours]


def _nodes_of_others(view: MachineView) -> list[Holder]:
    """Return other processes with a device node open; F01 reports those with the lock."""
    locked = view.detected.state.lock_pids
    return [h for h in _others(view) if h.pid not in locked or _foreign_lockfile(view)]


def _foreign_lockfile(view: MachineView) -> bool:
    mine, owner = view.machine.self_process.uid, view.detected.state.lockfile_uid
    # Root can open a file of any owner.
    return owner is not None and mine not in (None, 0, owner)


def _held_by(holders: list[Holder], what: str) -> Finding:
    lines = [
        f"pid {h.pid} ({h.command or 'not visible from here'}"
        f"{', user ' + h.user if h.user else ''}): {h.device}, by {h.seen_by}"
        for h in holders
    ]
    evidence = (f"held: {what}", *lines)
    if any(holder.is_a_notebook for holder in holders):
        fix = "Another notebook's kernel holds the TPU: shut it down, then run this again."
        return Finding(evidence, fix=fix)
    pids = " ".join(str(pid) for pid in sorted({holder.pid for holder in holders}))
    return Finding(evidence, fix_command=f"kill {pids}")


def _hidden_by_container(view: MachineView) -> bool:
    # Without a driver on the host, there are no nodes that could be missing in a container.
    return bool(in_container(view.machine)) and view.detected.chips.driver_bound


def _right_image(view: MachineView) -> str | None:
    image = _IMAGES.get(view.detected.chips.generation or "")
    if image is None:
        return None
    return f"Wrong runtime version: recreate the VM with {image}."
