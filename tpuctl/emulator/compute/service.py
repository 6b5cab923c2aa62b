"""Compute Engine as a part of the emulated service: a call in, a reply or an error out."""

from collections.abc import Callable, Iterator
from typing import Any

from tpuctl.emulator.compute import catalog, groups, instances, operations, slices
from tpuctl.emulator.compute.documents import instance_document, kind_of, resource_document
from tpuctl.emulator.compute.lists import show_aggregated, show_list
from tpuctl.emulator.compute.methods import COMPUTE_METHODS, snake
from tpuctl.emulator.compute.resources import (
    GLOBAL,
    ComputeOperation,
    Group,
    Resource,
    path_of,
    region_of,
)
from tpuctl.emulator.compute.validate import find_machine
from tpuctl.emulator.errors import ComputeError, compute_error, project_number
from tpuctl.emulator.faults import UNFINISHED, CallFault
from tpuctl.emulator.methods import Call, Document
from tpuctl.emulator.operations import Failure
from tpuctl.emulator.resources import Key
from tpuctl.emulator.world import World

Start = Callable[[World, Call, Failure | None], ComputeOperation]
_NIL = "00000000-0000-0000-0000-000000000000"

_STARTS: dict[str, Start] = {
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


def answer(world: World, call: Call, failure: Failure | None, *, is_unfinished: bool) -> Document:
    """Answer a call; raises ComputeError."""
    check_place(world, call)
    method = COMPUTE_METHODS[call.method]
    if start := _STARTS.get(call.method):
        if known := _repeated(world, call):
            return operations.document(known)
        operation = start(world, call, failure)
        operation.unfinished = is_unfinished
        if request_id := str(call.body.get("requestId") or ""):
            about = (call.method, call.zone, _name(call), operation)
            world.compute.requests[call.project, request_id] = about
        return operations.document(operation)
    if read := _READS.get(call.method):
        return read(world, call)
    kind = kind_of(method.collection)
    items = _SHOWN[method.collection](world, call)
    if method.verb == "aggregatedList":
        places = sorted(world.scenario.zones)
        if method.scope != "zones":
            places = sorted({region_of(zone) for zone in places})
        lost = world.unreachable_zones(call)
        kept = (item for item in items if item[0].zone not in lost)
        collection = "operations" if "Operation" in method.collection else method.collection
        shown = show_aggregated(call, kind, collection, kept, [p for p in places if p not in lost])
        return {
            **shown,
            **({"unreachables": [f"zones/{zone}" for zone in sorted(lost)]} if lost else {}),
        }
    return show_list(call, kind, (item for item in items if item[0].zone == call.zone))


def _name(call: Call) -> str:
    return call.name or str(call.body.get("resource", {}).get("name", ""))


def _repeated(world: World, call: Call) -> ComputeOperation | None:
    """Return the operation that was started by an earlier request of the same id."""
    request_id = str(call.body.get("requestId") or "")
    if request_id == _NIL:
        raise compute_error(
            "invalid", field="requestId", value=request_id, why="It must not be zero."
        )
    known = world.compute.requests.get((call.project, request_id)) if request_id else None
    if known is None:
        return None
    if known[:3] != (call.method, call.zone, _name(call)):
        why = "The request ID was used for another request."
        raise compute_error("invalid", field="requestId", value=request_id, why=why)
    return known[3]


def check_place(world: World, call: Call) -> None:
    """Raise ComputeError for a project, a zone or a region that is not there."""
    only, method = world.scenario.project, COMPUTE_METHODS[call.method]
    if only and call.project != only:
        facts = {"permission": method.permission, "resource": f"projects/{call.project}"}
        raise compute_error("permission", **facts)
    zones = set(world.scenario.zones)
    known = zones if method.scope == "zones" or method.collection == "zones" else {
        region_of(zone) for zone in zones
    }  # fmt: skip
    if call.zone not in ("", GLOBAL, "-") and call.zone not in known:
        kind = "zones" if known is zones else "regions"
        name = f"projects/{call.project}/{kind}/{call.zone}"
        if method.collection in ("zones", "regions"):
            raise compute_error("not_found", resource=name)
        raise compute_error("invalid", field=kind[:-1], value=call.zone, why="Unknown place.")


def planned(world: World, call: Call, fault: CallFault) -> ComputeError | None:
    """Make the error of a planned fault."""
    return None if fault.error == UNFINISHED else refusal(world, call, fault.error)


def refusal(world: World, call: Call, kind: str) -> ComputeError:
    """Make an error about a call."""
    method, requested = COMPUTE_METHODS[call.method], call.body.get("resource", {})
    machine = str(requested.get("machineType", "")).rpartition("/")[2] or "ct6e-standard-4t"
    found = find_machine(machine)
    facts: dict[str, Any] = found.facts if found else {"metric": "TPUS", "quota": ""}
    region = region_of(call.zone) if call.zone.count("-") > 1 else call.zone
    return compute_error(
        kind,
        project=call.project,
        project_number=project_number(call.project),
        zone=call.zone,
        region=region,
        machine_type=machine,
        resource=path_of(method.collection, Key(call.project, call.zone, _name(call))),
        permission=method.permission,
        rpc=method.rpc,
        quota=facts["metric"],
        metric=f"compute.googleapis.com/{facts['metric'].lower()}",
        quota_id=facts["quota"],
        limit=float(world.scenario.compute.quota(region).quota_chips),
        reservation="practice",
        disk_type="pd-standard",
        what=method.rpc,
    )


Items = Iterator[tuple[Key, Document]]


def _instances(world: World, call: Call) -> Items:
    for key, instance in world.compute.instances.items():
        if key.project == call.project:
            yield key, instance_document(instance)


def _operations(world: World, call: Call) -> Items:
    for key, operation in world.compute.operations.items():
        if key.project == call.project:
            yield key, operations.document(operation)


def _resources(world: World, call: Call) -> Items:
    collection = COMPUTE_METHODS[call.method].collection
    for (kind, key), item in world.compute.resources.items():
        if kind == collection and key.project == call.project:
            yield key, _shown(world, item)


def _shown(world: World, item: Resource) -> Document:
    return (
        groups.group_document(world, item) if isinstance(item, Group) else resource_document(item)
    )


def _get_resource(world: World, call: Call) -> Document:
    return _shown(world, slices.find(world, call))


def _get_operation(world: World, call: Call) -> Document:
    key = Key.of(call)
    operation = world.compute.operations.get(key)
    if operation is None:
        raise compute_error("not_found", resource=path_of("operations", key))
    return operations.document(operation)


def _guest_attributes(world: World, call: Call) -> Document:
    instance = instances.find(world, call)
    path = str(call.body.get("queryPath") or call.body.get("variableKey") or "").strip("/")
    items = [
        {"namespace": name.partition("/")[0], "key": name.partition("/")[2], "value": value}
        for name, value in sorted(instance.published_attributes(0).items())
        if not path or name == path or name.startswith(f"{path}/")
    ]
    if not items:
        raise compute_error("not_found", resource=f"{instance.path}/guestAttributes/{path}")
    shown = {"kind": "compute#guestAttributes", "queryPath": f"{path}/" if path else ""}
    return {**shown, "queryValue": {"items": items}}


def _serial_port(world: World, call: Call) -> Document:
    instance = instances.find(world, call)
    try:
        first = max(0, int(call.body.get("start") or 0))
    except ValueError:
        raise compute_error("invalid", field="start", value=call.body["start"], why="") from None
    text = instance.log[first:]
    shown = {"kind": "compute#serialPortOutput", "contents": text, "start": str(first)}
    return {**shown, "next": str(first + len(text))}


_RESOURCES = (
    "resourcePolicies", "instanceTemplates", "regionInstanceTemplates", "instanceGroupManagers",
)  # fmt: skip
_SHOWN: dict[str, Callable[[World, Call], Items]] = {
    "instances": _instances,
    "zoneOperations": _operations,
    "regionOperations": _operations,
    "globalOperations": _operations,
    **dict.fromkeys(_RESOURCES, _resources),
    **catalog.ITEMS,
}
_READS: dict[str, Callable[[World, Call], Document]] = {
    "compute_instances_get": lambda world, call: instance_document(instances.find(world, call)),
    "compute_instances_get_guest_attributes": _guest_attributes,
    "compute_instances_get_serial_port_output": _serial_port,
    **{
        f"compute_{scope}_operations_{verb}": _get_operation
        for scope in ("zone", "region", "global")
        for verb in ("get", "wait")
    },
    **{f"compute_{snake(collection)}_get": _get_resource for collection in _RESOURCES},
    "compute_instance_group_managers_list_managed_instances": groups.list_managed,
    "compute_instance_group_managers_list_errors": groups.list_errors,
    **catalog.READS,
}
