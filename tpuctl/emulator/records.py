"""What the service remembers: nodes, queued resources and operations."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from tpuctl.emulator.methods import Document
from tpuctl.emulator.refusals import Refusal
from tpuctl.emulator.scenario import NodeEvent
from tpuctl.hardware.types import AcceleratorType

DEAD = frozenset({"PREEMPTED", "TERMINATED"})
"""A node in one of these never comes back; it holds its name and its quota."""


class Key(NamedTuple):
    """Where a thing is and how it is called; names are unique within a zone of a project."""

    project: str
    zone: str
    name: str

    def path(self, collection: str) -> str:
        """The full name of the resource."""
        return f"projects/{self.project}/locations/{self.zone}/{collection}/{self.name}"


@dataclass
class Operation:
    """Work in progress, or its end: `failure`, or `response` where it has one."""

    key: Key
    verb: str
    target: str
    created: datetime
    ended: datetime | None = None
    failure: Refusal | None = None
    response: Document | None = None


@dataclass(frozen=True)
class NodeSpec:
    """What was asked for: the message as it came, and the type it names."""

    document: Document
    type: AcceleratorType
    spot: bool
    reserved: bool


@dataclass
class Node:
    """One incarnation of a node; a later one of the same name is another object.

    `ssh_port` is where its workers listen, if they are machines that can be reached.
    `before` is the state that a failed deletion, stop or start leads back to. `waiting` are events
    that can only happen once it is READY.
    """

    key: Key
    id: int
    created: datetime
    spec: NodeSpec
    queued: Key | None = None
    multislice: bool = False
    holds_chips: bool = False
    state: str = "CREATING"
    before: str = "CREATING"
    health: str | None = None
    health_description: str = ""
    addresses: tuple[tuple[str, str], ...] = ()
    symptoms: list[Document] = field(default_factory=list)
    down_workers: set[int] = field(default_factory=set)
    busy_workers: dict[int, float | None] = field(default_factory=dict)
    guest_attributes: dict[int, dict[str, str]] = field(default_factory=dict)
    waiting: list[NodeEvent] = field(default_factory=list)
    operation: Operation | None = None
    ssh_port: int | None = None
    host_keys: dict[int, str] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """The full name of the resource."""
        return self.key.path("nodes")

    def published(self, worker: int) -> dict[str, str]:
        """The guest attributes of a worker, by path: its host key first, as soon as it runs."""
        metadata = self.spec.document.get("metadata", {})
        allowed = str(metadata.get("enable-guest-attributes", "")).upper() != "FALSE"
        kind, _, key = self.host_keys.get(worker, "").partition(" ")
        own = {f"hostkeys/{kind}": key} if kind and allowed else {}
        return {**own, **self.guest_attributes.get(worker, {})}

    @property
    def chips(self) -> int:
        """How many chips it has, or would have."""
        return self.spec.type.chips


@dataclass
class Queued:
    """A queued resource; `parts` are the nodes it asks for.

    Its chips count against the quota as long as it exists, whatever its state.
    """

    key: Key
    number: int
    created: datetime
    document: Document
    parts: dict[Key, NodeSpec]
    opens: datetime | None
    closes: datetime | None
    state: str = "CREATING"
    before: str = "CREATING"
    initiator: str | None = None
    failure: Refusal | None = None
    not_before: datetime | None = None
    operation: Operation | None = None

    @property
    def path(self) -> str:
        """The full name of the resource."""
        return self.key.path("queuedResources")

    @property
    def spot(self) -> bool:
        """Whether it asks for spot capacity."""
        return next(iter(self.parts.values())).spot

    @property
    def reserved(self) -> bool:
        """Whether it draws from a reservation."""
        return next(iter(self.parts.values())).reserved

    @property
    def chips(self) -> int:
        """How many chips all of its nodes have together."""
        return sum(spec.type.chips for spec in self.parts.values())


Target = Node | Queued
