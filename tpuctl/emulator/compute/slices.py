"""Workload policies and instance templates, from which slices are created."""

import re
from typing import Any

from tpuctl.emulator.compute import operations
from tpuctl.emulator.compute.methods import COMPUTE_METHODS
from tpuctl.emulator.compute.resources import (
    GLOBAL,
    ComputeOperation,
    Group,
    MachineType,
    Resource,
    path_of,
)
from tpuctl.emulator.compute.validate import (
    bad_request,
    check_name,
    invalid,
    read_machine,
    read_properties,
)
from tpuctl.emulator.errors import compute_error
from tpuctl.emulator.methods import Call, Document
from tpuctl.emulator.nodes import UPDATE_S, do_nothing
from tpuctl.emulator.operations import Failure
from tpuctl.emulator.resources import Key
from tpuctl.emulator.world import World

_TOPOLOGY = re.compile(r"[1-9]\d*x[1-9]\d*(x[1-9]\d*)?")
_POLICY = re.compile(
    r"(?:(?:https://[^/]+/compute/\w+/)?projects/([^/]+)/)?"
    r"regions/([^/]+)/resourcePolicies/([^/]+)"
)
_TEMPLATE = re.compile(
    r"(?:(?:https?://.*/)?projects/([^/]+)/)?"
    r"(?:regions/([^/]+)|global)/instanceTemplates/([^/]+)"
)
_KINDS = (
    "workloadPolicy",
    "groupPlacementPolicy",
    "instanceSchedulePolicy",
    "snapshotSchedulePolicy",
)


def insert(world: World, call: Call, failure: Failure | None) -> ComputeOperation:
    """Create a policy or a template."""
    requested = dict(call.body["resource"])
    collection = COMPUTE_METHODS[call.method].collection
    key = Key(call.project, call.zone, check_name(requested.get("name")))
    if collection == "resourcePolicies":
        _check_policy(requested)
    else:
        _check_template(world, call, requested)
    if (collection, key) in world.compute.resources:
        raise compute_error("already_exists", resource=path_of(collection, key))
    made = Resource(collection, key, operations.new_id(world), world.now, requested)
    return register(world, made, "insert", failure)


def register(world: World, made: Resource, verb: str, failure: Failure | None) -> ComputeOperation:
    """Add a resource, with an operation for its creation."""
    world.compute.resources[made.collection, made.key] = made
    return operations.start(
        world, verb, made, failure, takes_s=UPDATE_S, then=do_nothing, undo=forget
    )


def forget(world: World, item: Resource) -> None:
    """Remove a resource."""
    if world.compute.resources.get((item.collection, item.key)) is item:
        del world.compute.resources[item.collection, item.key]


def delete(world: World, call: Call, failure: Failure | None) -> ComputeOperation:
    """Start to delete a policy or a template that no group uses."""
    item = find(world, call)
    for user in world.compute.resources.values():
        if isinstance(user, Group) and item in (user.template, user.policy):
            kind = "resource_policy" if item is user.policy else "instance_template"
            raise compute_error("in_use", kind=kind, resource=item.path, user=user.path)
    return operations.start(
        world, "delete", item, failure, takes_s=UPDATE_S, then=forget, undo=do_nothing
    )


def find(world: World, call: Call) -> Resource:
    """Return the resource of a call; raises ComputeError."""
    return get(world, COMPUTE_METHODS[call.method].collection, Key.of(call))


def get(world: World, collection: str, key: Key) -> Resource:
    """Return a resource; raises ComputeError."""
    if item := world.compute.resources.get((collection, key)):
        return item
    raise compute_error("not_found", resource=path_of(collection, key))


def _check_policy(requested: Document) -> None:
    kinds = [kind for kind in _KINDS if kind in requested]
    if len(kinds) != 1:
        raise bad_request(f"A resource policy must have exactly one of {', '.join(_KINDS)}.")
    workload = requested.get("workloadPolicy") or {}
    topology = workload.get("acceleratorTopology")
    field = "resource.workloadPolicy"
    if workload and workload.get("type") not in ("HIGH_THROUGHPUT", "HIGH_AVAILABILITY"):
        raise invalid(f"{field}.type", workload.get("type"), "The value is not known.")
    if topology and not _TOPOLOGY.fullmatch(str(topology)):
        raise invalid(f"{field}.acceleratorTopology", topology, "It must be such as 2x4.")
    if topology and workload.get("maxTopologyDistance"):
        raise bad_request("maxTopologyDistance and acceleratorTopology are mutually exclusive.")


def _check_template(world: World, call: Call, requested: Document) -> None:
    properties: Document = requested.get("properties") or {}
    value = properties.get("machineType")
    if "/" in str(value or "/"):
        why = "The URL is malformed. Must provide the name of an existing machine type."
        raise invalid("resource.properties.machineType", value, why)
    machine = read_machine(world, None, value)
    read_properties(machine, properties)
    for network in properties.get("networkInterfaces") or []:
        subnet = network.get("subnetwork")
        if call.zone == GLOBAL and subnet and "regions/" not in subnet:
            field = "resource.properties.networkInterfaces[0].subnetwork"
            raise compute_error("malformed_url", field=field, value=subnet)


def read_template(
    world: World, own_project: str, url: Any
) -> tuple[Resource, MachineType, Document, str]:
    """Return the template behind a link, and its instance properties; raises ComputeError."""
    found = _TEMPLATE.fullmatch(str(url))
    if not found:
        raise compute_error("malformed_url", field="resource.instanceTemplate", value=url)
    project, region, name = found.groups()
    collection = "regionInstanceTemplates" if region else "instanceTemplates"
    template = get(world, collection, Key(project or own_project, region or GLOBAL, name))
    properties = template.document["properties"]
    machine = read_machine(world, None, properties["machineType"])
    return template, machine, *read_properties(machine, properties)


def read_policy(world: World, own_project: str, url: Any) -> Resource | None:
    """Return the workload policy behind a link; raises ComputeError."""
    if not url:
        return None
    found = _POLICY.fullmatch(str(url))
    if not found:
        raise compute_error(
            "malformed_url", field="resource.resourcePolicies.workloadPolicy", value=url
        )
    project, region, name = found.groups()
    return get(world, "resourcePolicies", Key(project or own_project, region, name))
