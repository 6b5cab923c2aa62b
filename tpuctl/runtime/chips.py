"""Find the TPU chips and GPUs of a machine, without opening them."""

import re
from collections import Counter
from dataclasses import dataclass

from tpuctl.hardware.types import Generation, generation_of_type, generations, load_data
from tpuctl.runtime.local import device_nodes
from tpuctl.runtime.machine import Machine, PciDevice, parse_count, variable

TPU_ENV_FILE = "/etc/tpu/tpu-env"
_NVIDIA = re.compile(r"nvidia[0-9]+")
# The variables that hide GPUs of NVIDIA, and of AMD.
_HIDE = (
    ("CUDA_VISIBLE_DEVICES",),
    ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
)
# GPUs of other makers count only with a plugin that lets a framework use them.
_APPLE = ("jax-metal", "tensorflow-metal")
_INTEL = ("jax-oneapi-plugin", "intel-extension-for-openxla", "intel-extension-for-tensorflow")


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
    """The GPUs that this process can use, with their names if known; `hidden` ones it cannot."""

    count: int = 0
    names: tuple[str, ...] = ()
    because: tuple[str, ...] = ()
    hidden: int = 0

    @property
    def present(self) -> bool:
        """Whether the machine has GPUs, usable or not."""
        return self.count + self.hidden > 0


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
        found = Gpus(len(nodes), names, (f"/dev/{', /dev/'.join(nodes)}", *names))
        return _shown(machine, found, _HIDE[0])
    # WSL has no /dev/nvidia0; its GPUs are behind /dev/dxg.
    for path in ("/dev/nvidiactl", "/dev/dxg"):
        if machine.is_device(path):
            found = Gpus(max(1, len(names)), names, (path, *names))
            return _shown(machine, found, _HIDE[0], sure=False)
    if amd := _amd_gpus(machine):
        found = Gpus(amd, (), (f"{amd} AMD GPU(s) below /sys/class/kfd",))
        return _shown(machine, found, _HIDE[1])
    return _gpus_of_plugins(machine)


def _shown(machine: Machine, found: Gpus, hide: tuple[str, ...], *, sure: bool = True) -> Gpus:
    """Leave out the GPUs that the user hides; set to nothing, the variable hides all."""
    name = next((name for name in hide if name in machine.env), None)
    if name is None:
        return found
    count = min(found.count, _visible(machine.env[name], found.count if sure else None))
    if count == found.count:
        return found
    why = f"{name}={machine.env[name]!r} shows {count} of {found.count} GPU(s)"
    names = found.names[:count] if len(set(found.names)) == 1 else ()
    return Gpus(count, names, (*found.because, why), hidden=found.count - count)


def _visible(text: str, limit: int | None) -> int:
    """Count as CUDA does: an unknown entry ends the list, and a process gets one MIG instance."""
    count = 0
    for entry in map(str.strip, text.split(",")):
        if entry.startswith("MIG-"):
            return max(1, count)
        number = parse_count(entry)
        known = number is not None and (limit is None or number < limit)
        if not known and not entry.startswith("GPU-"):
            break
        count += 1
    return count


def _gpus_of_plugins(machine: Machine) -> Gpus:
    apple, intel = (
        next((name for name in plugins if name in machine.packages), None)
        for plugins in (_APPLE, _INTEL)
    )
    if apple and machine.is_dir("/System/Library"):
        return Gpus(1, (), (f"the GPU of this Mac, by {apple}",))
    paths = [f"/dev/dri/{name}" for name in machine.names("/dev/dri") if name.startswith("renderD")]
    nodes = [path for path in paths if machine.is_device(path)] if intel else []
    if nodes:
        return Gpus(len(nodes), (), (f"{', '.join(nodes)}, by {intel}",))
    return Gpus()


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
