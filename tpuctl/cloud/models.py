"""The objects of the Cloud TPU API as we see them, and the labels that we put on TPUs."""

import re
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from tpuctl.errors import InvalidArgumentError, TpuctlError
from tpuctl.hardware.compute_engine import CLOUD_TPU

# The service allows lower-case letters, digits, `-` and `_` in a label value, at most 63 of them.
LABEL_CREATE_ID = "tpuctl-create"
"""The create id of the journal entry that the TPU belongs to."""

LABEL_TTL_S = "tpuctl-ttl-s"
"""Seconds after the service's own create time at which the TPU must be deleted."""

LABEL_MAX_USD_CENTS = "tpuctl-max-usd-cents"
"""The budget that the time to live was derived from, if there was one."""

LABEL_WATCH = "tpuctl-watch"
"""The id of the watch that created the TPU and may replace it."""

ResourceKind = Literal["node", "queued_resource", "runtime", "kernel", "job"]
"""The kinds of things to delete; runtimes are Colab's, kernels Kaggle's."""

DeletionOutcome = Literal[
    "planned", "deleted", "already_deleted", "replaced", "left_alone", "failed"
]

T = TypeVar("T")

ALL_ZONES = "-"
"""The zone name that means all zones in a list request."""
AUTO_ZONE = "auto"
"""The zone name that means every zone that has the type."""

INCOMPLETE = "INCOMPLETE"
"""The state of a slice of which only the workload policy or the template exists."""

DEAD_NODE_STATES = frozenset({"PREEMPTED", "TERMINATED"})
"""A node in these states never recovers, but holds its name and quota until it is deleted."""

DEAD_QUEUED_STATES = frozenset({"SUSPENDING", "SUSPENDED", "FAILED"})
"""A queued resource in these states never yields a TPU, but holds quota until it is deleted."""


def shared(cls: type, source: object) -> dict[str, Any]:
    """Return those attributes of an object that are also fields of a dataclass, by name."""
    names = (field.name for field in fields(cls))
    return {name: getattr(source, name) for name in names if hasattr(source, name)}


def segment(kind: str, text: str) -> str:
    """Check that a project, zone or name is safe as a part of a resource name."""
    if not re.fullmatch(r"[\w.~%+:-]{1,128}", text, re.ASCII) or not text.strip("."):
        raise InvalidArgumentError(f"{text!r} is not a valid {kind} name.")
    return text


def region_of(zone: str) -> str:
    """Return the region of a zone."""
    return zone.rpartition("-")[0] or zone


@dataclass(frozen=True)
class Endpoint:
    """The addresses of one worker; None until one is assigned.

    `vm` is the name of its instance, where the service tells it.
    """

    internal_ip: str | None
    external_ip: str | None
    vm: str | None = None


class DataDisk(NamedTuple):
    """A disk attached besides the boot disk; `source` is its full resource name."""

    source: str
    read_only: bool = False

    @property
    def name(self) -> str:
        """The name of the disk within its zone or region."""
        return self.source.rpartition("/")[2]


@dataclass(frozen=True)
class Node:
    """A TPU as the API sees it. Worker i is `endpoints[i]`.

    `expires` is when the service itself ends it, `billed_from` when it started; `billed_share` is
    the part of its VMs that cost money, where the state does not tell; `error` is why its VMs
    cannot be created; `is_partly_deleted` is whether a user deleted some of its VMs. A slice on
    Compute Engine is INCOMPLETE while some of its three parts exist, but no group of VMs.
    """

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
    provider: str = CLOUD_TPU
    flex: bool = False
    reservation: str | None = None
    expires: datetime | None = None
    billed_from: datetime | None = None
    billed_share: float | None = None
    is_partly_deleted: bool = False
    error: TpuctlError | None = None

    @property
    def is_dead(self) -> bool:
        """Whether it will never be usable again."""
        return self.state in DEAD_NODE_STATES


@dataclass(frozen=True)
class QueuedResource:
    """A queued request for TPUs; `error` is set where it failed.

    `requested` is the node that it asks for; fields that only an existing node has are empty.
    """

    name: str
    zone: str
    state: str
    created: datetime
    accelerator_type: str
    nodes: tuple[str, ...]
    spot: bool = False
    labels: dict[str, str] = field(default_factory=dict)
    requested: Node | None = None
    error: TpuctlError | None = None
    stopped_by: str | None = None

    @property
    def is_dead(self) -> bool:
        """Whether it will never yield a TPU."""
        return self.state in DEAD_QUEUED_STATES


@dataclass(frozen=True)
class Operation:
    """A long-running operation; capacity errors arrive here, not in the reply to the request.

    `name` is the full resource name. `node` is the result of a finished create.
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
    """The result of a list request, and the zones that did not answer."""

    items: tuple[T, ...]
    unreachable_zones: tuple[str, ...] = ()


@dataclass(frozen=True)
class NodeRequest:
    """A request to create a node.

    `create_id` is sent as a label (and as the request id of a queued resource). After a lost reply,
    a crash or a late fulfilment, it identifies the TPU as ours.
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
    flex: bool = False
    reservation: str | None = None
    max_run_s: int | None = None
    valid_for_s: float | None = None


@dataclass(frozen=True)
class Departure:
    """Why a TPU or one VM of it is gone, from the service's record of operations."""

    cause: Literal["preempted", "expired", "deleted", "host_error", "not_created"]
    at: datetime | None = None
    by: str = ""
    error: TpuctlError | None = None
    vm: str = ""

    def __str__(self) -> str:
        when = f" at {self.at:%Y-%m-%d %H:%M} UTC" if self.at else ""
        return {
            "preempted": f"it was preempted{when}",
            "expired": f"its time to live ended{when}",
            "deleted": f"{self.by or 'a user'} deleted {self.vm or 'it'}{when}",
            "host_error": f"{self.vm or 'its machine'} failed{when}",
            "not_created": str(self.error) if self.error else "it lapsed",
        }[self.cause]


@dataclass(frozen=True)
class Quota:
    """The number of chips (or cores, for older generations) that the project may have in a place.

    `place` is a zone or a region; with a `limit` of 0 no request there can succeed.
    """

    id: str
    generation: str
    spot: bool
    place: str
    limit: int
    counts: str

    @property
    def pool(self) -> str:
        """The pool that the limit belongs to; the limits of a zone and its region apply together.

        A generation may have several pools, such as one for single hosts and one for pods.
        """
        return self.id.partition("PerProject")[0]
