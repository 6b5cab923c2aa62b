"""The service as a pure state machine: takes a request and a time, gives a reply or an error.

CREATING -> READY -> STOPPING -> STOPPED -> STARTING -> READY
CREATING -> gone            stockout, or preempted while being created
READY -> REPAIRING -> READY maintenance
READY -> PREEMPTED, TERMINATED: dead, but exists until deleted
any -> DELETING -> gone

CREATING -> ACCEPTED -> WAITING_FOR_RESOURCES -> PROVISIONING -> ACTIVE
PROVISIONING -> WAITING_FOR_RESOURCES  when nodes were lost while they were created
ACTIVE -> SUSPENDING -> SUSPENDED      when its nodes are lost or deleted
pending -> FAILED                      not provisioned in time
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TypeVar

from tpuctl.emulator import catalog, nodes, operations, queued_resources
from tpuctl.emulator.compute import groups
from tpuctl.emulator.compute import service as compute
from tpuctl.emulator.compute.methods import COMPUTE_METHODS
from tpuctl.emulator.documents import node_document, operation_document, page, queued_document
from tpuctl.emulator.errors import ApiError, api_error, project_number
from tpuctl.emulator.faults import UNFINISHED, CallFault, fault_matches
from tpuctl.emulator.methods import METHODS, Call, Document
from tpuctl.emulator.operations import Failure
from tpuctl.emulator.resources import Key
from tpuctl.emulator.scenario import known_type, quota_id
from tpuctl.emulator.world import World, quota_per_chip

ALL_ZONES = "-"

T = TypeVar("T")

_STARTS: dict[str, Callable[[World, Call, Failure | None], Document]] = {
    "create_node": nodes.create,
    "delete_node": nodes.delete,
    "stop_node": nodes.stop,
    "start_node": nodes.start,
    "update_node": nodes.update,
    "simulate_maintenance_event": nodes.maintain,
    "perform_maintenance": nodes.maintain,
    "perform_maintenance_queued_resource": queued_resources.maintain,
    "create_queued_resource": queued_resources.create,
    "delete_queued_resource": queued_resources.delete,
    "reset_queued_resource": queued_resources.reset,
}


def apply(world: World, call: Call, now: datetime) -> Document:
    """Advance to `now`, then answer a request; raises ApiError.

    A `now` before the last one counts as the last one: emulated time never goes backwards.
    """
    advance(world, now)
    due = world.call_faults.due(
        lambda plan: plan.on == call.method and fault_matches(plan, call.zone, call.name)
    )
    fault = due[0] if due else None
    is_compute = call.method in COMPUTE_METHODS
    error = (compute.planned if is_compute else _planned)(world, call, fault) if fault else None
    if fault and error and fault.where == "rpc" and not fault.after_accept:
        raise error
    failure = None
    if fault and error and fault.where == "operation" and fault.error != UNFINISHED:
        failure = Failure(fault.after_s, error)
    is_unfinished = bool(fault and fault.error == UNFINISHED)
    try:
        act = compute.answer if is_compute else _answer
        answer = act(world, call, failure, is_unfinished=is_unfinished)
    finally:
        # Events that this request made due must not wait for the next request.
        advance(world, now)
    if fault and error and fault.after_accept:
        raise error
    return answer


def _answer(world: World, call: Call, failure: Failure | None, *, is_unfinished: bool) -> Document:
    _check_place(world, call)
    start = _STARTS.get(call.method)
    if start is None:
        return _READS[call.method](world, call)
    name = str(start(world, call, failure)["name"]).rpartition("/")[2]
    operation = world.operation(Key(call.project, call.zone, name))
    operation.version, operation.unfinished = call.version, is_unfinished
    return operation_document(operation)


def advance(world: World, now: datetime) -> None:
    """Advance to `now`: every event until then happens at its own time."""
    _settle(world)
    while event := world.pop_due(now):
        event.action(world, *event.arguments)
        _settle(world)
    world.now = max(world.now, now)


def _settle(world: World) -> None:
    """Update what depends on changed resources, until nothing changes any more."""
    while world.changed_queued or world.freed_zones or world.compute.changed:
        freed = sorted(world.freed_zones)
        world.freed_zones.clear()
        queued_resources.settle(world, freed)
        groups.settle(world)


def _planned(world: World, call: Call, fault: CallFault) -> ApiError | None:
    """Make the error of a planned fault, with the quota that applies to the call."""
    if fault.error == UNFINISHED:
        return None
    queued: Document = call.body.get("queuedResource") or {}
    specs = queued.get("tpu", {}).get("nodeSpec") or [{}]
    node: Document = call.body.get("node") or specs[0].get("node", {})
    zone = world.scenario.zones.get(call.zone)
    types = zone.types if zone else ()
    requested = str(node.get("acceleratorType", ""))
    kind = known_type(requested if requested in types else next(iter(types), "v5litepod-8"))
    spot = bool(node.get("schedulingConfig", {}).get("spot") or "spot" in queued)
    chips = (zone.spot_quota_chips if spot else zone.quota_chips) if zone else 0
    method = METHODS[call.method]
    collection = "queuedResources" if "queued" in call.method else "nodes"
    return api_error(
        fault.error,
        zone=call.zone,
        project=call.project,
        project_number=project_number(call.project),
        rpc=method.rpc,
        permission=method.permission,
        resource=f"{call.place}/{collection}/{call.name}" if call.name else call.place,
        quota=quota_id(kind.generation, spot=spot),
        limit=chips * quota_per_chip(kind),
        retry_s=60,
    )


def _check_place(world: World, call: Call) -> None:
    if call.zone not in ("", ALL_ZONES):
        world.zone(call.project, call.zone)
    only = world.scenario.project
    if only and call.project != only:
        raise api_error(
            "permission",
            permission=METHODS[call.method].permission if call.method in METHODS else "tpu",
            resource=f"projects/{call.project}",
        )


def _list(
    world: World, call: Call, field: str, known: Mapping[Key, T], show: Callable[[T], Document]
) -> Document:
    """List one page of the resources of a zone, or of all reachable zones."""
    lost = world.unreachable_zones(call) if call.zone == ALL_ZONES else set()
    listed = [
        (f"{key.zone}/{key.name}", item)
        for key, item in known.items()
        if key.project == call.project
        and call.zone in (key.zone, ALL_ZONES)
        and key.zone not in lost
    ]
    answer = page(field, sorted(listed, key=lambda item: item[0]), call, show)
    if lost:
        answer["unreachable"] = [
            f"projects/{call.project}/locations/{zone}" for zone in sorted(lost)
        ]
    return answer


_READS: dict[str, Callable[[World, Call], Document]] = {
    "get_node": lambda world, call: node_document(world.node(Key.of(call))),
    "list_nodes": lambda world, call: _list(world, call, "nodes", world.nodes, node_document),
    "get_queued_resource": lambda world, call: queued_document(world.queued_resource(Key.of(call))),
    "list_queued_resources": lambda world, call: _list(
        world, call, "queuedResources", world.queued, queued_document
    ),
    "get_operation": lambda world, call: operation_document(world.operation(Key.of(call))),
    "cancel_operation": operations.cancel,
    "delete_operation": operations.delete,
    "list_reservations": catalog.list_reservations,
    "list_operations": lambda world, call: _list(
        world, call, "operations", world.operations, operation_document
    ),
    "list_locations": catalog.list_locations,
    "get_location": catalog.get_location,
    "list_accelerator_types": catalog.list_types,
    "get_accelerator_type": catalog.get_type,
    "list_runtime_versions": catalog.list_versions,
    "get_runtime_version": catalog.get_version,
    "list_quota_infos": catalog.list_quotas,
    "get_quota_info": catalog.get_quota,
    "generate_service_identity": catalog.service_identity,
    "get_guest_attributes": nodes.guest_attributes,
    "publish_guest_attribute": nodes.publish_guest_attribute,
}
