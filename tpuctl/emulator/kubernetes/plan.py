"""The cluster in a scenario: its node pools, what is installed, what is preempted."""

from collections.abc import Iterator
from dataclasses import dataclass

from tpuctl.emulator.errors import load_data
from tpuctl.emulator.methods import Document
from tpuctl.emulator.strict_json import ObjectReader
from tpuctl.errors import UsageError
from tpuctl.hardware.types import AcceleratorType, describe

GOOGLE = "cloud.google.com"
POOL = f"{GOOGLE}/gke-nodepool"
TPU = "google.com/tpu"
ACCELERATOR_TYPE = "tpuctl-emulator/accelerator-type"
_USUAL = (("v6e-16", 2), ("v5e-8", 1))


@dataclass(frozen=True)
class Pool:
    """A node pool that is one slice, or `count` single hosts."""

    name: str
    kind: AcceleratorType
    provisioning: str
    count: int = 1

    def nodes(self) -> Iterator[Document]:
        """Create its nodes."""
        chips = str(self.kind.chips_per_worker)
        labels = {
            POOL: self.name,
            f"{GOOGLE}/gke-tpu-accelerator": load_data("kubernetes")["labels"][
                self.kind.generation
            ],
            f"{GOOGLE}/gke-tpu-topology": str(self.kind.topology),
            f"{GOOGLE}/gke-accelerator-count": chips,
            "node.kubernetes.io/instance-type": str(self.kind.machine_type),
            "topology.kubernetes.io/zone": "us-central1-a",
        }
        if self.provisioning != "on_demand":
            labels[f"{GOOGLE}/gke-{self.provisioning.replace('flex', 'flex-start')}"] = "true"
        note = {ACCELERATOR_TYPE: self.kind.accelerator_type}
        room = {TPU: chips, "cpu": "180", "memory": "720Gi", "pods": "110"}
        for number in range(self.kind.workers * self.count):
            yield {
                "metadata": {
                    "name": f"gke-tpu-{self.name}-{number}",
                    "labels": labels,
                    "annotations": note,
                },
                "spec": {"taints": [{"key": TPU, "value": "present", "effect": "NoSchedule"}]},
                "status": {
                    "capacity": room,
                    "allocatable": room,
                    "nodeInfo": _node_info(),
                    "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
                },
            }


def _node_info() -> Document:
    """Describe a node's system; Kubernetes requires all of these fields."""
    version = load_data("kubernetes")["version"]["gitVersion"]
    unknown = ("bootID", "containerRuntimeVersion", "kernelVersion", "kubeProxyVersion",
               "machineID", "osImage", "systemUUID")  # fmt: skip
    known = {"kubeletVersion": version, "operatingSystem": "linux", "architecture": "amd64"}
    return {**dict.fromkeys(unknown, ""), **known}


@dataclass(frozen=True)
class Preemption:
    """A planned preemption: one slice of a named JobSet, some time after its pods have started."""

    name: str
    slice: int
    attempt: int
    after_s: float


@dataclass(frozen=True)
class Plan:
    """The cluster: node pools, whether JobSet is installed, Kueue's queues, and planned faults."""

    pools: tuple[Pool, ...]
    job_sets: bool
    queues: tuple[str, ...]
    queue_waits: str
    start_s: float
    preemptions: tuple[Preemption, ...]
    missing_images: tuple[str, ...]


def read_plan(part: ObjectReader) -> Plan:
    """Read the key `gke` of a scenario."""
    part.allow("node_pools job_sets queues queue_waits start_s preemptions missing_images")
    pools = [_pool(each, number) for number, each in enumerate(part.objects("node_pools"))]
    if "node_pools" not in part:
        names = [name for name, count in _USUAL for _ in range(count)]
        pools = [Pool(f"pool-{n}", describe(name), "on_demand") for n, name in enumerate(names)]
    return Plan(
        pools=tuple(pools),
        job_sets="job_sets" not in part or part.flag("job_sets"),
        queues=tuple(part.texts("queues")) if "queues" in part else (),
        queue_waits=part.text("queue_waits", ""),
        start_s=part.number("start_s", 20.0),
        preemptions=tuple(_preemption(each) for each in part.objects("preemptions")),
        missing_images=tuple(part.texts("missing_images")) if "missing_images" in part else (),
    )


def _pool(pool: ObjectReader, number: int) -> Pool:
    pool.allow("name accelerator_type provisioning count")
    try:
        kind = describe(pool.text("accelerator_type", "v6e-16"))
    except UsageError as error:
        raise pool.error("accelerator_type", f"is not an accelerator type: {error}") from error
    if kind.generation not in load_data("kubernetes")["labels"] or not kind.topology:
        raise pool.error("accelerator_type", "is not available on GKE")
    provisioning = pool.choice("provisioning", ("on_demand", "spot", "flex"), "on_demand")
    count = pool.count("count", 1, least=1)
    if count > 1 and kind.workers > 1:
        raise pool.error(
            "count", "is only for single hosts: each multi-host slice needs its own pool"
        )
    return Pool(pool.text("name", f"pool-{number}"), kind, provisioning, count)


def _preemption(event: ObjectReader) -> Preemption:
    event.allow("name slice attempt after_s")
    return Preemption(
        event.text("name", "*"),
        event.count("slice", 0),
        event.count("attempt", 0),
        event.number("after_s", 0.0),
    )
