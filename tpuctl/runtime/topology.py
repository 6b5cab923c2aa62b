"""Find the number of hosts and slices, and which of the hosts this one is."""

import math
import re
from dataclasses import dataclass

from tpuctl.hardware.types import generation_of_type
from tpuctl.runtime.chips import Chips, tpu_env, type_name
from tpuctl.runtime.machine import Machine, parse_count, variable

_HOST_NAME = re.compile(r"t1v-n-[0-9a-f]+-w-([0-9]{1,6})")


@dataclass(frozen=True)
class Topology:
    """The position of this host in its slice."""

    hosts: int = 1
    worker: int | None = None
    slices: int = 1
    because: tuple[str, ...] = ()


def find_topology(machine: Machine, chips: Chips) -> Topology:
    """Count the hosts by the list of workers; bounds and accelerator type are fallbacks."""
    hosts, because = _listed_hosts(machine) or _hosts_by_type(machine, chips) or (1, None)
    worker = _worker(machine)
    slices = "MEGASCALE_NUM_SLICES"
    return Topology(
        hosts=hosts,
        worker=worker if worker is None or worker < hosts else None,
        slices=parse_count(variable(machine, slices) or tpu_env(machine).get(slices)) or 1,
        because=(because,) if because else (),
    )


def worker_from_host_name(machine: Machine) -> int | None:
    """Read the worker number from a TPU VM's host name, `t1v-n-<hex>-w-<n>`."""
    name = (
        variable(machine, "HOSTNAME")
        or machine.read("/proc/sys/kernel/hostname")
        or machine.read("/etc/hostname")
        or ""
    )
    match = _HOST_NAME.match(name.strip())
    return int(match[1]) if match else None


def product(bounds: str) -> int | None:
    """Multiply bounds such as `2,2,1`; None if the text is not bounds."""
    numbers = [parse_count(part) for part in bounds.split(",")]
    known = [number for number in numbers if number]
    return math.prod(known) if known and len(known) == len(numbers) else None


def _listed_hosts(machine: Machine) -> tuple[int, str | None] | None:
    endpoints = machine.metadata("instance/attributes/worker-network-endpoints") or ""
    listed = [entry for entry in endpoints.split(",") if entry.strip()]
    if listed:
        return len(listed), f"worker-network-endpoints lists {len(listed)} host(s)"
    names = [name for name in variable(machine, "TPU_WORKER_HOSTNAMES").split(",") if name.strip()]
    if any(" " in name.strip() for name in names):
        names = []  # a sentence, such as a warning
    if len(names) > 1:
        return len(names), f"TPU_WORKER_HOSTNAMES lists {len(names)} hosts"
    bounds = tpu_env(machine).get("HOST_BOUNDS") or tpu_env(machine).get("TPU_HOST_BOUNDS") or ""
    if count := product(bounds):
        return count, f"tpu-env says HOST_BOUNDS {bounds}"
    if names:
        return 1, None
    bounds = variable(machine, "TPU_HOST_BOUNDS") or variable(machine, "HOST_BOUNDS")
    if count := product(bounds):
        return count, f"TPU_HOST_BOUNDS={bounds}"
    return None


def _hosts_by_type(machine: Machine, chips: Chips) -> tuple[int, str | None] | None:
    """Divide the chips of the accelerator type by those of this host."""
    name = type_name(machine)
    number = parse_count(name.rpartition("-")[2])
    if chips.kind and number and generation_of_type(name) == chips.kind.name:
        # The suffix counts TensorCores; v5e and v6e have one per chip.
        hosts, rest = divmod(number // chips.kind.tensorcores_per_chip, chips.count)
        if hosts > 1 and rest == 0:
            return hosts, f"{name} has {hosts} times the chips of this host"
    # The last resort is a lower bound: worker 3 has at least three others before it.
    worker = worker_from_host_name(machine)
    return (worker + 1, f"host name ends in w-{worker}") if worker else None


def _worker(machine: Machine) -> int | None:
    candidates = (
        machine.metadata("instance/attributes/agent-worker-number"),
        tpu_env(machine).get("WORKER_ID"),
        variable(machine, "TPU_WORKER_ID"),
        variable(machine, "JOB_COMPLETION_INDEX"),
    )
    numbers = (parse_count(text) for text in candidates)
    return next((n for n in numbers if n is not None), worker_from_host_name(machine))
