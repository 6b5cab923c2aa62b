"""Detect where we run: platform, hardware, frameworks, and who holds the TPU."""

from dataclasses import dataclass, replace

from tpuctl.runtime.chips import Chips, Gpus, find_chips, find_gpus
from tpuctl.runtime.frameworks import Frameworks, find_frameworks
from tpuctl.runtime.holders import State, find_state
from tpuctl.runtime.machine import Machine, in_container, variable
from tpuctl.runtime.platforms import Platform, ProbeInput, find_platform
from tpuctl.runtime.topology import Topology, find_cluster, find_topology

# Kaggle offers one P100 or two T4, so the count identifies GPUs whose names are not visible.
_KAGGLE_GPUS = {1: ("Tesla P100-PCIE-16GB",), 2: ("Tesla T4", "Tesla T4")}


@dataclass(frozen=True)
class Detection:
    """What a machine is; each part carries its own evidence."""

    platform: Platform
    chips: Chips
    gpus: Gpus
    topology: Topology
    frameworks: Frameworks
    state: State
    container: str | None

    @property
    def runtime(self) -> str:
        """The name of the runtime."""
        return self.platform.runtime

    @property
    def accelerator(self) -> str:
        """The accelerator: `tpu`, `tpu-remote`, `gpu` or `none`."""
        if self.chips.count:
            return "tpu"
        if self.platform.remote:
            return "tpu-remote"
        return "gpu" if self.gpus.count else "none"

    @property
    def generation(self) -> str | None:
        """The TPU's generation, local or remote."""
        if self.chips.count:
            return self.chips.generation
        return "v2" if self.remote_cores else None

    @property
    def remote_cores(self) -> int | None:
        """The TensorCores of a remote TPU; None if unknown."""
        # Colab's TPU nodes were always v2-8 (googlecolab/colabtools#4481).
        return 8 if self.runtime == "colab-legacy-tpu-node" else None

    @property
    def remote_chips(self) -> int | None:
        """The chips of a remote TPU, with two TensorCores each."""
        return self.remote_cores // 2 if self.remote_cores else None


def detect(machine: Machine) -> Detection:
    """Detect where we run, without importing a framework or opening a device."""
    chips, gpus = find_chips(machine), find_gpus(machine)
    # A GKE pod or a worker that lost its chips still knows its peers.
    belongs_to_slice = (
        chips.count
        or variable(machine, "TPU_TOPOLOGY")
        or machine.metadata("instance/attributes/agent-worker-number")
    )
    topology = find_topology(machine, chips) if belongs_to_slice else find_cluster(machine)
    platform = find_platform(ProbeInput(machine, chips, gpus, topology))
    known = _KAGGLE_GPUS.get(gpus.count + gpus.hidden, ())
    if platform.runtime == "kaggle-gpu" and not gpus.names and known:
        because = (*gpus.because, f"on Kaggle: {' and '.join(known)}")
        gpus = replace(gpus, names=known[: gpus.count], because=because)
    return Detection(
        platform=platform,
        chips=chips,
        gpus=gpus,
        topology=topology,
        frameworks=find_frameworks(machine, platform.runtime, has_chips=chips.count > 0),
        state=find_state(machine, chips.nodes) if chips.count else State(),
        container=in_container(machine),
    )
