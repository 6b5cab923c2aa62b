"""Queued resources, which wait for capacity, get nodes, and are suspended when they lose them."""

from collections.abc import Sequence
from datetime import timedelta

from tpuctl.emulator import nodes, operations
from tpuctl.emulator.documents import operation_document
from tpuctl.emulator.errors import ServiceError, api_error, bad_request
from tpuctl.emulator.faults import NodeEvent
from tpuctl.emulator.methods import Call, Document
from tpuctl.emulator.operations import Failure
from tpuctl.emulator.resources import DEAD, Key, NodeSpec, QueuedResource, timestamp
from tpuctl.emulator.scenario import ZonePlan
from tpuctl.emulator.validate import check_node_id, check_queued_id, read_node, read_window
from tpuctl.emulator.world import World

ACCEPT_S = 5.0
SUSPENSION_S = 10.0
RETRY_S = 30.0
_MOST_SLICES = 1000
_SPOT = frozenset({"spot", "bestEffort"})
_PENDING = frozenset({"CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES"})
_DELETED_WITHOUT_FORCE = frozenset({"ACCEPTED", "FAILED", "SUSPENDED"})


def create(world: World, call: Call, failure: Failure | None) -> Document:
    """Accept a queued resource; a repeated request ID returns the first operation."""
    zone, key = world.zone(call.project, call.zone), Key.of(call)
    check_queued_id(call.name)
    if known := _repeated_operation(world, call):
        return known
    document = call.body.get("queuedResource", {})
    specs = _node_specs(zone, call, document)
    valid_from, valid_until = read_window(document.get("queueingPolicy", {}), world.now)
    if key in world.queued:
        raise api_error("already_exists", resource=key.path("queuedResources"))
    for node_key in specs:
        world.require_free_name(node_key)
    world.require_quota(key, list(specs.values()))
    world.changes += 1
    queued = QueuedResource(
        key, world.number(), world.now, document, specs, valid_from, valid_until
    )
    world.add_queued(queued)
    if valid_until:
        world.after((valid_until - world.now).total_seconds(), _expire, queued)
    operation = operations.start(
        world, "create", queued, failure, takes_s=ACCEPT_S, then=_accept, undo=_fail_by_operation
    )
    _remember_request(world, call, queued)
    return operation


def delete(world: World, call: Call, failure: Failure | None) -> Document:
    """Start to delete a queued resource, including its nodes with `force`."""
    if known := _repeated_operation(world, call):
        return known
    queued = world.queued_resource(Key.of(call))
    if queued.state == "DELETING":
        raise api_error("wrong_state", verb="delete", state=queued.state)
    has_nodes = bool(world.nodes_of(queued)) and queued.state not in _DELETED_WITHOUT_FORCE
    if has_nodes and not call.body.get("force"):
        raise api_error("queued_has_nodes", resource=queued.path, state=queued.state)
    world.changes += 1
    operations.abort(world, queued, api_error("cancelled", resource=queued.path))
    queued.previous_state, queued.state, queued.initiator = queued.state, "DELETING", "USER"
    for node in world.nodes_of(queued):
        nodes.mark_deleting(world, node)
    operation = operations.start(
        world,
        "delete",
        queued,
        failure,
        takes_s=world.scenario.delete_s,
        then=_remove,
        undo=_restore,
    )
    _remember_request(world, call, queued)
    return operation


def reset(world: World, call: Call, failure: Failure | None) -> Document:
    """Start to reset a queued resource, which then waits for new nodes."""
    queued = world.queued_resource(Key.of(call))
    if queued.state not in ("ACTIVE", "SUSPENDED"):
        raise api_error("wrong_state", verb="reset", state=queued.state)
    if operations.is_running(queued):
        raise api_error("busy")
    world.changes += 1
    return operations.start(
        world, "reset", queued, failure, takes_s=ACCEPT_S, then=_reset, undo=nodes.do_nothing
    )


def maintain(world: World, call: Call, failure: Failure | None) -> Document:
    """Start maintenance of the nodes that a request names, or of all."""
    queued = world.queued_resource(Key.of(call))
    if queued.state != "ACTIVE":
        raise api_error("wrong_state", verb="maintain", state=queued.state)
    world.changes += 1
    names = call.body.get("nodeNames", [])

    def begin(world: World, queued: QueuedResource) -> None:
        for node in world.nodes_of(queued):
            if not names or node.path in names or node.key.name in names:
                nodes.begin_maintenance(world, node)

    return operations.start(
        world, "maintain", queued, failure, takes_s=ACCEPT_S, then=begin, undo=nodes.do_nothing
    )


def settle(world: World, freed: Sequence[str]) -> None:
    """Update the queued resources whose nodes changed, and the zones where chips became free."""
    for key in sorted(world.changed_queued):
        world.changed_queued.discard(key)
        if queued := world.queued.get(key):
            _review(world, queued)
    for zone in freed:
        _provision_waiting(world, zone)


def _review(world: World, queued: QueuedResource) -> None:
    """Update the state of a queued resource from its nodes."""
    if queued.state not in ("PROVISIONING", "ACTIVE"):
        return
    found = world.nodes_of(queued)
    if any(node.state == "DELETING" for node in found):
        _suspend(world, queued, queued.initiator or "USER")
    elif len(found) < len(queued.node_specs) or any(node.state in DEAD for node in found):
        if queued.state == "ACTIVE":
            _suspend(world, queued, "SERVICE")
        else:
            _provision_again(world, queued)
    elif queued.state == "PROVISIONING" and all(node.state == "READY" for node in found):
        queued.state = "ACTIVE"


def _provision_waiting(world: World, zone: str) -> None:
    """Give free chips to waiting queued resources: first come, first served."""
    waiting = [
        queued
        for queued in world.queued.values()
        if queued.key.zone == zone and queued.state == "WAITING_FOR_RESOURCES"
    ]
    free = {
        reserved: world.free_chips(zone, reserved=reserved)
        for reserved in {queued.reserved for queued in waiting}
    }
    for queued in sorted(waiting, key=lambda queued: queued.number):
        is_early = queued.not_before is not None and queued.not_before > world.now
        # A small request may overtake a large one that does not fit yet.
        if not is_early and queued.chips <= free[queued.reserved]:
            free[queued.reserved] -= queued.chips
            _provision(world, queued)


def _provision(world: World, queued: QueuedResource) -> None:
    taken = next((key for key in queued.node_specs if key in world.nodes), None)
    if taken:
        _fail(world, queued, api_error("already_exists", resource=taken.path("nodes")))
        return
    queued.state, queued.initiator = "PROVISIONING", None
    for key, spec in queued.node_specs.items():
        is_multislice = len(queued.node_specs) > 1
        node = nodes.add_node(
            world, key, spec, has_chips=True, queued=queued.key, multislice=is_multislice
        )
        world.after(world.scenario.provision_s, nodes.make_ready, node)
        if lasts := queued.document.get("runDuration", {}).get("maxRunDuration"):
            end = NodeEvent("*", "*", "suspend", 0, 1, False, 0, 0)
            seconds = world.scenario.provision_s + float(lasts.removesuffix("s"))
            world.after(seconds, nodes.apply_event, node, end)


def _provision_again(world: World, queued: QueuedResource) -> None:
    """Wait again, perhaps forever, after nodes were lost during creation."""
    queued.state = "WAITING_FOR_RESOURCES"
    for node in world.nodes_of(queued):
        world.remove_node(node)
    if queued.valid_until and queued.valid_until <= world.now:
        _expire(world, queued)
    else:
        _wait_until(world, queued, RETRY_S)


def _wait_until(world: World, queued: QueuedResource, seconds: float) -> None:
    queued.not_before = world.now + timedelta(seconds=seconds)
    world.after(seconds, _retry, queued)


def _retry(world: World, queued: QueuedResource) -> None:
    if world.queued.get(queued.key) is queued and queued.state in _PENDING - {"CREATING"}:
        queued.state = "WAITING_FOR_RESOURCES"
        world.freed_zones.add(queued.key.zone)


def _accept(world: World, queued: QueuedResource) -> None:
    if queued.state == "CREATING":
        _enqueue(world, queued)


def _enqueue(world: World, queued: QueuedResource) -> None:
    queued.state = "ACCEPTED"
    wait = (queued.valid_from - world.now).total_seconds() if queued.valid_from else 0.0
    _wait_until(world, queued, max(0.0, wait))


def _suspend(world: World, queued: QueuedResource, initiator: str) -> None:
    queued.state, queued.initiator = "SUSPENDING", initiator
    for node in world.nodes_of(queued):
        if node.state not in DEAD | {"DELETING"}:
            nodes.mark_deleting(world, node)
            world.after(world.scenario.delete_s, World.remove_node, node)
    world.after(max(SUSPENSION_S, world.scenario.delete_s), _finish_suspension, queued)


def _finish_suspension(world: World, queued: QueuedResource) -> None:
    if queued.state == "SUSPENDING":
        queued.state = "SUSPENDED"


def _expire(world: World, queued: QueuedResource) -> None:
    if world.queued.get(queued.key) is queued and queued.state in _PENDING and queued.valid_until:
        _fail(world, queued, api_error("expired", until=timestamp(queued.valid_until)))


def _fail(world: World, queued: QueuedResource, error: ServiceError) -> None:
    queued.state, queued.failure, queued.initiator = "FAILED", error, "SERVICE"


def _fail_by_operation(world: World, queued: QueuedResource) -> None:
    if queued.operation and queued.operation.failure:
        _fail(world, queued, queued.operation.failure)


def _remove(world: World, queued: QueuedResource) -> None:
    for node in world.nodes_of(queued):
        world.remove_node(node)
    world.remove_queued(queued)


def _restore(world: World, queued: QueuedResource) -> None:
    """Return a queued resource and its nodes to their previous states after a failed deletion."""
    queued.state, queued.initiator = queued.previous_state, None
    for node in world.nodes_of(queued):
        nodes.restore(world, node)
    if queued.state in _PENDING:
        _enqueue(world, queued)
    if queued.state == "SUSPENDING":
        queued.state = "SUSPENDED"
    world.changed_queued.add(queued.key)


def _reset(world: World, queued: QueuedResource) -> None:
    for node in world.nodes_of(queued):
        world.remove_node(node)
    if queued.state in ("ACTIVE", "SUSPENDED", "SUSPENDING"):
        _enqueue(world, queued)


def _node_specs(zone: ZonePlan, call: Call, document: Document) -> dict[Key, NodeSpec]:
    """Read the nodes that a queued resource asks for; raises ApiError."""
    specs = document.get("tpu", {}).get("nodeSpec", [])
    if len(specs) != 1:
        raise bad_request(f"A queued resource has exactly one node_spec, not {len(specs)}.")
    (requested,) = specs
    if requested.get("parent") != call.place:
        raise bad_request(f'The parent of node_spec must be "{call.place}".')
    model, guaranteed = document.get("provisioningModel"), document.get("guaranteed", {})
    is_reserved = bool(document.get("reservationName") or guaranteed.get("reserved"))
    spec = read_node(
        zone,
        requested.get("node", {}),
        tier="spot" if _SPOT & document.keys() or model == "SPOT" else None,
        reservation=is_reserved or model == "RESERVATION_BOUND",
    )
    return {Key(call.project, call.zone, name): spec for name in _names(requested, call.name)}


def _names(requested: Document, queued_name: str) -> list[str]:
    multislice = requested.get("multisliceParams")
    if multislice and requested.get("nodeId"):
        raise bad_request("node_id and multislice_params are mutually exclusive.")
    if not multislice:
        return [check_node_id(requested.get("nodeId", ""))]
    count = int(multislice.get("nodeCount", 0))
    if not 1 < count <= _MOST_SLICES:
        raise bad_request(f"node_count of multislice_params must be from 2 to {_MOST_SLICES}.")
    prefix = multislice.get("nodeIdPrefix") or queued_name
    return [check_node_id(f"{prefix}-{index}") for index in range(count)]


def _repeated_operation(world: World, call: Call) -> Document | None:
    """Return the operation that an earlier request with the same ID started."""
    request_id = str(call.body.get("requestId", ""))
    known = world.requests.get((call.project, call.zone, request_id)) if request_id else None
    if known is None:
        return None
    if known[:2] != (call.method, call.name):
        raise bad_request(f'The request id "{request_id}" was used for another request.')
    return operation_document(known[2])


def _remember_request(world: World, call: Call, queued: QueuedResource) -> None:
    if (request_id := str(call.body.get("requestId", ""))) and queued.operation:
        known = (call.method, call.name, queued.operation)
        world.requests[call.project, call.zone, request_id] = known
