"""The device nodes of TPU chips: which they are, and which chip each belongs to.

Travels to workers, so it needs nothing but Python 3.8.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.runtime.machine import PciDevice, Seen

_ACCEL = re.compile(r"accel[0-9]+")
_VFIO = re.compile(r"[0-9]{1,9}")
_NUMBER = re.compile(r"[0-9]+$")


def device_nodes(machine: Seen, tpus: Sequence[PciDevice]) -> tuple[str, ...]:
    """The device nodes of chips: never the control node, a folder or another device's group."""
    accel = [f"/dev/{name}" for name in machine.names("/dev") if _ACCEL.fullmatch(name)]
    groups = {device.iommu_group for device in tpus}
    vfio = [
        f"/dev/vfio/{name}"
        for name in machine.names("/dev/vfio")
        if _VFIO.fullmatch(name) and (None in groups or int(name) in groups)
    ]
    return tuple(sorted(path for path in accel + vfio if machine.is_device(path)))


def nodes_of_chips(machine: Seen, tpus: Sequence[PciDevice]) -> list[tuple[str, ...]]:
    """The device nodes of each chip that has any, in the order in which libtpu counts chips.

    `tpus` are the functions of the chips on the PCI bus; a TPU7x has two, with a node each.
    """
    nodes = sorted(device_nodes(machine, tpus), key=number_of)
    groups: dict[str, set[int | None]] = {}
    for device in tpus:
        groups.setdefault(device.slot, set()).add(device.iommu_group)
    if any(node.startswith("/dev/accel") for node in nodes):
        return [(node,) for node in nodes if node.startswith("/dev/accel")]
    if any(None in known for known in groups.values()):
        each = max(1, len(nodes) // max(1, len(groups)))
        return [tuple(nodes[at : at + each]) for at in range(0, len(nodes), each)]
    chips = (tuple(n for n in nodes if number_of(n) in known) for known in groups.values())
    return sorted(filter(None, chips), key=lambda chip: number_of(chip[0]))


def number_of(node: str) -> int:
    """The number at the end of a device node's name."""
    match = _NUMBER.search(node)
    return int(match[0]) if match else 0
