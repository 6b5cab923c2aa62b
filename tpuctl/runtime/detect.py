"""Four separate answers about a machine: platform, hardware, frameworks and state."""

from dataclasses import dataclass

from tpuctl.runtime.chips import Chips, Gpus, find_chips, find_gpus
from tpuctl.runtime.frameworks import Frameworks, find_frameworks
from tpuctl.runtime.holders import State, find_state
from tpuctl.runtime.machine import Machine, in_container, variable
from tpuctl.runtime.platforms import Platform, Surroundings, find_platform
from tpuctl.runtime.topology import Topology, find_topology

# Kaggle rents out one P100 or two T4, so that the count names GPUs that do not name themselves.
_KAGGLE_GPUS = {1: ("Tesla P100-PCIE-16GB",), 2: ("Tesla T4", "Tesla T4")}


@dataclass(frozen=True)
class Detection:
    """What this machine is: each part with its own evidence."""

    platform: Platform
    chips: Chips
    gpus: Gpus
    topology: Topology
    frameworks: Frameworks
    state: State
    container: str | None

    @property
    def runtime(self) -> str:
        """The runtime's name, as in the environments' README."""
        return self.platform.runtime

    @property
    def accelerator(self) -> str:
        """What computes here: `tpu`, `tpu-remote`, `gpu` or `none`."""
        if self.chips.count:
            return "tpu"
        if self.platform.remote:
            return "tpu-remote"
        return "gpu" if self.gpus.count else "none"

    @property
    def generation(self) -> str | None:
        """The TPU's generation, here or at the other end."""
        if self.chips.count:
            return self.chips.generation
        return "v2" if self.remote_cores else None

    @property
    def remote_cores(self) -> int | None:
        """The TensorCores at the other end; None where nobody says."""
        # Colab's TPU nodes were v2-8 to the end (googlecolab/colabtools#4481).
        return 8 if self.runtime == "colab-legacy-tpu-node" else None

    @property
    def remote_chips(self) -> int | None:
        """The chips at the other end: two TensorCores each."""
        return self.remote_cores // 2 if self.remote_cores else None


def detect(machine: Machine) -> Detection:
    """Find out where we are, without importing a framework or opening a device."""
    chips, gpus = find_chips(machine), find_gpus(machine)
    topology = find_topology(machine, chips) if chips.count else _alone(machine, chips)
    platform = find_platform(Surroundings(machine, chips, gpus, topology))
    gpus = _named(platform, gpus)
    return Detection(
        platform=platform,
        chips=chips,
        gpus=gpus,
        topology=topology,
        frameworks=find_frameworks(machine, platform.runtime, has_chips=chips.count > 0),
        state=find_state(machine, chips.nodes) if chips.count else State(),
        container=in_container(machine),
    )


def _alone(machine: Machine, chips: Chips) -> Topology:
    """A pod that was promised a slice still knows its peers without a chip of its own."""
    promised = variable(machine, "TPU_TOPOLOGY") or machine.metadata(
        "instance/attributes/agent-worker-number"
    )
    return find_topology(machine, chips) if promised else Topology()


def _named(platform: Platform, gpus: Gpus) -> Gpus:
    if platform.runtime != "kaggle-gpu" or gpus.names or gpus.count not in _KAGGLE_GPUS:
        return gpus
    names = _KAGGLE_GPUS[gpus.count]
    return Gpus(gpus.count, names, (*gpus.because, f"on Kaggle that is {' and '.join(names)}"))
