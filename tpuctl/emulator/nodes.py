"""Nodes: made, stopped, started, changed and deleted by requests; struck by planned events."""

import copy
from collections.abc import Callable
from dataclasses import replace

from tpuctl.emulator import operations
from tpuctl.emulator.documents import node_document
from tpuctl.emulator.methods import Call, Document
from tpuctl.emulator.operations import Failure
from tpuctl.emulator.records import DEAD, Key, Node, NodeSpec
from tpuctl.emulator.refusals import bad_request, not_found, refusal
from tpuctl.emulator.scenario import NodeEvent
from tpuctl.emulator.validate import check_fields, check_node_id, read_node
from tpuctl.emulator.world import World, timestamp

# Capacity errors were seen up to half a minute after the request (facts of 2026-11-20).
STOCKOUT_S = 20.0
STOP_S = START_S = 30.0
UPDATE_S = 5.0
_CHANGEABLE = ("description", "labels", "metadata", "tags", "networkConfig.enableExternalIps")


def create(world: World, call: Call, failure: Failure | None) -> Document:
    """Accept a node; whether there is capacity for it comes out in the operation."""
    zone = world.zone(call.project, call.zone)
    key = Key(call.project, call.zone, check_node_id(call.name))
    spec = read_node(zone, call.body.get("node", {}))
    world.require_free_name(key)
    world.require_quota(key, [spec])
    missing = spec.type.chips > world.free_chips(key.zone, reserved=spec.reserved)
    if missing and failure is None:
        kind = "reservation" if spec.reserved else "stockout"
        failure = Failure(STOCKOUT_S, refusal(kind, zone=key.zone))
    node = add(world, key, spec, has_chips=failure is None)
    return operations.begin(
        world,
        "create",
        node,
        lasts_s=world.scenario.provision_s,
        done=become_ready,
        undone=World.forget,
        failure=failure,
    )


def add(
    world: World,
    key: Key,
    spec: NodeSpec,
    *,
    has_chips: bool,
    queued: Key | None = None,
    multislice: bool = False,
) -> Node:
    """Let a node come into being, and plan what will happen to it.

    One that gets no chips will never be a node, and is none that a scenario counts.
    """
    world.changes += 1
    identity = int(world.digest(f"node {world.number()}")[:15], 16)
    own = replace(spec, document=copy.deepcopy(spec.document))
    node = Node(key, identity, world.now, own, queued, multislice)
    world.keep(node)
    if has_chips:
        world.hold(node)
        for event in world.faults.of_node(key):
            world.after(event.at_s, strike, node, event)
    return node


def become_ready(world: World, node: Node) -> None:
    """Let a node that is being created or started be READY, with an address for every worker."""
    if world.nodes.get(node.key) is not node or node.state not in ("CREATING", "STARTING"):
        return
    if not node.addresses:
        node.addresses = tuple(_addresses(world, node))
    node.state, node.health = "READY", "HEALTHY"
    world.touch(node)
    for event in node.waiting:
        world.after(0, strike, node, event)
    node.waiting.clear()


def get(world: World, call: Call) -> Document:
    """Show a node."""
    return node_document(world.node(_key(call)))


def delete(world: World, call: Call, failure: Failure | None) -> Document:
    """Begin to delete a node, in whatever state but DELETING."""
    node = world.node(_key(call))
    if node.state == "DELETING":
        raise refusal("wrong_state", verb="delete", state=node.state)
    enter_deletion(world, node)
    world.touch(node)
    return operations.begin(
        world,
        "delete",
        node,
        lasts_s=world.scenario.delete_s,
        done=World.forget,
        undone=restore,
        failure=failure,
        answers=False,
    )


def enter_deletion(world: World, node: Node) -> None:
    """Let a node be DELETING; whatever was going on with it ends."""
    world.changes += 1
    operations.cut_short(world, node, refusal("cancelled", resource=node.path))
    if node.state != "DELETING":
        node.before, node.state, node.health = node.state, "DELETING", None


def restore(world: World, node: Node) -> None:
    """Take back a deletion that failed."""
    if world.nodes.get(node.key) is not node or node.state != "DELETING":
        return
    if node.before == "CREATING" and not node.holds_chips:
        world.forget(node)
        return
    node.state = {"STOPPING": "READY", "REPAIRING": "READY"}.get(node.before, node.before)
    if node.state == "STARTING" and not node.holds_chips:
        node.state = "STOPPED"
    node.health = "HEALTHY" if node.state == "READY" else None
    if node.state in ("CREATING", "STARTING"):
        world.after(world.scenario.provision_s, become_ready, node)
    world.touch(node)


def stop(world: World, call: Call, failure: Failure | None) -> Document:
    """Begin to stop a node; only a READY one on a single host can be."""
    node = _in_state(world, call, "stop", "READY")
    if node.spec.type.workers > 1:
        raise bad_request("TPU slices of several hosts cannot be stopped.")
    node.before, node.state, node.health = node.state, "STOPPING", None
    return operations.begin(
        world, "stop", node, lasts_s=STOP_S, done=_be_stopped, undone=_go_back, failure=failure
    )


def start(world: World, call: Call, failure: Failure | None) -> Document:
    """Begin to start a stopped node, if there still is capacity for it."""
    node = _in_state(world, call, "start", "STOPPED")
    if failure is None and node.chips > world.free_chips(
        node.key.zone, reserved=node.spec.reserved
    ):
        failure = Failure(STOCKOUT_S, refusal("stockout", zone=node.key.zone))
    node.before, node.state = node.state, "STARTING"
    if failure is None:
        world.hold(node)
    return operations.begin(
        world, "start", node, lasts_s=START_S, done=become_ready, undone=_go_back, failure=failure
    )


def update(world: World, call: Call, failure: Failure | None) -> Document:
    """Begin to change what can be changed of a node that is READY or STOPPED."""
    paths = [path for path in str(call.body.get("updateMask", "")).split(",") if path]
    if not paths or any(path not in _CHANGEABLE for path in paths):
        raise bad_request(f"update_mask must name some of {', '.join(_CHANGEABLE)}, not {paths}.")
    asked = call.body.get("node", {})
    check_fields(asked)
    node = _in_state(world, call, "update", "READY", "STOPPED")

    def change(world: World, node: Node) -> None:
        for path in paths:
            _copy(asked, node.spec.document, path.split("."))

    return operations.begin(
        world, "update", node, lasts_s=UPDATE_S, done=change, undone=_stay, failure=failure
    )


def guest_attributes(world: World, call: Call) -> Document:
    """Show what the workers of a node have published about themselves."""
    node = world.node(_key(call))
    query = str(call.body.get("queryPath", "")).strip("/")
    wanted = [str(worker) for worker in call.body.get("workerIds", [])]
    known = [str(index) for index in range(node.spec.type.workers)]
    if unknown := [worker for worker in wanted if worker not in known]:
        raise bad_request(f"There is no worker {unknown[0]}; workers are 0 to {known[-1]}.")
    found = []
    for worker in wanted or known:
        published = node.published(int(worker))
        items = [
            {"namespace": path.partition("/")[0], "key": path.partition("/")[2], "value": value}
            for path, value in sorted(published.items())
            if path == query or not query or path.startswith(f"{query}/")
        ]
        found.append({"queryPath": query, "queryValue": {"items": items}})
    return {"guestAttributes": found}


def publish_guest_attribute(world: World, call: Call) -> Document:
    """Take what a worker writes to its metadata server."""
    node = world.node(_key(call))
    world.changes += 1
    worker, path = int(call.body["worker"]), str(call.body["path"])
    node.guest_attributes.setdefault(worker, {})[path] = str(call.body["value"])
    return {}


def strike(world: World, node: Node, event: NodeEvent) -> None:
    """Let a planned event happen to a node that still lives."""
    lives = world.nodes.get(node.key) is node and node.state not in DEAD | {"DELETING"}
    if not lives:
        return
    if event.event not in _AT_ONCE and node.state != "READY":
        node.waiting.append(event)
        return
    _EVENTS[event.event](world, node, event)


def _preempt(world: World, node: Node, _: NodeEvent) -> None:
    # What SkyPilot saw of a node that was preempted while it was being created.
    lost = refusal("wrong_state", verb="update", state="PREEMPTED")
    operations.cut_short(world, node, lost)
    if node.state == "CREATING":
        world.forget(node)
    else:
        _die(world, node, "PREEMPTED")


def _vanish(world: World, node: Node, _: NodeEvent) -> None:
    operations.cut_short(world, node, not_found(node.path))
    world.forget(node)


def _suspend(world: World, node: Node, _: NodeEvent) -> None:
    operations.cut_short(world, node, refusal("wrong_state", verb="update", state="TERMINATED"))
    if node.queued:
        enter_deletion(world, node)
        world.after(world.scenario.delete_s, World.forget, node)
        world.queued[node.queued].initiator = "SERVICE"
        world.touch(node)
    else:
        _die(world, node, "TERMINATED")


def _maintain(world: World, node: Node, event: NodeEvent) -> None:
    node.state, node.health = "REPAIRING", "UNHEALTHY_MAINTENANCE"
    node.health_description = "The node is under maintenance."
    world.after(event.for_s, _end_maintenance, node)


def _end_maintenance(world: World, node: Node) -> None:
    if world.nodes.get(node.key) is node and node.state == "REPAIRING":
        node.state, node.health, node.health_description = "READY", "HEALTHY", ""
        for event in node.waiting:
            world.after(0, strike, node, event)
        node.waiting.clear()


def _worker_down(world: World, node: Node, event: NodeEvent) -> None:
    worker = event.worker % node.spec.type.workers
    node.down_workers.add(worker)
    node.health = "TIMEOUT"
    node.health_description = f"Worker {worker} does not respond."
    node.symptoms.append(
        {
            "createTime": timestamp(world.now),
            "symptomType": "MESH_BUILD_FAIL",
            "details": f"worker {worker} cannot be reached",
            "workerId": str(worker),
        }
    )


def _worker_busy(world: World, node: Node, event: NodeEvent) -> None:
    node.busy_workers[event.worker % node.spec.type.workers] = event.duty_cycle_percent


_AT_ONCE = ("preempt", "vanish", "suspend")
_EVENTS: dict[str, Callable[[World, Node, NodeEvent], None]] = {
    "preempt": _preempt,
    "vanish": _vanish,
    "suspend": _suspend,
    "maintenance": _maintain,
    "worker_down": _worker_down,
    "worker_busy": _worker_busy,
}


def _die(world: World, node: Node, state: str) -> None:
    node.state, node.health = state, None
    world.release(node)


def _be_stopped(world: World, node: Node) -> None:
    if node.state == "STOPPING":
        node.state = "STOPPED"
        world.release(node)


def _go_back(world: World, node: Node) -> None:
    if node.state in ("STOPPING", "STARTING"):
        node.state = node.before
        node.health = "HEALTHY" if node.state == "READY" else None


def _stay(world: World, node: Node) -> None:
    """Nothing was begun that has to be taken back."""


def _in_state(world: World, call: Call, verb: str, *states: str) -> Node:
    node = world.node(_key(call))
    if node.state not in states:
        raise refusal("wrong_state", verb=verb, state=node.state)
    if operations.is_busy(node):
        raise refusal("busy")
    world.changes += 1
    return node


def _copy(source: Document, target: Document, path: list[str]) -> None:
    """Copy the value at a path, or remove it where the source has none."""
    key, below = path[0], path[1:]
    if below:
        target[key] = dict(target.get(key, {}))
        _copy(source.get(key, {}), target[key], below)
    elif key in source:
        target[key] = source[key]
    else:
        target.pop(key, None)


def _addresses(world: World, node: Node) -> list[tuple[str, str]]:
    """An address inside and one outside for every worker.

    All are of this machine: practice reaches no stranger, and SSH reaches an emulated worker.
    """
    networks = [node.spec.document.get("networkConfig", {})]
    networks += node.spec.document.get("networkConfigs", [])[:1]
    is_open = any(network.get("enableExternalIps") for network in networks)
    found = []
    for _ in range(node.spec.type.workers):
        number = world.number()
        low = f"{number >> 8 & 255}.{number & 255}"
        outer = f"127.{192 + (number >> 16) % 32}.{low}" if is_open else ""
        found.append((f"127.{64 + (number >> 16) % 64}.{low}", outer))
    return found


def _key(call: Call) -> Key:
    return Key(call.project, call.zone, call.name)
