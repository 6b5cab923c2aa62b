"""Find the TPU chips and GPUs of a machine, without opening them."""

import re
from collections import Counter
from dataclasses import dataclass

from tpuctl.hardware.types import Generation, generation_of_type, generations, load_data
from tpuctl.runtime.local import device_nodes
from tpuctl.runtime.machine import Machine, PciDevice, variable

TPU_ENV_FILE = "/etc/tpu/tpu-env"
_NVIDIA = re.compile(r"nvidia[0-9]+")


@dataclass(frozen=True)
class Chips:
    """The TPU chips of a machine, whether or not this process can open them."""

    generation: str | None = None
    kind: Generation | None = None
    count: int = 0
    cores: int = 0
    devices: int = 0
    kinds: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    chips_with_node: int = 0
    driver_bound: bool = False
    because: tuple[str, ...] = ()

    @property
    def usable(self) -> bool | None:
        """Whether this process can open chips; None without chips."""
        return self.chips_with_node > 0 if self.count else None

    def needs(self, what: str) -> bool:
        """Whether this generation needs `vbar`, `hugepages` or `pjrt`."""
        return self.kind is not None and what in self.kind.needs


@dataclass(frozen=True)
class Gpus:
    """The GPUs of a machine, with their names if known."""

    count: int = 0
    names: tuple[str, ...] = ()
    because: tuple[str, ...] = ()


def find_chips(machine: Machine) -> Chips:
    """Count the TPU chips by PCI slot, because a TPU7x has two functions per chip."""
    tpus = [device for device in machine.pci if _candidates(device)]
    if not tpus:
        known = load_data("generations")["not_a_tpu"]
        others = {known.get(device.device) for device in machine.pci if device.vendor == "0x1ae0"}
        names = ", ".join(sorted(filter(None, others)))
        found = f"; other Google devices: {names}" if names else ""
        return Chips(because=(f"no TPU on the PCI bus{found}",))
    slots: dict[str, list[PciDevice]] = {}
    for device in tpus:
        slots.setdefault(device.slot, []).append(device)
    kind, doubt = _kind(machine, [functions[0] for functions in slots.values()])
    nodes = device_nodes(machine, tpus)
    count = len(slots)
    bound = any(device.driver for device in tpus)
    first = tpus[0]
    shape = f"{count} × PCI {first.vendor}:{first.device}"
    if len(tpus) > count:
        shape += f" ({len(tpus)} functions)"
    return Chips(
        generation=None if doubt else kind.name,
        kind=kind,
        count=count,
        cores=count * kind.tensorcores_per_chip,
        devices=count * kind.devices_per_chip,
        kinds=tuple(sorted({d.device for d in tpus})),
        nodes=nodes,
        chips_with_node=_chips_with_node(machine, list(slots.values()), nodes),
        driver_bound=bound,
        because=(
            f"{shape}: TPU {doubt or kind.name}",
            f"driver {first.driver}" if bound else "no driver is bound to the chips",
            f"device nodes: {', '.join(nodes)}" if nodes else "the chips have no device nodes",
        ),
    )


def find_gpus(machine: Machine) -> Gpus:
    """Count the GPUs by their device nodes; variables such as CUDA_VERSION prove nothing."""
    nodes = sorted(
        name
        for name in machine.names("/dev")
        if _NVIDIA.fullmatch(name) and machine.is_device(f"/dev/{name}")
    )
    names = _gpu_names(machine)
    if nodes:
        return Gpus(len(nodes), names, (f"/dev/{', /dev/'.join(nodes)}", *names))
    # WSL has no /dev/nvidia0; its GPUs are behind /dev/dxg.
    for path in ("/dev/nvidiactl", "/dev/dxg"):
        if machine.is_device(path):
            return Gpus(max(1, len(names)), names, (path, *names))
    amd = _amd_gpus(machine)
    return Gpus(amd, (), (f"{amd} AMD GPU(s) below /sys/class/kfd",)) if amd else Gpus()


def tpu_env(machine: Machine) -> dict[str, str]:
    """Read what Google tells a TPU host about its slice, lines of `KEY: 'value'`.

    The file comes first, because it needs no network.
    """
    text = machine.read(TPU_ENV_FILE) or machine.metadata("instance/attributes/tpu-env") or ""
    pairs = (line.partition(":") for line in text.splitlines())
    return {key.strip(): value.strip().strip("'\"") for key, colon, value in pairs if colon}


def type_name(machine: Machine) -> str:
    """Return the accelerator type that the environment or the metadata names; else empty."""
    return (
        tpu_env(machine).get("ACCELERATOR_TYPE")
        or tpu_env(machine).get("TPU_ACCELERATOR_TYPE")
        or variable(machine, "TPU_ACCELERATOR_TYPE")
        or machine.metadata("instance/attributes/accelerator-type")
        or ""
    )


def _candidates(device: PciDevice) -> list[Generation]:
    if device.vendor != load_data("generations")["pci_vendor"]:
        return []
    return [item for item in generations() if item.pci_device == device.device]


def _kind(machine: Machine, chips: list[PciDevice]) -> tuple[Generation, str | None]:
    """Return the generation of most chips, and `v2 or v3` where those cannot be told apart."""
    majority = Counter(chip.device for chip in chips).most_common(1)[0][0]
    chip = next(chip for chip in chips if chip.device == majority)
    candidates = _candidates(chip)
    # v2 and v3 share a PCI device id; only the subsystem id, which containers may hide, the
    # driver's name and the accelerator type tell them apart.
    for item in candidates:
        if len(candidates) == 1 or chip.subsystem_device == item.pci_subsystem:
            return item, None
    for item in candidates:
        if chip.driver == item.driver:
            return item, None
    named = generation_of_type(type_name(machine))
    for item in candidates:
        if item.name == named:
            return item, None
    return candidates[-1], " or ".join(item.name for item in candidates)


def _chips_with_node(machine: Machine, slots: list[list[PciDevice]], nodes: tuple[str, ...]) -> int:
    # Up to v4 a chip is /dev/accelN; from v5e on it is a vfio group, /dev/vfio/N.
    accel = sum(path.startswith("/dev/accel") for path in nodes)
    if accel:
        return min(accel, len(slots))
    known = [{f.iommu_group for f in functions if f.iommu_group is not None} for functions in slots]
    if all(known):
        return sum(any(f"/dev/vfio/{group}" in nodes for group in groups) for groups in known)
    if not any(function.driver for functions in slots for function in functions):
        return 0
    return min(len(nodes), len(slots))


def _gpu_names(machine: Machine) -> tuple[str, ...]:
    folder = "/proc/driver/nvidia/gpus"
    names = []
    for gpu in sorted(machine.names(folder)):
        for line in (machine.read(f"{folder}/{gpu}/information") or "").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "Model" and value.strip():
                names.append(value.strip())
    return tuple(names)


def _amd_gpus(machine: Machine) -> int:
    folder = "/sys/class/kfd/kfd/topology/nodes"
    texts = (machine.read(f"{folder}/{node}/properties") or "" for node in machine.names(folder))
    return sum(bool(re.search(r"^simd_count [1-9]", text, re.MULTILINE)) for text in texts)
