"""Find the number of hosts and slices, and which of the hosts this one is."""

import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from tpuctl.hardware.types import generation_of_type
from tpuctl.runtime.chips import Chips, tpu_env, type_name
from tpuctl.runtime.machine import Machine, parse_count, variable

_HOST_NAME = re.compile(r"t1v-n-[0-9a-f]+-w-([0-9]{1,6})")
# The jobs that train; parameter servers and evaluators do not. In Vertex AI's CLUSTER_SPEC jobs
# are pools, of which the third and fourth are for those.
_TRAINING_JOBS = {
    "TF_CONFIG": ("chief", "master", "worker"),
    "CLUSTER_SPEC": ("workerpool0", "workerpool1"),
}
_LISTS = (
    "TORCH_TPU_SLICEBUILDER_ADDRESSES", "TPU_PROCESS_ADDRESSES_PATH", "TPU_PROCESS_ADDRESSES",
    "TPU_WORKER_HOSTNAMES",
)  # fmt: skip
# How many nodes there are and which this is: by Slurm's srun, torchrun, Kubeflow for torchrun,
# SkyPilot, and scripts.
_NODE_COUNTS = (
    ("SLURM_STEP_NUM_NODES", "SLURM_NODEID"), ("GROUP_WORLD_SIZE", "GROUP_RANK"),
    ("PET_NNODES", "PET_NODE_RANK"),
    ("SKYPILOT_NUM_NODES", "SKYPILOT_NODE_RANK"), ("NNODES", "NODE_RANK"),
    ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID"),
)  # fmt: skip


@dataclass(frozen=True)
class Topology:
    """The position of this process among all that train together.

    `hosts` is what `jax.process_count()` or the cluster would say: all slices together.
    `slice_hosts` counts the hosts of this slice, also those that this process does not use.
    """

    hosts: int = 1
    worker: int | None = None
    slices: int = 1
    slice_hosts: int = 1
    because: tuple[str, ...] = ()


def find_topology(machine: Machine, chips: Chips) -> Topology:
    """Count the hosts as JAX does: what a launcher or the environment lists, then the metadata."""
    known = _hosts_by_metadata(machine) or _hosts_by_type(machine, chips) or (1, None)
    hosts, because = _hosts_by_environment(machine) or known
    if hosts == known[0] == 1:
        because = known[1]
    worker, slices = _worker(machine), _number_of_slices(machine, "NUM_SLICES") or 1
    if slices > 1:
        because = f"{because or 'one host per slice'}; MEGASCALE_NUM_SLICES={slices}"
        first = (_number_of_slices(machine, "SLICE_ID") or 0) * hosts
        worker = first + worker if worker is not None and worker < hosts else None
    place = Topology(
        hosts=hosts * slices,
        worker=_below(worker, hosts * slices),
        slices=slices,
        slice_hosts=max(hosts, known[0]),
        because=(because,) if because else (),
    )
    launched = _largest(_launchers(machine))
    # A launcher does not know the slices, and one per slice repeats the numbers.
    agrees = launched.hosts == place.hosts and place.worker is not None
    if launched.hosts == 1 or agrees:
        return place
    return replace(launched, slice_hosts=place.slice_hosts)


def find_cluster(machine: Machine) -> Topology:
    """Count the hosts of a cluster without TPUs by what its launcher sets on each of them."""
    return _largest((*_launchers(machine), *_services(machine)))


def training_tasks(machine: Machine, name: str = "TF_CONFIG") -> tuple[int, int | None]:
    """Count the workers that a cluster's variable names, and say which this is; 1 if none."""
    try:
        document = json.loads(variable(machine, name) or "{}")
        counts = {job: len(document["cluster"].get(job, [])) for job in _TRAINING_JOBS[name]}
        task = document.get("task") or {}
        kind, index = task.get("type"), parse_count(str(task.get("index")))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return 1, None
    total, number = 0, None
    for job, count in counts.items():
        if job == kind:
            number = total + index if index is not None and index < count else None
        total += count
    return max(1, total), number


def _largest(found: Iterable[tuple[int, int | None, str]]) -> Topology:
    places = (Topology(n, _below(worker, n), because=(why,)) for n, worker, why in found)
    return max(places, key=lambda place: place.hosts, default=Topology())


def _below(number: int | None, limit: int) -> int | None:
    return number if number is not None and number < limit else None


def _launchers(machine: Machine) -> Iterator[tuple[int, int | None, str]]:
    """Yield the hosts, this host and the evidence of each launcher that JAX and torch detect."""
    for hosts_name, number_name in _NODE_COUNTS:
        hosts = parse_count(variable(machine, hosts_name)) or 1
        if hosts > 1:
            yield hosts, parse_count(variable(machine, number_name)), f"{hosts_name}={hosts}"
    # xla_dist of the old torch_xla names every worker as c_tpu_worker;number;address.
    workers = variable(machine, "XRT_TPU_CONFIG").count("|") + 1
    if workers > 1:
        number = variable(machine, "XRT_LOCAL_WORKER").rpartition(":")[2]
        yield workers, parse_count(number), f"XRT_TPU_CONFIG names {workers} workers"
    names = ("SIZE", "LOCAL_SIZE", "RANK", "LOCAL_RANK")
    numbers = [parse_count(variable(machine, f"OMPI_COMM_WORLD_{name}")) for name in names]
    everywhere, here, (rank, local) = numbers[0] or 1, numbers[1] or 1, numbers[2:]
    if everywhere > here:
        # Ranks are dealt host by host, unless the user maps them otherwise.
        worker = rank // here if rank is not None and rank % here == local else None
        yield -(-everywhere // here), worker, f"OMPI_COMM_WORLD_SIZE={everywhere}, {here} here"


def _services(machine: Machine) -> Iterator[tuple[int, int | None, str]]:
    for name in _TRAINING_JOBS:
        tasks, index = training_tasks(machine, name)
        if tasks > 1:
            yield tasks, index, f"{name} names {tasks} workers"
    names = re.findall(r'"([^"]+)"', variable(machine, "SM_HOSTS"))
    if len(names) > 1:
        me = variable(machine, "SM_CURRENT_HOST")
        yield len(names), names.index(me) if me in names else None, f"SM_HOSTS={len(names)} hosts"


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


def _hosts_by_environment(machine: Machine) -> tuple[int, str | None] | None:
    """Count the processes that GKE or the user lists; libtpu and JAX read these variables first."""
    if product(bounds := variable(machine, "TPU_PROCESS_BOUNDS")) == 1:
        return 1, f"TPU_PROCESS_BOUNDS={bounds}: one process, alone with its chips"
    path = variable(machine, "TPU_PROCESS_ADDRESSES_PATH")
    named = {name: variable(machine, name) for name in _LISTS}
    named["TPU_PROCESS_ADDRESSES_PATH"] = (machine.read(path) or "") if path else ""
    hosts = set(filter(None, map(str.strip, named["TPU_WORKER_HOSTNAMES"].split(","))))
    for name, text in named.items():
        listed = [entry.strip() for entry in text.split(",") if entry.strip()]
        if not listed or any(" " in entry for entry in listed):
            continue  # a sentence, such as a warning
        # TorchTPU has an address per chip, and a host has several.
        found = list(dict.fromkeys(entry.rpartition(":")[0] for entry in listed))
        if name.startswith("TORCH") or hosts == set(found):
            listed = found
        return len(listed), f"{name} lists {len(listed)} host(s)"
    for name in ("TPU_PROCESS_BOUNDS", "TPU_HOST_BOUNDS", "HOST_BOUNDS"):
        if count := product(variable(machine, name)):
            return count, f"{name}={variable(machine, name)}"
    return None


def _hosts_by_metadata(machine: Machine) -> tuple[int, str | None] | None:
    endpoints = machine.metadata("instance/attributes/worker-network-endpoints") or ""
    # Entries are name:id:address on Cloud TPU VMs, and bare names on Compute Engine.
    listed = [entry for entry in endpoints.split(",") if entry.strip()]
    if listed:
        return len(listed), f"worker-network-endpoints lists {len(listed)} host(s)"
    bounds = tpu_env(machine).get("HOST_BOUNDS") or tpu_env(machine).get("TPU_HOST_BOUNDS") or ""
    count = product(bounds)
    return (count, f"tpu-env says HOST_BOUNDS {bounds}") if count else None


def _hosts_by_type(machine: Machine, chips: Chips) -> tuple[int, str | None] | None:
    """Divide the chips of the slice by those of this host."""
    name = type_name(machine)
    number = parse_count(name.rpartition("-")[2])
    shape = variable(machine, "TPU_TOPOLOGY") or tpu_env(machine).get("TOPOLOGY") or ""
    totals = {f"topology {shape}": product(shape.replace("x", ",")) or 0}
    if chips.kind and number and generation_of_type(name) == chips.kind.name:
        # The suffix counts TensorCores; v5e and v6e have one per chip.
        totals = {name: number // chips.kind.tensorcores_per_chip, **totals}
    for what, total in totals.items():
        hosts, rest = divmod(total, chips.count) if chips.count else (0, 0)
        if hosts > 1 and rest == 0:
            return hosts, f"{what} has {hosts} times the chips of this host"
    # The last resort is a lower bound: worker 3 has at least three others before it.
    worker = worker_from_host_name(machine)
    return (worker + 1, f"host name ends in w-{worker}") if worker else None


def _number_of_slices(machine: Machine, name: str) -> int | None:
    """Read a MEGASCALE variable; set in the environment, even to nothing, it wins."""
    known = machine.env.get(f"MEGASCALE_{name}")
    return parse_count(tpu_env(machine).get(f"MEGASCALE_{name}") if known is None else known)


def _worker(machine: Machine) -> int | None:
    """Return the number within the slice; where GKE or the user lists hosts, they number them."""
    given = variable(machine, "TPU_WORKER_ID")
    listed = variable(machine, "TPU_WORKER_HOSTNAMES") or variable(machine, "TPU_PROCESS_ADDRESSES")
    candidates = (
        variable(machine, "CLOUD_TPU_TASK_ID") if listed else None,
        given if listed else None,
        machine.metadata("instance/attributes/agent-worker-number"),
        tpu_env(machine).get("WORKER_ID"),
        tpu_env(machine).get("TPU_WORKER_ID"),
        given,
        variable(machine, "JOB_COMPLETION_INDEX"),
        variable(machine, "CLOUD_TPU_TASK_ID"),
    )
    numbers = (parse_count(text) for text in candidates)
    return next((n for n in numbers if n is not None), worker_from_host_name(machine))
