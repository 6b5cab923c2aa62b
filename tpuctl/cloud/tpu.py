"""A TPU as users see it: what the API says, what it costs, and when it expires."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache
from typing import Any, Literal

from tpuctl.cloud.models import (
    DEAD_NODE_STATES,
    DEAD_QUEUED_STATES,
    INCOMPLETE,
    LABEL_TTL_S,
    Node,
    QueuedResource,
    shared,
)
from tpuctl.errors import UsageError
from tpuctl.hardware.compute_engine import CLOUD_TPU, GCE, list_price, model_of, place_of
from tpuctl.hardware.types import AcceleratorType, describe, load_data
from tpuctl.outcome import Outcome

NO_ADDRESS = "NO_ADDRESS"
"""The state of a worker without an address."""

Provisioning = Literal["on_demand", "spot", "flex", "reserved", "units", "free"]
"""How a TPU is paid for: `units` are compute units, `free` a weekly allowance of hours."""

_NEVER_BILLED = frozenset({"PENDING", INCOMPLETE})
_FREE_STATES = DEAD_NODE_STATES | {"STOPPED"} | _NEVER_BILLED
_MAX_TTL_S = 100 * 365 * 86400


@dataclass(frozen=True)
class Worker:
    """One host of a TPU; its state is that of the TPU once it has an address."""

    index: int
    internal_ip: str | None
    external_ip: str | None
    state: str


@dataclass(frozen=True, kw_only=True)
class Tpu(Outcome):
    """The TPU object of the JSON contract, at a moment of the service's time.

    `usd_per_hour` is what it costs now: the list price while it runs, 0 when it is dead or stopped,
    None if unknown. `usd_so_far` is also None for a TPU that is dead or stopped, because it is
    unknown since when. `generation` and `chips` are None for an unknown type, `zone` for a provider
    without zones. `units_left` and `hours_left` are the account's.
    """

    name: str
    zone: str | None
    accelerator_type: str
    generation: str | None
    chips: int | None
    workers: tuple[Worker, ...]
    state: str
    health: str = "UNKNOWN"
    spot: bool = False
    queued_resource: str | None = None
    runtime_version: str = ""
    created: datetime
    expires: datetime | None = None
    labels: dict[str, str] = field(default_factory=dict)
    usd_per_hour: float | None = None
    usd_so_far: float | None = None
    emulated: bool = False
    id: str
    as_of: datetime
    health_description: str = ""
    symptoms: tuple[str, ...] = ()
    data_disks: tuple[str, ...] = ()
    provider: str = "cloud-tpu"
    provisioning: Provisioning = "on_demand"
    units_per_hour: float | None = None
    units_left: float | None = None
    hours_left: float | None = None
    reachable: Literal["ssh", "batch"] = "ssh"

    @property
    def is_dead(self) -> bool:
        """Whether it will never be usable again."""
        return self.state in DEAD_NODE_STATES

    @property
    def place(self) -> str:
        """Its zone, and its provider where the zone does not tell it."""
        return place_of(self.zone, self.provider)

    @property
    def is_usable(self) -> bool:
        """Whether it is READY and every worker has an address; `create` waits for this."""
        reachable = all(worker.state != NO_ADDRESS for worker in self.workers)
        return self.state == "READY" and bool(self.workers) and reachable

    @property
    def health_warnings(self) -> tuple[str, ...]:
        """The service's description of its health, if it is not healthy."""
        if self.health in ("HEALTHY", "UNKNOWN"):
            return ()
        why = f": {self.health_description}" if self.health_description else "."
        return (
            f"{self.name} in {self.place} is {self.state}, but its health is {self.health}{why}",
        )

    @property
    def age_s(self) -> float:
        """Seconds since it was requested."""
        return max(0.0, (self.as_of - self.created).total_seconds())

    @property
    def ttl_left_s(self) -> float | None:
        """Seconds until it expires, negative if it has expired; None without a limit."""
        return None if self.expires is None else (self.expires - self.as_of).total_seconds()

    @property
    def ttl_from_start_s(self) -> int | None:
        """Seconds that it may run, where Compute Engine counts them only once it has started."""
        is_starting = self.provider == GCE and self.state in _NEVER_BILLED | {"CREATING"}
        return _ttl_of(self.labels) if is_starting and self.expires is None else None

    @property
    def reasons(self) -> tuple[str, ...]:
        """Where the prices come from."""
        return (about_prices(),)

    @property
    def why_no_cost(self) -> str | None:
        """Why `usd_so_far` is unknown; None if it is known."""
        if self.usd_so_far is not None:
            return None
        if self.state in _FREE_STATES:
            return f"it is {self.state}, and it is unknown since when"
        return f"the price of {self.accelerator_type} in {self.place} is unknown"


@dataclass(frozen=True)
class Balance:
    """The remaining units or free hours of a user, and how fast they are used.

    `unit` is `units` or `hours`. `reserved` is what runs in progress may still use. None is
    unknown. `rate_per_hour` is that of everything that runs in the account, also from a browser.
    """

    provider: str
    unit: Literal["units", "hours"]
    left: float | None
    rate_per_hour: float | None = None
    reserved: float | None = None
    refreshes: str | None = None
    as_of: str | None = None

    @property
    def hours_left(self) -> float | None:
        """How long it lasts at the present rate; None if nothing runs or something is unknown."""
        if self.unit == "hours":
            return None if self.left is None else max(0.0, self.left - (self.reserved or 0.0))
        if self.left is None or not self.rate_per_hour:
            return None
        return max(0.0, self.left / self.rate_per_hour)


@dataclass(frozen=True)
class QueuedTpu(Outcome):
    """A queued resource as users see it; `usd_per_hour` is the price of its TPU."""

    name: str
    zone: str
    state: str
    accelerator_type: str
    generation: str | None
    chips: int | None
    nodes: tuple[str, ...]
    spot: bool
    created: datetime
    labels: dict[str, str]
    usd_per_hour: float | None
    error: str | None
    stopped_by: str | None
    as_of: datetime

    @property
    def is_dead(self) -> bool:
        """Whether it will never yield a TPU."""
        return self.state in DEAD_QUEUED_STATES

    @property
    def age_s(self) -> float:
        """Seconds since it was requested."""
        return max(0.0, (self.as_of - self.created).total_seconds())


def describe_node(node: Node, *, now: datetime, emulated: bool) -> Tpu:
    """Describe a node and its cost; `now` is the service's time, not this machine's."""
    kind = known_type(node.accelerator_type)
    price = price_now(node)
    hours = max(0.0, (now - (node.billed_from or node.created)).total_seconds()) / 3600
    if node.state in _NEVER_BILLED or (node.billed_share == 0 and node.state == "CREATING"):
        cost: float | None = 0.0
    else:
        cost = round(price * hours, 4) if price and node.state not in _FREE_STATES else None
    known = {**shared(Tpu, node), "expires": expires_at(node)}
    known["data_disks"] = tuple(disk.source for disk in node.data_disks)
    return Tpu(
        **known,
        **type_facts(node.accelerator_type),
        workers=_workers(node, kind.workers if kind else 0),
        usd_per_hour=price,
        usd_so_far=cost,
        emulated=emulated,
        as_of=now,
        provisioning=model_of(node),
    )


def describe_queued(queued: QueuedResource, *, now: datetime) -> QueuedTpu:
    """Describe a queued resource and the price of its TPU."""
    model = "spot" if queued.spot else "on_demand"
    price = _price(CLOUD_TPU, queued.accelerator_type, queued.zone, model)
    nodes = max(1, len(queued.nodes))
    known = {**shared(QueuedTpu, queued), "error": str(queued.error) if queued.error else None}
    return QueuedTpu(
        **known,
        **type_facts(queued.accelerator_type, nodes),
        usd_per_hour=None if price is None else round(price * nodes, 4),
        as_of=now,
    )


def about_prices() -> str:
    """Say how costs are calculated."""
    as_of = load_data("prices")["as_of"]
    return f"list prices read on {as_of}, times the time since the request, by the service's clock"


def expires_at(node: Node) -> datetime | None:
    """Return when a TPU expires: its time to live counts from the service's own create time.

    Compute Engine ends it itself, a time to live after it has started.
    """
    if node.provider == GCE:
        return node.expires
    ttl_s = _ttl_of(node.labels)
    return None if ttl_s is None else node.created + timedelta(seconds=ttl_s)


def _ttl_of(labels: Mapping[str, str]) -> int | None:
    """Read the time to live of a TPU from its labels; None without a valid one."""
    text = labels.get(LABEL_TTL_S, "")
    if not (text.isascii() and text.isdigit()) or len(text) > len(str(_MAX_TTL_S)):
        return None
    return min(int(text), _MAX_TTL_S)


def price_now(node: Node) -> float | None:
    """Return what a node costs per hour now: 0 when it is dead or stopped; None if unknown.

    A slice that is dead may have VMs that still run.
    """
    share = node.billed_share
    if share == 0 or (share is None and node.state in _FREE_STATES):
        return 0.0
    price = _price(node.provider, node.accelerator_type, node.zone, model_of(node))
    return price if price is None or share is None else round(price * share, 4)


@cache
def known_type(accelerator_type: str) -> AcceleratorType | None:
    """Return our data about a type; None if it is unknown."""
    try:
        return describe(accelerator_type)
    except UsageError:
        return None


def type_facts(accelerator_type: str, number: int = 1) -> dict[str, Any]:
    """Return the generation and the chips of some TPUs of a type; None where it is unknown."""
    kind = known_type(accelerator_type)
    return {
        "generation": kind.generation if kind else None,
        "chips": kind.chips * number if kind else None,
    }


@cache
def _price(control_plane: str, accelerator_type: str, zone: str, model: str) -> float | None:
    if known_type(accelerator_type) is None:
        return None
    return list_price(control_plane, accelerator_type, zone, model)


def _workers(node: Node, expected: int) -> tuple[Worker, ...]:
    found = tuple(
        Worker(
            index,
            endpoint.internal_ip,
            endpoint.external_ip,
            node.state if endpoint.internal_ip or endpoint.external_ip else NO_ADDRESS,
        )
        for index, endpoint in enumerate(node.endpoints)
    )
    missing = range(len(found), expected)
    return (*found, *(Worker(index, None, None, NO_ADDRESS) for index in missing))
