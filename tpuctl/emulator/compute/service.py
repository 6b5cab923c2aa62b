"""Compute Engine as part of the emulated service: takes a call, gives a reply or an error."""

from collections.abc import Callable

from tpuctl.emulator.compute import catalog, groups, instances, operations, slices
from tpuctl.emulator.compute.documents import kind_of
from tpuctl.emulator.compute.lists import show_aggregated, show_list
from tpuctl.emulator.compute.methods import COMPUTE_METHODS
from tpuctl.emulator.compute.resources import (
    GLOBAL,
    IMAGE_PROJECT,
    ComputeOperation,
    path_of,
    region_of,
)
from tpuctl.emulator.compute.validate import RESERVATION, find_machine, invalid, last_part
from tpuctl.emulator.errors import ComputeError, compute_error, project_number
from tpuctl.emulator.faults import UNFINISHED, CallFault
from tpuctl.emulator.methods import Call, Document
from tpuctl.emulator.operations import Failure
from tpuctl.emulator.resources import Key
from tpuctl.emulator.world import World

_NIL = "00000000-0000-0000-0000-000000000000"
_ANY_TYPE = "ct6e-standard-4t"

_STARTS: dict[str, Callable[[World, Call, Failure | None], ComputeOperation]] = {
    "compute_instances_insert": instances.insert,
    "compute_instances_delete": instances.delete,
    "compute_instances_start": instances.start,
    "compute_instances_stop": instances.stop,
    "compute_instances_set_scheduling": instances.update,
    "compute_instances_set_metadata": instances.update,
    "compute_instances_set_labels": instances.update,
    "compute_instances_simulate_maintenance_event": instances.simulate_maintenance,
    "compute_instance_group_managers_insert": groups.insert,
    "compute_instance_group_managers_resize": groups.resize,
    "compute_instance_group_managers_delete": groups.delete,
    "compute_instance_group_managers_delete_instances": groups.delete_instances,
    "compute_instance_group_manager_resize_requests_insert": groups.refuse_resize_request,
    **{
        f"compute_{name}_{verb}": start
        for name in ("resource_policies", "instance_templates", "region_instance_templates")
        for verb, start in (("insert", slices.insert), ("delete", slices.delete))
    },
}
_READS: dict[str, Callable[[World, Call], Document]] = {
    "compute_instance_group_managers_list_managed_instances": lambda world, call: {
        "managedInstances": groups.list_managed(world, groups.find_group(world, call))
    },
    "compute_instance_group_managers_list_errors": lambda world, call: {
        "items": groups.list_errors(world, groups.find_group(world, call))
    },
    **catalog.READS,
}


def answer(world: World, call: Call, failure: Failure | None, *, is_unfinished: bool) -> Document:
    """Answer a call; raises ComputeError."""
    _check_place(world, call)
    if start := _STARTS.get(call.method):
        request, about = _request(call), (call.method, call.zone, call.name)
        if known := world.compute.requests.get(request):
            if known[0] != about:
                why = "The request ID was used for another request."
                raise invalid("requestId", request[1], why)
            return operations.document(known[1])
        operation = start(world, call, failure)
        operation.unfinished = is_unfinished
        if request[1]:
            world.compute.requests[request] = about, operation
        return operations.document(operation)
    if read := _READS.get(call.method):
        return read(world, call)
    return _read(world, call)


def _read(world: World, call: Call) -> Document:
    method, items = COMPUTE_METHODS[call.method], catalog.items(world, call)
    if method.verb in ("get", "wait"):
        wanted = Key.of(call)
        for key, show in items:
            if key == wanted:
                return show()
        raise compute_error("not_found", resource=path_of(method.collection, wanted))
    kind = kind_of(method.collection)
    if method.verb == "list":
        return show_list(call, kind, (item for item in items if item[0].zone == call.zone))
    lost = world.unreachable_zones(call)
    places = {
        zone if method.scope == "zones" else region_of(zone)
        for zone in world.scenario.compute_zones
    }
    kept = (item for item in items if item[0].zone not in lost)
    collection = "operations" if kind == "operation" else method.collection
    shown = show_aggregated(call, kind, collection, kept, sorted(places - lost))
    return {
        **shown,
        **({"unreachables": [f"zones/{zone}" for zone in sorted(lost)]} if lost else {}),
    }


def _request(call: Call) -> tuple[str, str]:
    request_id = str(call.body.get("requestId") or "")
    if request_id == _NIL:
        raise invalid("requestId", request_id, "It must not be zero.")
    return call.project, request_id


def _check_place(world: World, call: Call) -> None:
    """Raise ComputeError for an unknown project, zone or region."""
    only, method, zones = (
        world.scenario.project,
        COMPUTE_METHODS[call.method],
        world.scenario.compute_zones,
    )
    if only and call.project not in (only, IMAGE_PROJECT):
        raise refusal(world, call, "permission")
    known = zones if method.scope == "zones" else map(region_of, zones)
    if call.zone not in ("", GLOBAL, "-", *known):
        raise invalid(method.scope[:-1], call.zone, f"Unknown {method.scope[:-1]}.")


def planned(world: World, call: Call, fault: CallFault) -> ComputeError | None:
    """Make the error of a planned fault."""
    return None if fault.error == UNFINISHED else refusal(world, call, fault.error)


def refusal(world: World, call: Call, kind: str) -> ComputeError:
    """Make an error about a call."""
    method, requested = COMPUTE_METHODS[call.method], call.body.get("resource", {})
    machine = find_machine(last_part(requested.get("machineType"))) or find_machine(_ANY_TYPE)
    assert machine
    region = region_of(call.zone) if call.zone.count("-") > 1 else call.zone
    resource = path_of(method.collection, Key.of(call))
    return compute_error(
        kind,
        **{"project": call.project, "project_number": project_number(call.project)},
        **{"zone": call.zone, "region": region, "resource": resource, "reservation": RESERVATION},
        **{"permission": method.permission, "rpc": method.rpc, "machine_type": machine.name},
        **machine.quota(world.scenario.compute.quota(region), spot=False),
        disk_type="pd-standard",
    )
