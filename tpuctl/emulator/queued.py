"""Queued resources: they wait in line for their nodes, and lose them when the nodes are lost."""

from datetime import timedelta

from tpuctl.emulator import nodes, operations
from tpuctl.emulator.documents import operation_document, queued_document
from tpuctl.emulator.methods import Call, Document
from tpuctl.emulator.operations import Failure
from tpuctl.emulator.records import DEAD, Key, NodeSpec, Queued
from tpuctl.emulator.refusals import Refusal, bad_request, refusal
from tpuctl.emulator.scenario import ZonePlan
from tpuctl.emulator.validate import check_node_id, check_queued_id, read_node, read_window
from tpuctl.emulator.world import World, timestamp

ADMISSION_S = 5.0
SUSPENSION_S = 10.0
RETRY_S = 30.0
_MOST_SLICES = 1000
_PENDING = frozenset({"CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES"})
_DELETED_WITHOUT_FORCE = frozenset({"ACCEPTED", "FAILED", "SUSPENDED"})


def create(world: World, call: Call, failure: Failure | None) -> Document:
    """Accept a queued resource; the same request id again makes no second one."""
    zone = world.zone(call.project, call.zone)
    key = Key(call.project, call.zone, check_queued_id(call.name))
    if known := _repeated(world, call):
        return known
    document = call.body.get("queuedResource", {})
    parts = _parts(zone, call, document)
    opens, closes = read_window(document.get("queueingPolicy", {}), world.now)
    if key in world.queued:
        raise refusal("already_exists", resource=key.path("queuedResources"))
    for node_key in parts:
        world.require_free_name(node_key)
    world.require_quota(key, list(parts.values()))
    world.changes += 1
    queued = Queued(key, world.number(), world.now, document, parts, opens, closes)
    world.keep_queued(queued)
    if closes:
        world.after((closes - world.now).total_seconds(), _expire, queued)
    operation = operations.begin(
        world,
        "create",
        queued,
        lasts_s=ADMISSION_S,
        done=_admit,
        undone=_fail_by_operation,
        failure=failure,
    )
    _remember(world, call, queued)
    return operation


def get(world: World, call: Call) -> Document:
    """Show a queued resource."""
    return queued_document(world.queued_resource(_key(call)))


def delete(world: World, call: Call, failure: Failure | None) -> Document:
    """Begin to delete a queued resource, with `force` its nodes as well."""
    if known := _repeated(world, call):
        return known
    queued = world.queued_resource(_key(call))
    if queued.state == "DELETING":
        raise refusal("wrong_state", verb="delete", state=queued.state)
    has_nodes = bool(world.nodes_of(queued)) and queued.state not in _DELETED_WITHOUT_FORCE
    if has_nodes and not call.body.get("force"):
        raise refusal("queued_has_nodes", resource=queued.path, state=queued.state)
    world.changes += 1
    operations.cut_short(world, queued, refusal("cancelled", resource=queued.path))
    queued.before, queued.state, queued.initiator = queued.state, "DELETING", "USER"
    for node in world.nodes_of(queued):
        nodes.enter_deletion(world, node)
    operation = operations.begin(
        world,
        "delete",
        queued,
        lasts_s=world.scenario.delete_s,
        done=_be_gone,
        undone=_restore,
        failure=failure,
        answers=False,
    )
    _remember(world, call, queued)
    return operation


def reset(world: World, call: Call, failure: Failure | None) -> Document:
    """Begin to put a queued resource back in line, with new nodes."""
    queued = world.queued_resource(_key(call))
    if queued.state not in ("ACTIVE", "SUSPENDED"):
        raise refusal("wrong_state", verb="reset", state=queued.state)
    if operations.is_busy(queued):
        raise refusal("busy")
    world.changes += 1
    return operations.begin(
        world,
        "reset",
        queued,
        lasts_s=ADMISSION_S,
        done=_start_again,
        undone=_stay,
        failure=failure,
    )


def settle(world: World) -> None:
    """Look again at the queued resources that something happened to, and at the freed zones."""
    while world.touched or world.freed:
        for key in sorted(world.touched):
            world.touched.discard(key)
            if queued := world.queued.get(key):
                _review(world, queued)
        for zone in sorted(world.freed):
            world.freed.discard(zone)
            _serve_line(world, zone)


def _review(world: World, queued: Queued) -> None:
    """Follow what became of the nodes."""
    if queued.state not in ("PROVISIONING", "ACTIVE"):
        return
    found = world.nodes_of(queued)
    if any(node.state == "DELETING" for node in found):
        _suspend(world, queued, queued.initiator or "USER")
    elif len(found) < len(queued.parts) or any(node.state in DEAD for node in found):
        if queued.state == "ACTIVE":
            _suspend(world, queued, "SERVICE")
        else:
            _provision_again(world, queued)
    elif queued.state == "PROVISIONING" and all(node.state == "READY" for node in found):
        queued.state = "ACTIVE"


def _serve_line(world: World, zone: str) -> None:
    """Give free chips to those who wait for them, first come, first served, if they fit."""
    line = [
        queued
        for queued in world.queued.values()
        if queued.key.zone == zone and queued.state == "WAITING_FOR_RESOURCES"
    ]
    free = {
        reserved: world.free_chips(zone, reserved=reserved)
        for reserved in {queued.reserved for queued in line}
    }
    for queued in sorted(line, key=lambda queued: queued.number):
        is_early = queued.not_before is not None and queued.not_before > world.now
        if not is_early and queued.chips <= free[queued.reserved]:
            free[queued.reserved] -= queued.chips
            _provision(world, queued)


def _provision(world: World, queued: Queued) -> None:
    taken = next((key for key in queued.parts if key in world.nodes), None)
    if taken:
        _fail(world, queued, refusal("already_exists", resource=taken.path("nodes")))
        return
    queued.state, queued.initiator = "PROVISIONING", None
    for key, spec in queued.parts.items():
        several = len(queued.parts) > 1
        node = nodes.add(world, key, spec, has_chips=True, queued=queued.key, multislice=several)
        world.after(world.scenario.provision_s, nodes.become_ready, node)


def _provision_again(world: World, queued: Queued) -> None:
    """Go back in line after nodes were lost while they were being made; this may go on for ever."""
    queued.state = "WAITING_FOR_RESOURCES"
    for node in world.nodes_of(queued):
        world.forget(node)
    if queued.closes and queued.closes <= world.now:
        _expire(world, queued)
    else:
        _wait_until(world, queued, RETRY_S)


def _wait_until(world: World, queued: Queued, seconds: float) -> None:
    queued.not_before = world.now + timedelta(seconds=seconds)
    world.after(seconds, _look_again, queued)


def _look_again(world: World, queued: Queued) -> None:
    if world.queued.get(queued.key) is queued and queued.state in _PENDING - {"CREATING"}:
        queued.state = "WAITING_FOR_RESOURCES"
        world.freed.add(queued.key.zone)


def _admit(world: World, queued: Queued) -> None:
    if queued.state == "CREATING":
        _get_in_line(world, queued)


def _get_in_line(world: World, queued: Queued) -> None:
    queued.state = "ACCEPTED"
    wait = (queued.opens - world.now).total_seconds() if queued.opens else 0.0
    _wait_until(world, queued, max(0.0, wait))


def _suspend(world: World, queued: Queued, initiator: str) -> None:
    queued.state, queued.initiator = "SUSPENDING", initiator
    for node in world.nodes_of(queued):
        if node.state not in DEAD | {"DELETING"}:
            nodes.enter_deletion(world, node)
            world.after(world.scenario.delete_s, World.forget, node)
    world.after(max(SUSPENSION_S, world.scenario.delete_s), _be_suspended, queued)


def _be_suspended(world: World, queued: Queued) -> None:
    if queued.state == "SUSPENDING":
        queued.state = "SUSPENDED"


def _expire(world: World, queued: Queued) -> None:
    if world.queued.get(queued.key) is queued and queued.state in _PENDING and queued.closes:
        _fail(world, queued, refusal("expired", until=timestamp(queued.closes)))


def _fail(world: World, queued: Queued, error: Refusal) -> None:
    queued.state, queued.failure, queued.initiator = "FAILED", error, "SERVICE"


def _fail_by_operation(world: World, queued: Queued) -> None:
    if queued.operation and queued.operation.failure:
        _fail(world, queued, queued.operation.failure)


def _be_gone(world: World, queued: Queued) -> None:
    for node in world.nodes_of(queued):
        world.forget(node)
    world.forget_queued(queued)


def _restore(world: World, queued: Queued) -> None:
    """Take back a deletion that failed."""
    queued.state, queued.initiator = queued.before, None
    for node in world.nodes_of(queued):
        nodes.restore(world, node)
    if queued.state in _PENDING:
        _get_in_line(world, queued)
    if queued.state == "SUSPENDING":
        queued.state = "SUSPENDED"
    world.touched.add(queued.key)


def _start_again(world: World, queued: Queued) -> None:
    for node in world.nodes_of(queued):
        world.forget(node)
    if queued.state in ("ACTIVE", "SUSPENDED", "SUSPENDING"):
        _get_in_line(world, queued)


def _stay(world: World, queued: Queued) -> None:
    """Nothing was begun that has to be taken back."""


def _parts(zone: ZonePlan, call: Call, document: Document) -> dict[Key, NodeSpec]:
    """The nodes that a queued resource asks for; refuses what cannot be provisioned."""
    specs = document.get("tpu", {}).get("nodeSpec", [])
    if len(specs) != 1:
        raise bad_request(f"A queued resource has exactly one node_spec, not {len(specs)}.")
    asked, place = specs[0], f"projects/{call.project}/locations/{call.zone}"
    if asked.get("parent") != place:
        raise bad_request(f'The parent of node_spec must be "{place}".')
    spec = read_node(
        zone,
        asked.get("node", {}),
        tier="spot" if "spot" in document else None,
        reservation=bool(document.get("reservationName")),
    )
    return {Key(call.project, call.zone, name): spec for name in _names(asked, call.name)}


def _names(asked: Document, queued_name: str) -> list[str]:
    several = asked.get("multisliceParams")
    if several and asked.get("nodeId"):
        raise bad_request("node_id and multislice_params are mutually exclusive.")
    if not several:
        return [check_node_id(asked.get("nodeId", ""))]
    count = int(several.get("nodeCount", 0))
    if not 1 < count <= _MOST_SLICES:
        raise bad_request(f"node_count of multislice_params must be from 2 to {_MOST_SLICES}.")
    prefix = several.get("nodeIdPrefix") or queued_name
    return [check_node_id(f"{prefix}-{index}") for index in range(count)]


def _repeated(world: World, call: Call) -> Document | None:
    """The operation that the same request id started before."""
    request_id = str(call.body.get("requestId", ""))
    known = world.requests.get((call.project, call.zone, request_id)) if request_id else None
    if known is None:
        return None
    if known[:2] != (call.method, call.name):
        raise bad_request(f'The request id "{request_id}" was used for another request.')
    return operation_document(known[2])


def _remember(world: World, call: Call, queued: Queued) -> None:
    if (request_id := str(call.body.get("requestId", ""))) and queued.operation:
        known = (call.method, call.name, queued.operation)
        world.requests[call.project, call.zone, request_id] = known


def _key(call: Call) -> Key:
    return Key(call.project, call.zone, call.name)
