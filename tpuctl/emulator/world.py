"""The whole state of the emulated service, and the events that are due later."""

import hashlib
import heapq
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from tpuctl.emulator.compute.resources import ComputeEngine
from tpuctl.emulator.errors import api_error, not_found
from tpuctl.emulator.faults import CallFault, FaultCounts, fault_matches
from tpuctl.emulator.methods import Call
from tpuctl.emulator.resources import (
    Charge,
    Host,
    Key,
    Node,
    NodeSpec,
    Operation,
    QueuedResource,
    charge,
)
from tpuctl.emulator.scenario import Scenario, ZonePlan, quota_id
from tpuctl.hardware.types import AcceleratorType


@dataclass(order=True)
class Event:
    """Something that will happen at a known time: `action(world, *arguments)`."""

    at: datetime
    number: int
    action: Callable[..., None] = field(compare=False)
    arguments: tuple[Any, ...] = field(compare=False)


class World:
    """The state of the service at `now`.

    Time is passed in (`state.apply`), and every event happens at its own time, so the result
    does not depend on how often the world is queried. `changes` counts the changes by requests.
    `changed_queued` are the queued resources, and `freed_zones` the zones, to update.
    """

    def __init__(self, scenario: Scenario, *, seed: str, now: datetime) -> None:
        self.scenario, self.seed, self.now = scenario, seed, now
        self.call_faults = FaultCounts(scenario.call_faults)
        self.node_events = FaultCounts(scenario.node_events)
        self.nodes: dict[Key, Node] = {}
        self.queued: dict[Key, QueuedResource] = {}
        self.operations: dict[Key, Operation] = {}
        self.requests: dict[tuple[str, str, str], tuple[str, str, Operation]] = {}
        self.compute = ComputeEngine()
        self.charges: list[Charge] = []
        self._held_chips: Counter[tuple[str, bool]] = Counter()
        self._quota_chips: Counter[tuple[str, str, bool]] = Counter()
        self.changed_queued: set[Key] = set()
        self.freed_zones: set[str] = set()
        self.changes = 0
        self._events: list[Event] = []
        self._numbers = 0
        self.began = now
        for zone in scenario.zones.values():
            for at in sorted({at for steps in zone.pools.values() for at in steps if at}):
                self.after(at, lambda world, name: world.freed_zones.add(name), zone.name)

    @property
    def revision(self) -> int:
        """A number that grows with every call that has to be stored."""
        return self.changes + sum(self.call_faults.counts) + sum(self.node_events.counts)

    def number(self) -> int:
        """Return a number that is unique in this world."""
        self._numbers += 1
        return self._numbers

    def digest(self, what: object) -> str:
        """Return hexadecimal digits that depend only on this world and `what`."""
        return hashlib.sha256(f"{self.seed}/{what}".encode()).hexdigest()

    def after(self, seconds: float, action: Callable[..., None], *arguments: Any) -> None:
        """Schedule `action(world, *arguments)`."""
        # The number keeps events of the same time in the order in which they were scheduled.
        at = self.now + timedelta(seconds=seconds)
        heapq.heappush(self._events, Event(at, self.number(), action, arguments))

    def pop_due(self, now: datetime) -> Event | None:
        """Remove and return the next event due by `now`; advances the time to that event."""
        if not self._events or self._events[0].at > now:
            return None
        event = heapq.heappop(self._events)
        self.now = max(self.now, event.at)
        return event

    def zone(self, project: str, zone: str) -> ZonePlan:
        """Return the plan of a zone; raises ApiError if it does not exist."""
        plan = self.scenario.zones.get(zone)
        if plan is None:
            raise api_error("zone_hidden", zone=zone, project=project)
        return plan

    def node(self, key: Key) -> Node:
        """Return a node; raises ApiError if it does not exist."""
        if node := self.nodes.get(key):
            return node
        raise not_found(key.path("nodes"))

    def queued_resource(self, key: Key) -> QueuedResource:
        """Return a queued resource; raises ApiError if it does not exist."""
        if queued := self.queued.get(key):
            return queued
        raise not_found(key.path("queuedResources"))

    def operation(self, key: Key) -> Operation:
        """Return an operation; raises ApiError if it does not exist."""
        if operation := self.operations.get(key):
            return operation
        raise not_found(key.path("operations"))

    def nodes_of(self, queued: QueuedResource) -> list[Node]:
        """Return the present nodes of a queued resource."""
        nodes = (self.nodes.get(key) for key in queued.node_specs)
        return [node for node in nodes if node and node.queued == queued.key]

    def free_chips(self, zone: str, *, reserved: bool) -> int:
        """Count the free chips in a zone, inside or outside its reservation."""
        plan = self.scenario.zones[zone]
        chips = plan.reserved_chips if reserved else plan.capacity_chips
        return chips - self._held_chips[zone, reserved]

    def unreachable_zones(self, call: Call) -> set[str]:
        """Count a call for all zones against the faults of each zone; return the zones that fail.

        A fault for every zone ("*") applies to the call itself.
        """

        def hit(plan: CallFault) -> set[str]:
            return {zone for zone in self.scenario.zones if fault_matches(plan, zone, call.name)}

        due = self.call_faults.due(
            lambda plan: plan.on == call.method and plan.zone not in ("*", "-") and bool(hit(plan))
        )
        return {zone for plan in due for zone in hit(plan)}

    def hosts(self) -> Iterator[Host]:
        """Return the nodes and the Compute Engine instances."""
        yield from self.nodes.values()
        yield from self.compute.instances.values()

    def used_quota(self, project: str, zone: str, *, spot: bool) -> int:
        """Count the chips that use quota, including those of dead nodes and waiting requests."""
        return self._quota_chips[project, zone, spot]

    def require_quota(self, key: Key, specs: list[NodeSpec]) -> None:
        """Raise ApiError if the project does not have enough quota for these nodes."""
        spot, kind = specs[0].spot, specs[0].type
        wanted = sum(spec.type.chips for spec in specs)
        plan = self.scenario.zones[key.zone]
        limit = plan.spot_quota_chips if spot else plan.quota_chips
        if self.used_quota(key.project, key.zone, spot=spot) + wanted > limit:
            raise api_error(
                "quota",
                quota=quota_id(kind.generation, spot=spot),
                limit=limit * quota_per_chip(kind),
                zone=key.zone,
                project=key.project,
            )

    def require_free_name(self, key: Key) -> None:
        """Raise ApiError if a node with this name exists, in any state."""
        if key in self.nodes:
            raise api_error("already_exists", resource=key.path("nodes"))

    def add_node(self, node: Node) -> None:
        """Add a node; a node of a queued resource uses that resource's quota."""
        self.nodes[node.key] = node
        if node.queued is None:
            self._quota_chips[node.key.project, node.key.zone, node.spec.spot] += node.chips

    def remove_node(self, node: Node) -> None:
        """Remove a node, which frees its name, chips and quota."""
        if self.nodes.get(node.key) is not node:
            return
        del self.nodes[node.key]
        self.release_chips(node)
        if node.queued is None:
            self._quota_chips[node.key.project, node.key.zone, node.spec.spot] -= node.chips

    def add_queued(self, queued: QueuedResource) -> None:
        """Add a queued resource, which uses the quota for all its nodes."""
        self.queued[queued.key] = queued
        self._quota_chips[queued.key.project, queued.key.zone, queued.spot] += queued.chips

    def remove_queued(self, queued: QueuedResource) -> None:
        """Remove a queued resource, which frees its quota."""
        if self.queued.get(queued.key) is queued:
            del self.queued[queued.key]
            self._quota_chips[queued.key.project, queued.key.zone, queued.spot] -= queued.chips

    def allocate_chips(self, node: Host) -> None:
        """Give a node its chips."""
        if not node.holds_chips:
            node.holds_chips = True
            self._held_chips[node.key.zone, node.reserved] += node.chips

    def release_chips(self, node: Host) -> None:
        """Release the chips of a node for others that wait for them, and stop billing it."""
        if node.holds_chips:
            node.holds_chips = False
            self._held_chips[node.key.zone, node.reserved] -= node.chips
            self.freed_zones.add(node.key.zone)
        if charge := self.charge(node):
            self.charges.append(charge)
            node.billed_from = None
        if isinstance(node, Node):
            self.node_changed(node)

    def charge(self, node: Host) -> Charge | None:
        """Return the cost so far of using a node; None while it is not billed."""
        if node.billed_from is None:
            return None
        return charge(node, (self.now - node.billed_from).total_seconds())

    def bill(self) -> list[Charge]:
        """Return the cost so far of every use of chips, those that have ended first."""
        running = filter(None, map(self.charge, self.hosts()))
        return [*self.charges, *running]

    def node_changed(self, node: Node) -> None:
        """Mark the queued resource of a node for an update."""
        if node.queued:
            self.changed_queued.add(node.queued)


def quota_per_chip(kind: AcceleratorType) -> int:
    """Return how many units of Google's quota one chip uses; some families count cores."""
    return int(kind.accelerator_type.rpartition("-")[2]) // kind.chips
