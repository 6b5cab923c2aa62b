"""Which planned fault is due: the counting of calls and of nodes."""

import hashlib
import heapq
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any

from tpuctl.emulator.methods import Call
from tpuctl.emulator.records import Key, Node, NodeSpec, Operation, Queued
from tpuctl.emulator.refusals import not_found, refusal
from tpuctl.emulator.scenario import CallFault, NodeEvent, Scenario, ZonePlan, quota_id
from tpuctl.hardware.types import AcceleratorType


class Faults:
    """The faults of a scenario, and how often each was matched."""

    def __init__(self, scenario: Scenario) -> None:
        self._plans = scenario.faults
        self.counts = [0] * len(self._plans)

    def of_call(self, call: Call) -> CallFault | None:
        """Count a call, and give the first fault that is due; every match counts as one."""
        due = [
            plan
            for index, plan in enumerate(self._plans)
            if isinstance(plan, CallFault)
            and plan.on == call.method
            and _matches(plan, call.zone, call.name)
            and self._is_due(index, plan)
        ]
        return due[0] if due else None

    def unreachable(self, call: Call, zones: Iterable[str]) -> set[str]:
        """Count a call for all zones against the faults of single zones; name the zones that fail.

        A fault for all zones ("*") is one of the call itself.
        """
        lost: set[str] = set()
        for index, plan in enumerate(self._plans):
            if isinstance(plan, CallFault) and plan.on == call.method and plan.zone not in "*-":
                hit = {zone for zone in zones if _matches(plan, zone, call.name)}
                if hit and self._is_due(index, plan):
                    lost |= hit
        return lost

    def of_node(self, key: Key) -> list[NodeEvent]:
        """Count a new incarnation of a node, and give what will happen to it."""
        return [
            plan
            for index, plan in enumerate(self._plans)
            if isinstance(plan, NodeEvent)
            and _matches(plan, key.zone, key.name)
            and self._is_due(index, plan)
        ]

    def _is_due(self, index: int, plan: CallFault | NodeEvent) -> bool:
        self.counts[index] += 1
        count = self.counts[index]
        return count % plan.nth == 0 if plan.every else count == plan.nth


def _matches(plan: CallFault | NodeEvent, zone: str, name: str) -> bool:
    return fnmatchcase(zone, plan.zone) and fnmatchcase(name, plan.name)


@dataclass(order=True)
class Event:
    """Something that will happen at a moment that is already known."""

    at: datetime
    number: int
    act: Callable[..., None] = field(compare=False)
    about: tuple[Any, ...] = field(compare=False)


class World:
    """The state of the service at `now`.

    Time is only ever passed in (`state.apply`), and everything that falls due in between happens at
    its own moment, so that it makes no difference how often somebody looks. `changes` counts what
    requests have changed. `touched` are queued resources, and `freed`
    zones, that have to be looked at again.
    """

    def __init__(self, scenario: Scenario, *, seed: str, now: datetime) -> None:
        self.scenario, self.seed, self.now = scenario, seed, now
        self.faults = Faults(scenario)
        self.nodes: dict[Key, Node] = {}
        self.queued: dict[Key, Queued] = {}
        self.operations: dict[Key, Operation] = {}
        self.requests: dict[tuple[str, str, str], tuple[str, str, Operation]] = {}
        self._held_chips: Counter[tuple[str, bool]] = Counter()
        self._quota_chips: Counter[tuple[str, str, bool]] = Counter()
        self.touched: set[Key] = set()
        self.freed: set[str] = set()
        self.changes = 0
        self._agenda: list[Event] = []
        self._numbers = 0

    @property
    def revision(self) -> int:
        """A number that grows with every call that leaves a trace."""
        return self.changes + sum(self.faults.counts)

    def number(self) -> int:
        """A number that nothing else in this world has."""
        self._numbers += 1
        return self._numbers

    def digest(self, what: object) -> str:
        """Hexadecimal digits that only this world gives to that."""
        return hashlib.sha256(f"{self.seed}/{what}".encode()).hexdigest()

    def after(self, seconds: float, act: Callable[..., None], *about: Any) -> None:
        """Let something happen later: `act(world, *about)`."""
        at = self.now + timedelta(seconds=seconds)
        heapq.heappush(self._agenda, Event(at, self.number(), act, about))

    def next_due(self, now: datetime) -> Event | None:
        """Take the next event that is due by `now`, and move the time to its moment."""
        if not self._agenda or self._agenda[0].at > now:
            return None
        event = heapq.heappop(self._agenda)
        self.now = max(self.now, event.at)
        return event

    def zone(self, project: str, zone: str) -> ZonePlan:
        """The plan of a zone; refuses one that does not exist."""
        plan = self.scenario.zones.get(zone)
        if plan is None:
            raise refusal("zone_hidden", zone=zone, project=project)
        return plan

    def node(self, key: Key) -> Node:
        """A node by its name; refuses one that does not exist."""
        if node := self.nodes.get(key):
            return node
        raise not_found(key.path("nodes"))

    def queued_resource(self, key: Key) -> Queued:
        """A queued resource by its name; refuses one that does not exist."""
        if queued := self.queued.get(key):
            return queued
        raise not_found(key.path("queuedResources"))

    def nodes_of(self, queued: Queued) -> list[Node]:
        """The nodes that a queued resource has now."""
        nodes = (self.nodes.get(key) for key in queued.parts)
        return [node for node in nodes if node and node.queued == queued.key]

    def free_chips(self, zone: str, *, reserved: bool) -> int:
        """How many chips nobody holds, in the reservation or outside of it."""
        plan = self.scenario.zones[zone]
        chips = plan.reserved_chips if reserved else plan.capacity_chips
        return chips - self._held_chips[zone, reserved]

    def used_quota(self, project: str, zone: str, *, spot: bool) -> int:
        """How many chips count against the quota: also dead ones, and those that only wait."""
        return self._quota_chips[project, zone, spot]

    def require_quota(self, key: Key, specs: list[NodeSpec]) -> None:
        """Refuse what the project may not have here."""
        spot, kind = specs[0].spot, specs[0].type
        wanted = sum(spec.type.chips for spec in specs)
        plan = self.scenario.zones[key.zone]
        limit = plan.spot_quota_chips if spot else plan.quota_chips
        if self.used_quota(key.project, key.zone, spot=spot) + wanted > limit:
            raise refusal(
                "quota",
                quota=quota_id(kind.generation, spot=spot),
                limit=limit * per_chip(kind),
                zone=key.zone,
                project=key.project,
            )

    def require_free_name(self, key: Key) -> None:
        """Refuse the name of a node that exists, in whatever state."""
        if key in self.nodes:
            raise refusal("already_exists", resource=key.path("nodes"))

    def keep(self, node: Node) -> None:
        """Let a node be there; under a queued resource its quota is that one's."""
        self.nodes[node.key] = node
        if node.queued is None:
            self._quota_chips[node.key.project, node.key.zone, node.spec.spot] += node.chips

    def forget(self, node: Node) -> None:
        """Let a node be gone: its name, its chips, its quota."""
        if self.nodes.get(node.key) is not node:
            return
        del self.nodes[node.key]
        self.release(node)
        if node.queued is None:
            self._quota_chips[node.key.project, node.key.zone, node.spec.spot] -= node.chips

    def keep_queued(self, queued: Queued) -> None:
        """Let a queued resource be there, and the quota of all of its nodes be used."""
        self.queued[queued.key] = queued
        self._quota_chips[queued.key.project, queued.key.zone, queued.spot] += queued.chips

    def forget_queued(self, queued: Queued) -> None:
        """Let a queued resource be gone, and its quota be free."""
        if self.queued.get(queued.key) is queued:
            del self.queued[queued.key]
            self._quota_chips[queued.key.project, queued.key.zone, queued.spot] -= queued.chips

    def hold(self, node: Node) -> None:
        """Give a node its chips."""
        if not node.holds_chips:
            node.holds_chips = True
            self._held_chips[node.key.zone, node.spec.reserved] += node.chips

    def release(self, node: Node) -> None:
        """Take the chips of a node back, and have what depends on them looked at again."""
        if node.holds_chips:
            node.holds_chips = False
            self._held_chips[node.key.zone, node.spec.reserved] -= node.chips
            self.freed.add(node.key.zone)
        self.touch(node)

    def touch(self, node: Node) -> None:
        """Have the queued resource of a node looked at again."""
        if node.queued:
            self.touched.add(node.queued)


def per_chip(kind: AcceleratorType) -> int:
    """How many of what Google counts in a quota one chip is: cores in some families."""
    return int(kind.accelerator_type.rpartition("-")[2]) // kind.chips


def timestamp(moment: datetime) -> str:
    """A moment in the spelling of the API."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
