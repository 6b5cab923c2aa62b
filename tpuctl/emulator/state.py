"""The service as a pure state machine: a request and a time go in, a reply or a refusal comes out.

CREATING -> READY -> STOPPING -> STOPPED -> STARTING -> READY
CREATING -> gone            stockout, or preempted while being created
READY -> REPAIRING -> READY maintenance
READY -> PREEMPTED, TERMINATED: dead, but in the way until deleted
any -> DELETING -> gone

CREATING -> ACCEPTED -> WAITING_FOR_RESOURCES -> PROVISIONING -> ACTIVE
PROVISIONING -> WAITING_FOR_RESOURCES  when its nodes were lost on the way
ACTIVE -> SUSPENDING -> SUSPENDED      when its nodes are lost or deleted
pending -> FAILED                      not provisioned in time
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import TypeVar

from tpuctl.emulator import catalog, nodes, queued
from tpuctl.emulator.documents import node_document, operation_document, page, queued_document
from tpuctl.emulator.methods import METHODS, Call, Document
from tpuctl.emulator.operations import Failure
from tpuctl.emulator.records import Key
from tpuctl.emulator.refusals import Refusal, not_found, planned_refusal, refusal
from tpuctl.emulator.scenario import CallFault, known_type, quota_id
from tpuctl.emulator.world import World, per_chip

ALL_ZONES = "-"

T = TypeVar("T")

_STARTS: dict[str, Callable[[World, Call, Failure | None], Document]] = {
    "create_node": nodes.create,
    "delete_node": nodes.delete,
    "stop_node": nodes.stop,
    "start_node": nodes.start,
    "update_node": nodes.update,
    "create_queued_resource": queued.create,
    "delete_queued_resource": queued.delete,
    "reset_queued_resource": queued.reset,
}


def apply(world: World, call: Call, now: datetime) -> Document:
    """Let time pass until `now`, then answer a request; raises Refusal.

    A `now` that lies before the last one counts as the last one: this clock never goes back.
    """
    advance(world, now)
    fault = world.faults.of_call(call)
    if fault and fault.where == "rpc" and not fault.after_accept:
        raise _planned(world, call, fault)
    try:
        _check_place(world, call)
        if start := _STARTS.get(call.method):
            failure = _failure(world, call, fault)
            answer = start(world, call, failure)
        else:
            answer = _READS[call.method](world, call)
    finally:
        # What is due at this very moment must not wait for somebody to look.
        advance(world, now)
    if fault and fault.after_accept:
        raise _planned(world, call, fault)
    return answer


def advance(world: World, now: datetime) -> None:
    """Let everything happen that falls due by `now`, each at its own moment."""
    queued.settle(world)
    while event := world.next_due(now):
        event.act(world, *event.about)
        queued.settle(world)
    world.now = max(world.now, now)


def _failure(world: World, call: Call, fault: CallFault | None) -> Failure | None:
    if fault is None or fault.where == "rpc":
        return None
    return Failure(fault.after_s, _planned(world, call, fault))


def _planned(world: World, call: Call, fault: CallFault) -> Refusal:
    """The error of a planned fault, with the quota that the call would be measured by."""
    node = _asked_node(call)
    zone = world.scenario.zones.get(call.zone)
    types = zone.types if zone else ()
    asked = str(node.get("acceleratorType", ""))
    kind = known_type(asked if asked in types else next(iter(types), "v5litepod-8"))
    spot = bool(node.get("schedulingConfig", {}).get("spot") or "spot" in _asked_queue(call))
    chips = (zone.spot_quota_chips if spot else zone.quota_chips) if zone else 0
    quota = quota_id(kind.generation, spot=spot)
    return planned_refusal(fault.error, call, quota=quota, limit=chips * per_chip(kind))


def _asked_node(call: Call) -> Document:
    specs = _asked_queue(call).get("tpu", {}).get("nodeSpec") or [{}]
    node: Document = call.body.get("node") or specs[0].get("node", {})
    return node


def _asked_queue(call: Call) -> Document:
    queued: Document = call.body.get("queuedResource") or {}
    return queued


def _check_place(world: World, call: Call) -> None:
    if call.zone not in ("", ALL_ZONES):
        world.zone(call.project, call.zone)
    only = world.scenario.project
    if only and call.project != only:
        raise refusal(
            "permission",
            permission=METHODS[call.method].permission if call.method in METHODS else "tpu",
            resource=f"projects/{call.project}",
        )


def _list_nodes(world: World, call: Call) -> Document:
    return _listing(world, call, "nodes", world.nodes, node_document)


def _list_queued(world: World, call: Call) -> Document:
    return _listing(world, call, "queuedResources", world.queued, queued_document)


def _listing(
    world: World, call: Call, field: str, known: Mapping[Key, T], show: Callable[[T], Document]
) -> Document:
    """One page of what there is in a zone, or in all of those that answer."""
    lost: set[str] = set()
    if call.zone == ALL_ZONES:
        lost = world.faults.unreachable(call, world.scenario.zones)
    reached = ((key, item) for key, item in known.items() if key.zone not in lost)
    answer = page(field, _sorted(reached, call), call, show)
    places = (f"projects/{call.project}/locations/{zone}" for zone in sorted(lost))
    return {**answer, "unreachable": list(places)}


def _get_operation(world: World, call: Call) -> Document:
    key = Key(call.project, call.zone, call.name)
    if operation := world.operations.get(key):
        return operation_document(operation)
    raise not_found(key.path("operations"))


def _list_operations(world: World, call: Call) -> Document:
    found = _sorted(world.operations.items(), call)
    return page("operations", found, call, operation_document)


def _sorted(found: Iterable[tuple[Key, T]], call: Call) -> list[tuple[str, T]]:
    """What a call lists of all there is, by zone and name."""
    listed = (
        (f"{key.zone}/{key.name}", item)
        for key, item in found
        if key.project == call.project and call.zone in (key.zone, ALL_ZONES)
    )
    return sorted(listed, key=lambda item: item[0])


_READS: dict[str, Callable[[World, Call], Document]] = {
    "get_node": nodes.get,
    "list_nodes": _list_nodes,
    "get_queued_resource": queued.get,
    "list_queued_resources": _list_queued,
    "get_operation": _get_operation,
    "list_operations": _list_operations,
    "list_locations": catalog.list_locations,
    "get_location": catalog.get_location,
    "list_accelerator_types": catalog.list_types,
    "get_accelerator_type": catalog.get_type,
    "list_runtime_versions": catalog.list_versions,
    "get_runtime_version": catalog.get_version,
    "list_quota_infos": catalog.list_quotas,
    "generate_service_identity": catalog.service_identity,
    "get_guest_attributes": nodes.guest_attributes,
    "publish_guest_attribute": nodes.publish_guest_attribute,
}
