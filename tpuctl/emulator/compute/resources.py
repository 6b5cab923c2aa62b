"""The resources of Compute Engine: instances, managed groups, operations, and plain documents."""

import math
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tpuctl.emulator.errors import ServiceError, load_data
from tpuctl.emulator.methods import Document
from tpuctl.emulator.resources import Host, Key, Operation
from tpuctl.emulator.scenario import ComputeQuota

ROOT = "https://www.googleapis.com/compute/v1/"
GLOBAL = "global"
# The project of the images that Google makes for TPUs.
IMAGE_PROJECT = "ubuntu-os-accelerator-images"
_FOLDERS = {"regionInstanceTemplates": "instanceTemplates"}


def path_of(collection: str, key: Key) -> str:
    """The full name of a resource in a zone, a region or `global`."""
    folder = "operations" if "Operations" in collection else _FOLDERS.get(collection, collection)
    return f"projects/{key.project}/{place_of(key.zone)}/{folder}/{key.name}".replace("//", "/")


def place_of(zone: str) -> str:
    """Write a location as in paths: `zones/us-east5-b`, `regions/us-east5` or `global`."""
    if zone in (GLOBAL, ""):
        return zone
    return f"zones/{zone}" if zone.count("-") > 1 else f"regions/{zone}"


def rfc3339(moment: datetime) -> str:
    """Write a time as Compute Engine does."""
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}+00:00"


def region_of(zone: str) -> str:
    """Return the region of a zone."""
    return zone.rpartition("-")[0]


@dataclass(frozen=True)
class MachineType:
    """A machine type with TPUs."""

    name: str
    generation: str
    chips: int
    vcpus: int | None
    memory_gb: int

    @property
    def facts(self) -> dict[str, Any]:
        """The facts that all machine types of its generation share."""
        facts: dict[str, Any] = load_data("compute")["generations"][self.generation]
        return facts

    def quota(self, plan: ComputeQuota, *, spot: bool) -> Document:
        """Return the facts of the quota that it uses."""
        kind = "spot_" if spot else ""
        metric = self.facts[f"{kind}metric"]
        return {
            "quota": metric,
            "metric": f"compute.googleapis.com/{metric.lower()}",
            "quota_id": self.facts[f"{kind}quota"],
            "limit": float(plan.spot_quota_chips if spot else plan.quota_chips),
        }

    def accelerator_type(self, chips: int) -> str:
        """The type of a slice with so many chips, as written in the metadata."""
        return f"{self.facts['type']}-{chips * self.facts['units']}"


def machine_types() -> dict[str, MachineType]:
    """Return all machine types by name."""
    rows = load_data("compute")["machine_types"]
    return {name: MachineType(name, **row) for name, row in rows.items()}


@dataclass
class ComputeOperation(Operation):
    """An operation of Compute Engine, started by `user`."""

    id: int = 0
    target_id: int = 0
    user: str = ""

    @property
    def done(self) -> bool:
        """Whether it says that it is done."""
        return self.ended is not None and not self.unfinished


@dataclass(kw_only=True)
class Instance(Host):
    """A virtual machine; `index` is its position in the slice of its `group`.

    The service ends it at `expires`.
    """

    machine: MachineType
    group: "Group | None" = None
    index: int = 0
    expires: datetime | None = None
    started: datetime | None = None
    stopped: datetime | None = None
    status_message: str = ""
    was_preempted: bool = False
    maintenance: str = "NONE"
    fingerprints: int = 0

    # A stopping machine still runs for some time.
    running = frozenset({"RUNNING", "STOPPING"})

    @property
    def path(self) -> str:
        """The full name of the resource."""
        return path_of("instances", self.key)

    @property
    def scheduling(self) -> Document:
        """The requested way to provision and end it."""
        found: Document = self.document["scheduling"]
        return found

    @property
    def spot(self) -> bool:
        """Whether it can be preempted."""
        return self.model == "spot"

    def usd_per_hour(self) -> float | None:
        """Return its list price without disks; None if there is none."""
        prices = load_data("compute")["usd_per_chip_hour"].get(self.machine.generation, {})
        price = prices.get(region_of(self.key.zone), {}).get(self.model)
        return None if price is None else price * self.chips


@dataclass
class Resource:
    """A policy or a template with the fields that were sent; also the base class of groups."""

    collection: str
    key: Key
    id: int
    created: datetime
    document: Document
    operation: Operation | None = field(default=None, kw_only=True)

    @property
    def path(self) -> str:
        """The full name of the resource."""
        return path_of(self.collection, self.key)


@dataclass
class Group(Resource):
    """A managed instance group: a slice if it has a `topology`.

    `names` are the instances that it should have, `made` those that it has created; `error` says
    why some are missing.
    """

    template: Resource
    policy: Resource | None
    topology: str | None
    is_bulk: bool
    machine: MachineType
    model: str
    properties: Document
    names: tuple[str, ...] = ()
    made: set[str] = field(default_factory=set)
    error: ServiceError | None = None
    state: str = ""
    was_active: bool = False

    @property
    def hosts(self) -> int | None:
        """How many instances its topology needs; None without one."""
        if not self.topology:
            return None
        return math.prod(map(int, self.topology.split("x"))) // self.machine.chips

    @property
    def repairs(self) -> bool:
        """Whether it recreates a lost instance."""
        policy = self.document.get("instanceLifecyclePolicy") or {}
        return bool(policy.get("defaultActionOnFailure", "REPAIR") == "REPAIR")

    def instance(self, compute: "ComputeEngine", name: str) -> Instance | None:
        """Return one of its instances; None if it does not exist."""
        found = compute.instances.get(Key(self.key.project, self.key.zone, name))
        return found if found and found.group is self else None

    def instances(self, compute: "ComputeEngine") -> list[Instance]:
        """Return its existing instances."""
        return [found for found in compute.instances.values() if found.group is self]

    def all_run(self, compute: "ComputeEngine") -> bool:
        """Whether all instances that it should have are running."""
        found = [self.instance(compute, name) for name in self.names]
        return bool(found) and all(item and item.state == "RUNNING" for item in found)


@dataclass
class ComputeEngine:
    """The state of Compute Engine."""

    instances: dict[Key, Instance] = field(default_factory=dict)
    resources: dict[tuple[str, Key], Resource] = field(default_factory=dict)
    changed: bool = False
    operations: dict[Key, ComputeOperation] = field(default_factory=dict)
    requests: dict[tuple[str, str], tuple[tuple[str, ...], ComputeOperation]] = field(
        default_factory=dict
    )
