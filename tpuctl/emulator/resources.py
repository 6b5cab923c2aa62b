"""The resources of the Cloud TPU API, the parts that Compute Engine's VMs share, and their cost."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple, Protocol, TypeVar

from tpuctl.emulator.errors import ServiceError
from tpuctl.emulator.faults import NodeEvent
from tpuctl.emulator.methods import Call, Document
from tpuctl.hardware.types import AcceleratorType, usd_per_hour

DEAD = frozenset({"PREEMPTED", "TERMINATED"})
"""States that a node never leaves; it keeps its name and its quota until it is deleted."""

INSTANCE = "vm"
"""Replaces the worker number in URLs of a Compute Engine instance."""


class Key(NamedTuple):
    """The project, zone and ID of a resource; IDs are unique within a zone of a project."""

    project: str
    zone: str
    name: str

    @classmethod
    def of(cls, call: Call) -> "Key":
        """Return the key of the resource that a call is about."""
        return cls(call.project, call.zone, call.name)

    def path(self, collection: str) -> str:
        """The full name of the resource."""
        return f"projects/{self.project}/locations/{self.zone}/{collection}/{self.name}"


@dataclass
class Operation:
    """A long-running operation; once it has `ended`, it has a `failure` or a `response`.

    `undo` reverts what it began. `version` is the API version of the types in it. An `unfinished`
    operation never reports that it has ended.
    """

    key: Key
    verb: str
    target: str
    created: datetime
    undo: Callable[[], None]
    version: str = "v2"
    unfinished: bool = False
    ended: datetime | None = None
    failure: ServiceError | None = None
    response: Document | None = None


@dataclass(frozen=True)
class NodeSpec:
    """A requested node: its message, and the accelerator type named there."""

    document: Document
    type: AcceleratorType
    spot: bool
    reserved: bool


@dataclass(kw_only=True)
class Host:
    """A machine with chips and workers: a node, or a Compute Engine instance.

    A failed deletion, stop or start returns it to `previous_state`. `pending_events` are planned
    events that wait until it runs. Its workers, if they run, listen on `ssh_port`. It is billed
    from `billed_from` on.
    """

    key: Key
    id: int
    created: datetime
    document: Document
    chips: int
    chips_per_worker: int
    hbm_gib_per_chip: float | None
    accelerator_type: str
    model: str
    state: str
    previous_state: str = ""
    holds_chips: bool = False
    billed_from: datetime | None = None
    addresses: tuple[tuple[str, str], ...] = ()
    down_workers: set[int] = field(default_factory=set)
    busy_workers: dict[int, float | None] = field(default_factory=dict)
    guest_attributes: dict[int, dict[str, str]] = field(default_factory=dict)
    pending_events: list[NodeEvent] = field(default_factory=list)
    operation: Operation | None = None
    ssh_port: int | None = None
    host_keys: dict[int, str] = field(default_factory=dict)

    running = frozenset({""})
    # Whether it publishes guest attributes by default.
    publishes = False

    @property
    def path(self) -> str:
        """The full name of the resource."""
        raise NotImplementedError

    def usd_per_hour(self) -> float | None:
        """Return its list price; None if there is none."""
        raise NotImplementedError

    @property
    def reserved(self) -> bool:
        """Whether its chips come from a reservation."""
        return self.model == "reserved"

    @property
    def is_running(self) -> bool:
        """Whether its workers are running and accept SSH."""
        return self.state in self.running

    @property
    def metadata(self) -> dict[str, str]:
        """The metadata that its owner set."""
        return self.document.get("metadata") or {}

    @property
    def may_publish(self) -> bool:
        """Whether its metadata enables guest attributes."""
        chosen = str(self.metadata.get("enable-guest-attributes", "")).upper()
        return chosen != "FALSE" if self.publishes else chosen == "TRUE"

    def published_attributes(self, worker: int) -> dict[str, str]:
        """The guest attributes of a worker by path; a running one publishes its host key."""
        kind, _, key = self.host_keys.get(worker, "").partition(" ")
        own = {f"hostkeys/{kind}": key} if kind and self.may_publish else {}
        return {**own, **self.guest_attributes.get(worker, {})}


@dataclass(kw_only=True)
class Node(Host):
    """A node; a later node with the same name is another object."""

    spec: NodeSpec
    queued: Key | None = None
    multislice: bool = False
    health: str | None = None
    health_description: str = ""
    symptoms: list[Document] = field(default_factory=list)

    running = frozenset({"READY", "REPAIRING"})
    publishes = True

    def worker_name(self, worker: int) -> str:
        """The name of a worker's VM."""
        return f"{self.key.name}-w-{worker}"

    def published_attributes(self, worker: int) -> dict[str, str]:
        """A worker of a Cloud TPU publishes the name of its VM and its host key."""
        found = super().published_attributes(worker)
        name = {"guestInventory/hostname": self.worker_name(worker)}
        return {**name, **found} if found else found

    def usd_per_hour(self) -> float | None:
        """Return its list price; that of a reservation is unknown."""
        if self.reserved:
            return None
        return usd_per_hour(self.accelerator_type, self.key.zone, spot=self.spec.spot)

    @property
    def path(self) -> str:
        """The full name of the resource."""
        return self.key.path("nodes")


@dataclass
class QueuedResource:
    """A queued resource, with the nodes that it asks for.

    Its chips count against the quota as long as it exists, in any state.
    """

    key: Key
    number: int
    created: datetime
    document: Document
    node_specs: dict[Key, NodeSpec]
    valid_from: datetime | None
    valid_until: datetime | None
    state: str = "CREATING"
    previous_state: str = "CREATING"
    initiator: str | None = None
    failure: ServiceError | None = None
    not_before: datetime | None = None
    operation: Operation | None = None

    @property
    def path(self) -> str:
        """The full name of the resource."""
        return self.key.path("queuedResources")

    @property
    def spot(self) -> bool:
        """Whether it asks for spot capacity."""
        return next(iter(self.node_specs.values())).spot

    @property
    def reserved(self) -> bool:
        """Whether it uses a reservation."""
        return next(iter(self.node_specs.values())).reserved

    @property
    def chips(self) -> int:
        """The number of chips of all its nodes together."""
        return sum(spec.type.chips for spec in self.node_specs.values())


class Target(Protocol):
    """What an operation changes."""

    key: Key
    operation: Operation | None

    @property
    def path(self) -> str:
        """The full name of the resource."""


T = TypeVar("T", bound=Target)


def timestamp(moment: datetime) -> str:
    """Write a time as the API does."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@dataclass(frozen=True)
class Charge:
    """The use of a TPU's chips for some time; `usd` is None if there is no list price."""

    resource: str
    accelerator_type: str
    chips: int
    model: str
    seconds: float
    usd: float | None


def charge(node: Host, seconds: float) -> Charge:
    """Return what using a node or a Compute Engine instance costs."""
    price = node.usd_per_hour()
    usd = None if price is None else price * seconds / 3600
    return Charge(node.path, node.accelerator_type, node.chips, node.model, seconds, usd)
