"""What a platform's probe gets to see, and what it answers."""

from dataclasses import dataclass

from tpuctl.runtime.chips import Chips, Gpus
from tpuctl.runtime.machine import Machine
from tpuctl.runtime.topology import Topology


@dataclass(frozen=True)
class Scene:
    """A machine together with the accelerators that were found in it."""

    machine: Machine
    chips: Chips
    gpus: Gpus
    topology: Topology


@dataclass(frozen=True)
class Platform:
    """A runtime, and what shows that it is this one."""

    runtime: str
    because: tuple[str, ...]
    remote: str | None = None
    sure: bool = True
