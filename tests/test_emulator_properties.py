"""Invariants of the service, whatever is requested and whenever it is looked at."""

import json
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime, timedelta, timezone
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tpuctl.emulator import nodes
from tpuctl.emulator.documents import node_document, operation_document, queued_document
from tpuctl.emulator.errors import ApiError
from tpuctl.emulator.faults import ERRORS, EVENTS
from tpuctl.emulator.methods import Call
from tpuctl.emulator.resources import DEAD
from tpuctl.emulator.scenario import parse_scenario
from tpuctl.emulator.state import advance, apply
from tpuctl.emulator.world import World

pytestmark = pytest.mark.slow

START = datetime(2026, 11, 20, 9, tzinfo=timezone.utc)
ZONE = "us-central1-a"
PLACE = f"projects/p/locations/{ZONE}"
LIMITS: dict[str, Any] = {
    "types": ["v5litepod-1", "v5litepod-4", "v5litepod-8", "v5litepod-16"],
    "capacity_chips": 16,
    "quota_chips": 24,
    "spot_quota_chips": 12,
    "reserved_chips": 8,
}
LONGEST_OPERATION_S = 1000
METHODS = (
    "create_node",
    "delete_node",
    "stop_node",
    "start_node",
    "update_node",
    "create_queued_resource",
    "delete_queued_resource",
    "reset_queued_resource",
)
NAMES = st.sampled_from(["a", "b"])
TYPES = st.sampled_from(LIMITS["types"])
SECONDS = st.sampled_from([0, 1, 5, 20, 25, 60, 100, 120, 121, 700])
FAULTS = st.one_of(
    st.fixed_dictionaries(
        {"on": st.sampled_from(METHODS), "error": st.sampled_from(ERRORS)},
        optional={
            "nth": st.integers(1, 3),
            "every": st.booleans(),
            "after_s": st.sampled_from([0, 20, 90]),
            "name": st.sampled_from(["a", "*"]),
        },
    ),
    st.fixed_dictionaries(
        {"on": st.just("node"), "event": st.sampled_from(EVENTS)},
        optional={
            "nth": st.integers(1, 3),
            "every": st.booleans(),
            "at_s": st.sampled_from([0, 60, 120, 200]),
            "for_s": st.sampled_from([0, 60]),
        },
    ),
)


def snapshot(world: World) -> Any:
    """Return everything that can be seen of a world, and who holds chips."""
    return (
        {key: node_document(node) for key, node in world.nodes.items()},
        {key: (node.holds_chips, node.previous_state) for key, node in world.nodes.items()},
        {key: queued_document(item) for key, item in world.queued.items()},
        {key: operation_document(item) for key, item in world.operations.items()},
        world.call_faults.counts,
        world.node_events.counts,
    )


def broken_rules(world: World) -> list[str]:
    """Name every rule that a world breaks."""
    held = {False: 0, True: 0}
    for node in world.nodes.values():
        held[node.spec.reserved] += node.chips * node.holds_chips
    owners = [node for node in world.nodes.values() if node.queued is None]
    used = {False: 0, True: 0}
    for node in owners:
        used[node.spec.spot] += node.chips
    for item in world.queued.values():
        used[item.spot] += item.chips
    counted = {spot: world.used_quota("p", ZONE, spot=spot) for spot in (False, True)}
    free = {
        False: LIMITS["capacity_chips"] - held[False],
        True: LIMITS["reserved_chips"] - held[True],
    }
    ready = [node for node in world.nodes.values() if node.state in ("READY", "REPAIRING")]
    idle = [node for node in world.nodes.values() if node.state in DEAD | {"STOPPED"}]
    active = [item for item in world.queued.values() if item.state == "ACTIVE"]
    ids = [node.id for node in world.nodes.values()]
    rules = {
        "capacity": held[False] <= LIMITS["capacity_chips"],
        "reservation": held[True] <= LIMITS["reserved_chips"],
        "quota": used[False] <= LIMITS["quota_chips"],
        "spot quota": used[True] <= LIMITS["spot_quota_chips"],
        "what is counted is what is there": counted == used
        and all(world.free_chips(ZONE, reserved=pool) == free[pool] for pool in free),
        "who is READY holds chips": all(node.holds_chips for node in ready),
        "who is READY has an address for every worker": all(
            len(node.addresses) == node.spec.type.workers for node in ready
        ),
        "the dead and stopped hold none": not any(node.holds_chips for node in idle),
        "ids are unique": len(set(ids)) == len(ids),
        "who is ACTIVE has all of its nodes": all(
            len(world.nodes_of(item)) == len(item.node_specs) for item in active
        ),
        "owners exist": all(
            node.queued is None or node.queued in world.queued for node in world.nodes.values()
        ),
    }
    return [name for name, holds in rules.items() if not holds]


class Service(RuleBasedStateMachine):
    """A world that gets random requests, and a twin that is advanced in between as well."""

    @initialize(faults=st.lists(FAULTS, max_size=4))
    def begin(self, faults: list[dict[str, Any]]) -> None:
        document = {"zones": {ZONE: LIMITS}, "provision_s": 100, "faults": faults}
        self.scenario = parse_scenario(document)
        self.now = START
        self.world = World(self.scenario, seed="s", now=START)
        self.twin = World(self.scenario, seed="s", now=START)
        self.log: list[str] = []

    def ask(self, method: str, name: str, **body: Any) -> None:
        call = Call(method, "p", ZONE, name, body)
        before = self.world.revision
        for world in (self.world, self.twin):
            try:
                apply(world, call, self.now)
            except ApiError:
                continue
        if self.world.revision != before:
            self.log.append(json.dumps({"at": self.now.isoformat(), "call": asdict(call)}))

    @rule(name=NAMES, type_=TYPES, kind=st.sampled_from(["", "spot", "reserved"]))
    def create_node(self, name: str, type_: str, kind: str) -> None:
        self.ask("create_node", name, node=_node(type_, kind))

    @rule(
        name=NAMES,
        type_=TYPES,
        spot=st.booleans(),
        valid_s=st.sampled_from([0, 30, 200]),
        slices=st.integers(1, 2),
        request_id=st.sampled_from(["", "r1", "r2"]),
    )
    def queue(
        self, name: str, type_: str, spot: bool, valid_s: int, slices: int, request_id: str
    ) -> None:
        several = {"multisliceParams": {"nodeCount": slices, "nodeIdPrefix": name}}
        which = {"nodeId": name} if slices == 1 else several
        spec = {"parent": PLACE, "node": _node(type_, ""), **which}
        queued: dict[str, Any] = {"tpu": {"nodeSpec": [spec]}}
        if spot:
            queued["spot"] = {}
        if valid_s:
            queued["queueingPolicy"] = {"validUntilDuration": f"{valid_s}s"}
        self.ask("create_queued_resource", name, queuedResource=queued, requestId=request_id)

    @rule(name=NAMES, method=st.sampled_from(["delete_node", "stop_node", "start_node"]))
    def change_node(self, name: str, method: str) -> None:
        self.ask(method, name)

    @rule(name=NAMES, value=st.sampled_from(["x", "y", "Not Valid"]))
    def label(self, name: str, value: str) -> None:
        self.ask("update_node", name, updateMask="labels", node={"labels": {"k": value}})

    @rule(name=NAMES, force=st.booleans())
    def delete_queued(self, name: str, force: bool) -> None:
        self.ask("delete_queued_resource", name, force=force)

    @rule(name=NAMES)
    def reset(self, name: str) -> None:
        self.ask("reset_queued_resource", name)

    @rule(seconds=SECONDS, looks=st.integers(0, 5))
    def wait(self, seconds: int, looks: int) -> None:
        for look in range(looks):
            advance(self.twin, self.now + timedelta(seconds=seconds * look / max(looks, 1)))
        self.now += timedelta(seconds=seconds)
        advance(self.world, self.now)

    @precondition(lambda self: hasattr(self, "world"))
    @invariant()
    def no_rule_is_broken(self) -> None:
        advance(self.twin, self.now)
        assert broken_rules(self.world) == []
        assert snapshot(self.world) == snapshot(self.twin)

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        again = World(self.scenario, seed="s", now=START)
        for line in map(json.loads, self.log):
            try:
                apply(again, Call(**line["call"]), datetime.fromisoformat(line["at"]))
            except ApiError:
                continue
        advance(again, self.now)
        assert snapshot(again) == snapshot(self.world)
        advance(self.world, self.now + timedelta(seconds=LONGEST_OPERATION_S))
        assert [item for item in self.world.operations.values() if not item.ended] == []
        pending = {"CREATING", "DELETING", "STOPPING", "STARTING"}
        alone = (node for node in self.world.nodes.values() if node.queued is None)
        assert [node.state for node in alone if node.state in pending] == []


def _node(type_: str, kind: str) -> dict[str, Any]:
    scheduling = {"schedulingConfig": {kind: True}} if kind else {}
    return {"acceleratorType": type_, "runtimeVersion": "v2-alpha-tpuv5-lite", **scheduling}


TestService = Service.TestCase
TestService.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)


def _one_ready_node() -> World:
    world = World(parse_scenario({"zones": {ZONE: LIMITS}}), seed="s", now=START)
    apply(world, Call("create_node", "p", ZONE, "a", {"node": _node("v5litepod-16", "")}), START)
    advance(world, START + timedelta(seconds=120))
    return world


def _overbook(world: World) -> None:
    call = Call("create_node", "p", ZONE, "b", {"node": _node("v5litepod-4", "")})
    apply(world, call, world.now)
    world.allocate_chips(next(node for node in world.nodes.values() if node.key.name == "b"))


def _lose_an_address(world: World) -> None:
    next(iter(world.nodes.values())).addresses = ()


def _die_without_release(world: World) -> None:
    next(iter(world.nodes.values())).state = "PREEMPTED"


def _lose_without_counting(world: World) -> None:
    world.nodes.clear()


@pytest.mark.parametrize(
    ("break_it", "rule_name"),
    [
        (_overbook, "capacity"),
        (_lose_an_address, "who is READY has an address for every worker"),
        (_lose_without_counting, "what is counted is what is there"),
        (_die_without_release, "the dead and stopped hold none"),
    ],
)
def test_the_rules_can_be_broken(break_it: Callable[[World], None], rule_name: str) -> None:
    world = _one_ready_node()
    assert broken_rules(world) == []
    break_it(world)
    assert broken_rules(world) == [rule_name]


def test_a_change_by_looking_would_be_noticed() -> None:
    world, twin = _one_ready_node(), _one_ready_node()
    assert snapshot(world) == snapshot(twin)
    nodes.mark_deleting(twin, next(iter(twin.nodes.values())))
    assert snapshot(world) != snapshot(twin)
