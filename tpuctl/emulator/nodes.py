"""Nodes: what requests do to them, and what planned events do to them."""

import copy
from collections.abc import Callable
from dataclasses import replace

from tpuctl.emulator import operations
from tpuctl.emulator.errors import api_error, bad_request, not_found
from tpuctl.emulator.faults import NodeEvent, fault_matches
from tpuctl.emulator.methods import Call, Document
from tpuctl.emulator.operations import Failure
from tpuctl.emulator.resources import DEAD, INSTANCE, Host, Key, Node, NodeSpec, Target, timestamp
from tpuctl.emulator.validate import check_fields, check_node_id, read_node
from tpuctl.emulator.world import World

# Capacity errors were observed up to half a minute after the request (2026-11-20).
STOCKOUT_S = 20.0
STOP_S = START_S = 30.0
UPDATE_S = 5.0
MAINTENANCE_S = 600.0
_MUTABLE = (
    "description", "labels", "metadata", "tags", "dataDisks", "networkConfig.enableExternalIps",
)  # fmt: skip


def create(world: World, call: Call, failure: Failure | None) -> Document:
    """Accept a node; its operation fails if there is no capacity."""
    zone, key = world.zone(call.project, call.zone), Key.of(call)
    check_node_id(call.name)
    spec = read_node(zone, call.body.get("node", {}))
    world.require_free_name(key)
    world.require_quota(key, [spec])
    failure = failure or _stockout(world, key, spec)
    node = add_node(world, key, spec, has_chips=failure is None)
    return operations.start(
        world,
        "create",
        node,
        failure,
        takes_s=world.scenario.provision_s,
        then=make_ready,
        undo=World.remove_node,
    )


def add_node(
    world: World,
    key: Key,
    spec: NodeSpec,
    *,
    has_chips: bool,
    queued: Key | None = None,
    multislice: bool = False,
) -> Node:
    """Add a node that is being created, and schedule the events planned for it.

    A node that gets no chips will never exist, so the scenario's events do not count it.
    """
    world.changes += 1
    identity = int(world.digest(f"node {world.number()}")[:15], 16)
    # Slices of one queued resource share a spec; an update of one must not change the others.
    kind, own = spec.type, replace(spec, document=copy.deepcopy(spec.document))
    node = Node(
        key=key,
        id=identity,
        created=world.now,
        document=own.document,
        chips=kind.chips,
        chips_per_worker=kind.chips_per_worker,
        hbm_gib_per_chip=kind.hbm_gib_per_chip,
        accelerator_type=kind.accelerator_type,
        model="reserved" if spec.reserved else "spot" if spec.spot else "on_demand",
        state="CREATING",
        previous_state="CREATING",
        spec=own,
        queued=queued,
        multislice=multislice,
    )
    world.add_node(node)
    if has_chips:
        world.allocate_chips(node)
        node.billed_from = world.now
        for event in world.node_events.due(
            lambda plan: plan.on == "node" and fault_matches(plan, key.zone, key.name)
        ):
            world.after(event.at_s, apply_event, node, event)
    return node


def _stockout(world: World, key: Key, spec: NodeSpec) -> Failure | None:
    """Return how the operation fails if the zone does not have enough free chips."""
    if spec.type.chips <= world.free_chips(key.zone, reserved=spec.reserved):
        return None
    kind = "reservation" if spec.reserved else "stockout"
    return Failure(STOCKOUT_S, api_error(kind, zone=key.zone))


def make_ready(world: World, node: Node) -> None:
    """Make a node that is being created or started READY, with an address for every worker."""
    if world.nodes.get(node.key) is not node or node.state not in ("CREATING", "STARTING"):
        return
    if not node.addresses:
        node.addresses = tuple(_addresses(world, node))
    node.state, node.health = "READY", "HEALTHY"
    world.node_changed(node)
    _release_events(world, node)


def delete(world: World, call: Call, failure: Failure | None) -> Document:
    """Start to delete a node, in any state but DELETING."""
    node = world.node(Key.of(call))
    if node.state == "DELETING":
        raise api_error("wrong_state", verb="delete", state=node.state)
    mark_deleting(world, node)
    world.node_changed(node)
    return operations.start(
        world,
        "delete",
        node,
        failure,
        takes_s=world.scenario.delete_s,
        then=World.remove_node,
        undo=restore,
    )


def mark_deleting(world: World, node: Node) -> None:
    """Put a node in the state DELETING; its running operation fails."""
    world.changes += 1
    operations.abort(world, node, api_error("cancelled", resource=node.path))
    if node.state != "DELETING":
        node.previous_state, node.state, node.health = node.state, "DELETING", None


def restore(world: World, node: Node) -> None:
    """Return a node to its previous state after a failed deletion."""
    if world.nodes.get(node.key) is not node or node.state != "DELETING":
        return
    if node.previous_state == "CREATING" and not node.holds_chips:
        world.remove_node(node)
        return
    # The deletion aborted the running operation, so a transitional state would never end.
    node.state = node.previous_state
    if node.state in ("STOPPING", "REPAIRING"):
        node.state = "READY"
    if node.state == "STARTING" and not node.holds_chips:
        node.state = "STOPPED"
    node.health = "HEALTHY" if node.state == "READY" else None
    if node.state in ("CREATING", "STARTING"):
        world.after(world.scenario.provision_s, make_ready, node)
    world.node_changed(node)


def stop(world: World, call: Call, failure: Failure | None) -> Document:
    """Start to stop a node, which must be READY and single-host."""
    node = _in_state(world, call, "stop", "READY")
    if node.spec.type.workers > 1:
        raise bad_request("TPU slices of several hosts cannot be stopped.")
    node.previous_state, node.state, node.health = node.state, "STOPPING", None
    return operations.start(
        world, "stop", node, failure, takes_s=STOP_S, then=_make_stopped, undo=_revert
    )


def start(world: World, call: Call, failure: Failure | None) -> Document:
    """Start a stopped node; the operation fails if its capacity is gone."""
    node = _in_state(world, call, "start", "STOPPED")
    failure = failure or _stockout(world, node.key, node.spec)
    node.previous_state, node.state = node.state, "STARTING"
    if failure is None:
        world.allocate_chips(node)
        node.billed_from = world.now
    return operations.start(
        world, "start", node, failure, takes_s=START_S, then=make_ready, undo=_revert
    )


def update(world: World, call: Call, failure: Failure | None) -> Document:
    """Start to update the mutable fields of a READY or STOPPED node."""
    paths = [path for path in str(call.body.get("updateMask", "")).split(",") if path]
    if not paths or any(path not in _MUTABLE for path in paths):
        raise bad_request(f"update_mask must name some of {', '.join(_MUTABLE)}, not {paths}.")
    requested = call.body.get("node", {})
    check_fields(requested)
    node = _in_state(world, call, "update", "READY", "STOPPED")

    def change(world: World, node: Node) -> None:
        for path in paths:
            _copy(requested, node.document, path.split("."))
        if _MUTABLE[-1] in paths and node.addresses:
            outer = [
                (here[0], new[1])
                for here, new in zip(node.addresses, _addresses(world, node), strict=True)
            ]
            node.addresses = tuple(outer)

    return operations.start(
        world, "update", node, failure, takes_s=UPDATE_S, then=change, undo=do_nothing
    )


def maintain(world: World, call: Call, failure: Failure | None) -> Document:
    """Start maintenance of a node, as if the service had scheduled it."""
    node = _in_state(world, call, "maintain", "READY")
    return operations.start(
        world, "maintain", node, failure, takes_s=UPDATE_S, then=begin_maintenance, undo=do_nothing
    )


def begin_maintenance(world: World, node: Node) -> None:
    """Take a READY node down for ten minutes."""
    if node.state == "READY":
        _maintain(world, node, NodeEvent("*", "*", "maintenance", 0, 1, False, 0, MAINTENANCE_S))


def guest_attributes(world: World, call: Call) -> Document:
    """Return the guest attributes that the workers of a node have published."""
    node = world.node(Key.of(call))
    query = str(call.body.get("queryPath", "")).strip("/")
    # gcloud asks for the worker "" to get all of them.
    wanted = [str(worker) for worker in call.body.get("workerIds", []) if worker != ""]
    known = [str(index) for index in range(node.spec.type.workers)]
    if unknown := [worker for worker in wanted if worker not in known]:
        raise bad_request(f"Unknown worker {unknown[0]}: workers are 0 to {known[-1]}.")
    found = []
    for worker in wanted or known:
        items = attribute_items(node, int(worker), query)
        found.append({"queryPath": query, "queryValue": {"items": items}})
    return {"guestAttributes": found}


def attribute_items(host: Host, worker: int, query: str) -> list[Document]:
    """Return the guest attributes of a worker at one path, or at all paths."""
    return [
        {"namespace": path.partition("/")[0], "key": path.partition("/")[2], "value": value}
        for path, value in sorted(host.published_attributes(worker).items())
        if path == query or not query or path.startswith(f"{query}/")
    ]


def publish_guest_attribute(world: World, call: Call) -> Document:
    """Store a guest attribute that a worker writes to its metadata server."""
    key, number = Key.of(call), call.body["worker"]
    node: Host = world.compute.instances[key] if number == INSTANCE else world.node(key)
    world.changes += 1
    worker, path = 0 if number == INSTANCE else int(number), str(call.body["path"])
    node.guest_attributes.setdefault(worker, {})[path] = str(call.body["value"])
    return {}


def apply_event(world: World, node: Node, event: NodeEvent) -> None:
    """Apply a planned event to a node, unless the node is dead, deleted or being deleted."""
    if world.nodes.get(node.key) is not node or node.state in DEAD | {"DELETING"}:
        return
    if event.event not in _NEED_NOT_BE_READY and node.state != "READY":
        node.pending_events.append(event)
    else:
        _EVENTS[event.event](world, node, event)


def _release_events(world: World, node: Node) -> None:
    """Schedule the events that waited for the node to be READY."""
    for event in node.pending_events:
        world.after(0, apply_event, node, event)
    node.pending_events.clear()


def _preempt(world: World, node: Node, _: NodeEvent) -> None:
    # SkyPilot got this error when a node was preempted during creation.
    lost = api_error("wrong_state", verb="update", state="PREEMPTED")
    operations.abort(world, node, lost)
    if node.state == "CREATING":
        world.remove_node(node)
    else:
        _make_dead(world, node, "PREEMPTED")


def _vanish(world: World, node: Node, _: NodeEvent) -> None:
    operations.abort(world, node, not_found(node.path))
    world.remove_node(node)


def _suspend(world: World, node: Node, _: NodeEvent) -> None:
    operations.abort(world, node, api_error("wrong_state", verb="update", state="TERMINATED"))
    if node.queued:
        mark_deleting(world, node)
        world.after(world.scenario.delete_s, World.remove_node, node)
        world.queued[node.queued].initiator = "SERVICE"
        world.node_changed(node)
    else:
        _make_dead(world, node, "TERMINATED")


def _maintain(world: World, node: Node, event: NodeEvent) -> None:
    node.state, node.health = "REPAIRING", "UNHEALTHY_MAINTENANCE"
    node.health_description = "The node is under maintenance."
    world.after(event.for_s, _end_maintenance, node)


def _end_maintenance(world: World, node: Node) -> None:
    if world.nodes.get(node.key) is node and node.state == "REPAIRING":
        node.state, node.health, node.health_description = "READY", "HEALTHY", ""
        _release_events(world, node)


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


def worker_busy(_world: World, node: Host, event: NodeEvent) -> None:
    """Have another process hold the chips of a worker."""
    workers = node.chips // node.chips_per_worker
    node.busy_workers[event.worker % workers] = event.duty_cycle_percent


_NEED_NOT_BE_READY = ("preempt", "vanish", "suspend")
_EVENTS: dict[str, Callable[[World, Node, NodeEvent], None]] = {
    "preempt": _preempt,
    "vanish": _vanish,
    "suspend": _suspend,
    "maintenance": _maintain,
    "worker_down": _worker_down,
    "worker_busy": worker_busy,
}


def _make_dead(world: World, node: Node, state: str) -> None:
    node.state, node.health = state, None
    world.release_chips(node)


def _make_stopped(world: World, node: Node) -> None:
    if node.state == "STOPPING":
        node.state = "STOPPED"
        world.release_chips(node)


def _revert(world: World, node: Node) -> None:
    if node.state in ("STOPPING", "STARTING"):
        node.state = node.previous_state
        node.health = "HEALTHY" if node.state == "READY" else None


def do_nothing(_world: World, _target: Target) -> None:
    """Undo nothing: the operation changes its target only when it succeeds."""


def _in_state(world: World, call: Call, verb: str, *states: str) -> Node:
    node = world.node(Key.of(call))
    if node.state not in states:
        raise api_error("wrong_state", verb=verb, state=node.state)
    if operations.is_running(node):
        raise api_error("busy")
    world.changes += 1
    return node


def _copy(source: Document, target: Document, path: list[str]) -> None:
    """Copy the value at a path, or remove it if the source does not have it."""
    key, below = path[0], path[1:]
    if below:
        target[key] = dict(target.get(key, {}))
        _copy(source.get(key, {}), target[key], below)
    elif key in source:
        target[key] = source[key]
    else:
        target.pop(key, None)


def _addresses(world: World, node: Node) -> list[tuple[str, str]]:
    networks = [node.document.get("networkConfig", {})]
    networks += node.document.get("networkConfigs", [])[:1]
    is_open = any(network.get("enableExternalIps") for network in networks)
    return make_addresses(world, node.spec.type.workers, is_open=is_open)


def make_addresses(world: World, count: int, *, is_open: bool) -> list[tuple[str, str]]:
    """Make up internal addresses, and external ones if `is_open`, for `count` workers.

    All are loopback addresses, so that SSH reaches the worker and nothing reaches another machine.
    """
    found = []
    for _ in range(count):
        number = world.number()
        low = f"{number >> 8 & 255}.{number & 255}"
        outer = f"127.{192 + (number >> 16) % 32}.{low}" if is_open else ""
        found.append((f"127.{64 + (number >> 16) % 64}.{low}", outer))
    return found
