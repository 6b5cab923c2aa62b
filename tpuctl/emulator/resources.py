"""The resources of the Cloud TPU API: nodes, queued resources and operations."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from tpuctl.emulator.errors import ApiError
from tpuctl.emulator.faults import NodeEvent
from tpuctl.emulator.methods import Call, Document
from tpuctl.hardware.types import AcceleratorType

DEAD = frozenset({"PREEMPTED", "TERMINATED"})
"""States that a node never leaves; it keeps its name and its quota until it is deleted."""


class Key(NamedTuple):
    """Where a resource is and its id; ids are unique within a zone of a project."""

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
    """A long-running operation; once it has `ended`, its `failure` or its `response`.

    `undo` takes back what it began. `version` is that of the types in it. One that is `unfinished`
    never tells that it has ended.
    """

    key: Key
    verb: str
    target: str
    created: datetime
    undo: Callable[[], None]
    version: str = "v2"
    unfinished: bool = False
    ended: datetime | None = None
    failure: ApiError | None = None
    response: Document | None = None


@dataclass(frozen=True)
class NodeSpec:
    """The node that was requested: its message, and the accelerator type that this names."""

    document: Document
    type: AcceleratorType
    spot: bool
    reserved: bool


@dataclass
class Node:
    """A node; one that is created later with the same name is another object.

    `previous_state` is what a failed deletion, stop or start goes back to. `pending_events` are
    planned events that wait until it is READY. `ssh_port` is where its workers listen, if they run.
    """

    key: Key
    id: int
    created: datetime
    spec: NodeSpec
    queued: Key | None = None
    multislice: bool = False
    holds_chips: bool = False
    state: str = "CREATING"
    previous_state: str = "CREATING"
    health: str | None = None
    health_description: str = ""
    addresses: tuple[tuple[str, str], ...] = ()
    symptoms: list[Document] = field(default_factory=list)
    down_workers: set[int] = field(default_factory=set)
    busy_workers: dict[int, float | None] = field(default_factory=dict)
    guest_attributes: dict[int, dict[str, str]] = field(default_factory=dict)
    pending_events: list[NodeEvent] = field(default_factory=list)
    operation: Operation | None = None
    ssh_port: int | None = None
    host_keys: dict[int, str] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """The full name of the resource."""
        return self.key.path("nodes")

    def published_attributes(self, worker: int) -> dict[str, str]:
        """The guest attributes of a worker by path; a running one publishes its host key."""
        metadata = self.spec.document.get("metadata", {})
        allowed = str(metadata.get("enable-guest-attributes", "")).upper() != "FALSE"
        kind, _, key = self.host_keys.get(worker, "").partition(" ")
        own = {f"hostkeys/{kind}": key} if kind and allowed else {}
        return {**own, **self.guest_attributes.get(worker, {})}

    @property
    def chips(self) -> int:
        """How many chips it has once it is provisioned."""
        return self.spec.type.chips


@dataclass
class QueuedResource:
    """A queued resource, with the nodes that it asks for.

    Its chips count against the quota as long as it exists, in every state.
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
    failure: ApiError | None = None
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
        """How many chips all of its nodes have together."""
        return sum(spec.type.chips for spec in self.node_specs.values())


Target = Node | QueuedResource


def timestamp(moment: datetime) -> str:
    """Write a moment as the API does."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
