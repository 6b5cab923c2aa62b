"""The labels by which a TPU tells who asked for it, and how long it may live.

A label value may hold lower-case letters, digits, `-` and `_`, at most 63 of them.
"""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, NamedTuple, TypeVar

from tpuctl.errors import TpuctlError

CREATE_ID = "tpuctl-create"
"""The id of the journal entry of the create that made it."""

TTL_S = "tpuctl-ttl-s"
"""Seconds after the service's own create time at which it must be gone."""

MAX_USD_CENTS = "tpuctl-max-usd-cents"
"""The budget from which the life time was derived, if there was one."""

WATCH = "tpuctl-watch"
"""The id of the watch that made it, and may replace it."""


T = TypeVar("T")

ALL_ZONES = "-"
"""The zone that stands for all of them when listing."""

DEAD_NODE_STATES = frozenset({"PREEMPTED", "TERMINATED"})
"""A node in one of these never comes back, and holds its name and quota until it is deleted."""

DEAD_QUEUED_STATES = frozenset({"SUSPENDING", "SUSPENDED", "FAILED"})
"""A queued resource in one of these gives no TPU any more, and holds quota until it is deleted."""


@dataclass(frozen=True)
class Endpoint:
    """How one worker of a node is reached; an address is None until it has one."""

    internal_ip: str | None
    external_ip: str | None


class DataDisk(NamedTuple):
    """A disk beside the one that a VM boots from; `source` is its full resource name."""

    source: str
    read_only: bool = False


@dataclass(frozen=True)
class Node:
    """A TPU as the API sees it. Worker i is `endpoints[i]`."""

    name: str
    zone: str
    id: str
    accelerator_type: str
    runtime_version: str
    state: str
    health: str
    created: datetime
    health_description: str = ""
    spot: bool = False
    reserved: bool = False
    queued_resource: str | None = None
    endpoints: tuple[Endpoint, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    data_disks: tuple[DataDisk, ...] = ()
    symptoms: tuple[str, ...] = ()
    network: str | None = None
    subnetwork: str | None = None
    external_ips: bool = True
    service_account: str | None = None
    tags: tuple[str, ...] = ()

    @property
    def is_dead(self) -> bool:
        """Whether it will never be usable again."""
        return self.state in DEAD_NODE_STATES


@dataclass(frozen=True)
class QueuedResource:
    """A request that waits in line for TPUs; `error` is set where it failed.

    `asked` is the node that it asks for, with the little that is known of one that is not there.
    """

    name: str
    zone: str
    state: str
    created: datetime
    accelerator_type: str
    nodes: tuple[str, ...]
    spot: bool = False
    labels: dict[str, str] = field(default_factory=dict)
    asked: Node | None = None
    error: TpuctlError | None = None
    stopped_by: str | None = None

    @property
    def is_dead(self) -> bool:
        """Whether it will never give a TPU again."""
        return self.state in DEAD_QUEUED_STATES


@dataclass(frozen=True)
class Operation:
    """Work that the service has accepted; capacity errors arrive here, not in the reply.

    `name` is the full resource name. `node` is what a finished create made.
    """

    name: str
    verb: str
    target: str
    done: bool
    detail: str = ""
    error: TpuctlError | None = None
    node: Node | None = None


@dataclass(frozen=True)
class Listing(Generic[T]):
    """What a list answered, and the zones that did not."""

    items: tuple[T, ...]
    unreachable_zones: tuple[str, ...] = ()


@dataclass(frozen=True)
class NodeRequest:
    """Everything the service is told to make a node.

    `create_id` is sent as a label (and as the request id of a queued resource): by it a lost reply,
    a crash or a late fulfilment is recognised as ours.
    """

    name: str
    zone: str
    accelerator_type: str
    runtime_version: str
    create_id: str
    spot: bool = False
    reserved: bool = False
    network: str | None = None
    subnetwork: str | None = None
    external_ips: bool = True
    service_account: str | None = None
    labels: dict[str, str] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    data_disks: tuple[DataDisk, ...] = ()


@dataclass(frozen=True)
class Quota:
    """How many chips (or cores, as the family counts) the project may have in a place.

    `place` is a zone or a region; `limit` 0 means that no request there can ever succeed.
    """

    id: str
    generation: str
    spot: bool
    place: str
    limit: int
    counts: str

    @property
    def pool(self) -> str:
        """What is limited, wherever: of a pool the limits of zone and region both hold.

        A generation may have several, such as one for single hosts and one for pods.
        """
        return self.id.partition("PerProject")[0]
