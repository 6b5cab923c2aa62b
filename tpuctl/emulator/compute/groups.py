"""Managed instance groups, which create their instances; in bulk mode, all of them or none.

A slice is ACTIVATING until all hosts run, then ACTIVE. It is ACTIVE_DEGRADED while a host does not
run, and INCOMPLETE when one is gone.
"""

import re
from typing import Any

from tpuctl.emulator import operations as ends
from tpuctl.emulator.compute import instances, operations
from tpuctl.emulator.compute.documents import resource_document
from tpuctl.emulator.compute.resources import (
    ROOT,
    ComputeOperation,
    Group,
    Instance,
    path_of,
    region_of,
    rfc3339,
)
from tpuctl.emulator.compute.slices import find, forget, read_policy, read_template, register
from tpuctl.emulator.compute.validate import check_name, invalid, last_part, read_machine
from tpuctl.emulator.errors import ServiceError, compute_error, load_data
from tpuctl.emulator.methods import Call, Document
from tpuctl.emulator.nodes import UPDATE_S, do_nothing
from tpuctl.emulator.operations import Failure
from tpuctl.emulator.resources import Key
from tpuctl.emulator.world import World

_ACTIVATION_S = 15.0
_NUMBERED = re.compile(r"(#+)\[(\d+)\]$")
_LONGEST_BASE = 58
_DEFAULTS = load_data("compute")["defaults"]
_ACTIONS = {
    **dict.fromkeys(("PENDING", "PROVISIONING", "STAGING"), "CREATING"),
    "STOPPING": "DELETING",
}


def insert(world: World, call: Call, failure: Failure | None) -> ComputeOperation:
    """Create a group; its instances come later, and only the group's status shows them."""
    requested = dict(call.body["resource"])
    key = Key(call.project, call.zone, check_name(requested.get("name")))
    base = str(requested.setdefault("baseInstanceName", key.name))
    check_name(_NUMBERED.sub("1", base))
    if len(base) > _LONGEST_BASE:
        raise invalid("resource.baseInstanceName", base, f"At most {_LONGEST_BASE} characters.")
    url = requested.get("instanceTemplate")
    template, machine, document, model = read_template(world, call.project, url)
    url = (requested.get("resourcePolicies") or {}).get("workloadPolicy")
    policy = read_policy(world, call.project, url)
    topology = _topology(policy)
    is_bulk = (requested.get("targetSizePolicy") or {}).get("mode") == "BULK"
    if policy and "groupPlacementPolicy" in policy.document:
        raise compute_error("placement_policy", machine_type=machine.name)
    if policy and policy.key.zone != region_of(call.zone):
        raise invalid("resource.resourcePolicies.workloadPolicy", policy.path, "Wrong region.")
    if topology and not is_bulk:
        raise compute_error("not_bulk")
    read_machine(world, world.scenario.compute_zones[call.zone], machine.name)
    instances.refuse_use(world, key, machine, document)
    if ("instanceGroupManagers", key) in world.compute.resources:
        raise compute_error("already_exists", resource=path_of("instanceGroupManagers", key))
    group = Group(
        "instanceGroupManagers", key, operations.new_id(world), world.now, requested,
        template=template, policy=policy, topology=topology, is_bulk=is_bulk,
        machine=machine, model=model, properties=document,
    )  # fmt: skip
    size = _read_size(requested.get("targetSize", 0))
    failure = failure or _wrong_size(group, size)
    operation = register(world, group, "compute.instanceGroupManagers.insert", failure)
    if not failure:
        _set_size(world, group, size)
    return operation


def _topology(policy: Any) -> str | None:
    workload = policy.document.get("workloadPolicy", {}) if policy else {}
    topology: str | None = workload.get("acceleratorTopology")
    return topology


def _read_size(value: Any) -> int:
    try:
        size = int(value)
    except (TypeError, ValueError):
        size = -1
    if not 0 <= size <= 1000:
        raise invalid("size", value, "It must be from 0 to 1000.")
    return size


def _wrong_size(group: Group, size: int) -> Failure | None:
    """Return how an operation fails if the size is not that of the topology."""
    hosts = group.hosts
    if hosts is None or size in (0, hosts):
        return None
    return Failure(UPDATE_S, compute_error("group_size", hosts=hosts, size=size))


def _set_size(world: World, group: Group, size: int) -> None:
    base = str(group.document["baseInstanceName"])
    numbered = _NUMBERED.search(base)
    for index in range(len(group.names), size):
        if numbered:
            number = str(int(numbered[2]) + index).zfill(len(numbered[1]))
            name = base[: numbered.start()] + number
        else:
            name = f"{base}-{world.digest(f'{group.id} {index} {world.number()}')[:4]}"
        group.names = (*group.names, name)
    _keep(world, group, group.names[:size])


def _keep(world: World, group: Group, names: tuple[str, ...]) -> None:
    group.names = names
    group.made &= set(names)
    for instance in group.instances(world.compute):
        if instance.key.name not in names and instance.state != "STOPPING":
            instances.begin_stop(world, instance)
            world.after(world.scenario.delete_s, instances.remove, instance)
    world.compute.changed = True


def resize(world: World, call: Call, failure: Failure | None) -> ComputeOperation:
    """Start to resize a group; a slice can only have all of its hosts or none."""
    group, size = find_group(world, call), _read_size(call.body.get("size"))
    return operations.start(
        world, "compute.instanceGroupManagers.resize", group, failure or _wrong_size(group, size),
        takes_s=UPDATE_S, then=lambda *_: _set_size(world, group, size), undo=do_nothing,
    )  # fmt: skip


def delete_instances(world: World, call: Call, failure: Failure | None) -> ComputeOperation:
    """Start to delete instances of a group, which shrinks accordingly."""
    group = find_group(world, call)
    chosen = {last_part(url) for url in call.body.get("resource", {}).get("instances", [])}
    if unknown := sorted(chosen - set(group.names)):
        raise invalid("instances", unknown[0], "Not an instance of the group.")
    kept = tuple(name for name in group.names if name not in chosen)
    return operations.start(
        world, "compute.instanceGroupManagers.deleteInstances", group,
        failure or _wrong_size(group, len(kept)),
        takes_s=UPDATE_S, then=lambda *_: _keep(world, group, kept), undo=do_nothing,
    )  # fmt: skip


def delete(world: World, call: Call, failure: Failure | None) -> ComputeOperation:
    """Start to delete a group and its instances."""
    group, verb = find_group(world, call), "compute.instanceGroupManagers.delete"
    if group.operation and not group.operation.ended and group.operation.verb == verb:
        raise compute_error("busy", resource=group.path)
    ends.abort(world, group, compute_error("cancelled", resource=group.path))

    def finish(world: World, group: Group) -> None:
        for instance in group.instances(world.compute):
            instances.remove(world, instance)
        forget(world, group)

    if not failure:
        _keep(world, group, ())
    return operations.start(
        world, verb, group, failure,
        takes_s=world.scenario.delete_s, then=finish, undo=do_nothing,
    )  # fmt: skip


def refuse_resize_request(world: World, call: Call, _: Failure | None) -> ComputeOperation:
    """Refuse a resize request, which works only for GPUs."""
    raise compute_error("resize_request")


def find_group(world: World, call: Call) -> Group:
    """Return the group that a call is about; raises ComputeError."""
    found = find(world, call)
    assert isinstance(found, Group)
    return found


def settle(world: World) -> None:
    """Update all groups, and give free chips to waiting instances."""
    world.compute.changed = False
    for group in list(world.compute.resources.values()):
        if isinstance(group, Group):
            _fill(world, group)
            _review(world, group)
    for instance in list(world.compute.instances.values()):
        if instance.state == "PENDING" and not instance.group:
            instances.try_to_grant(world, [instance])


def _fill(world: World, group: Group) -> None:
    """Create the missing instances of a group; in bulk mode, all at once."""
    missing = []
    for index, name in enumerate(group.names):
        instance = group.instance(world.compute, name)
        if name in group.made and not group.repairs:
            continue
        if instance and instance.state == "TERMINATED":
            instances.remove(world, instance)
            instance = None
        if instance is None or instance.state == "PENDING":
            missing.append(instance or _make(world, group, name, index))
    group.error = None
    for batch in [missing] if group.is_bulk else [[instance] for instance in missing]:
        if batch:
            group.error = instances.try_to_grant(world, batch) or group.error
    for instance in missing:
        if instance.holds_chips:
            group.made.add(instance.key.name)
        elif group.model == "flex" and instance.key not in world.compute.instances:
            instance.state = "PENDING"
            world.compute.instances[instance.key] = instance


def _make(world: World, group: Group, name: str, index: int) -> Instance:
    key = Key(group.key.project, group.key.zone, name)
    document = {**group.properties, "metadata": dict(group.properties["metadata"])}
    return instances.make(world, key, group.machine, document, group.model, group, index)


def _review(world: World, group: Group) -> None:
    """Update the state of a slice from its instances."""
    if not group.topology or not group.names:
        group.state = ""
    elif group.all_run(world.compute):
        if group.state != "ACTIVE":
            group.state = "REACTIVATING" if group.was_active else "ACTIVATING"
            world.after(_ACTIVATION_S, _activate, group)
    elif group.was_active:
        whole = len(group.instances(world.compute)) == len(group.names)
        group.state = "ACTIVE_DEGRADED" if whole else "INCOMPLETE"
    else:
        group.state = "ACTIVATING"


def _activate(world: World, group: Group) -> None:
    if group.all_run(world.compute) and group.state.endswith("ACTIVATING"):
        group.state, group.was_active = "ACTIVE", True


def group_document(world: World, group: Group) -> Document:
    """Write a group with its status."""
    rows = list_managed(world, group)
    states = [row.get("instanceStatus", "nonExistent").lower() for row in rows]
    states = ["nonExistent" if state == "nonexistent" else state for state in states]
    actions = [row["currentAction"] for row in rows]
    error = {"lastProgressCheck": {"error": _errors(group.error)}} if group.error else {}
    status: Document = {
        "isStable": all(action == "NONE" for action in actions),
        "currentInstanceStatuses": {state: states.count(state) for state in sorted(set(states))},
        "bulkInstanceOperation": {"inProgress": "CREATING" in actions, **error},
    }
    if group.state:
        shown = {"acceleratorTopology": group.topology, "state": group.state}
        status["appliedAcceleratorTopologies"] = [shown]
    words = {"NONE": "none", "CREATING": "creating", "DELETING": "deleting"}
    size, template = len(group.names), ROOT + group.template.path
    counts = {word: actions.count(action) for action, word in words.items()}
    return {
        **_DEFAULTS["group"],
        **resource_document(group),
        "targetSize": size,
        "instanceTemplate": template,
        "versions": [{"instanceTemplate": template, "targetSize": {"calculated": size}}],
        "instanceGroup": ROOT + path_of("instanceGroups", group.key),
        "currentActions": _DEFAULTS["actions"] | counts,
        "status": _DEFAULTS["group_status"] | status,
    }


def _errors(error: ServiceError | None) -> Document:
    return {"errors": [error.document]} if error else {}


def _managed(world: World, group: Group, name: str) -> Document:
    """Write one instance of a group, whether or not it exists."""
    instance = group.instance(world.compute, name)
    key = Key(group.key.project, group.key.zone, name)
    row: Document = {**_DEFAULTS["managed"], "name": name}
    row["instance"] = ROOT + path_of("instances", key)
    row["version"] = {"instanceTemplate": ROOT + group.template.path}
    row["currentAction"] = "NONE" if name in group.made else "CREATING"
    if instance:
        row |= {"id": str(instance.id), "instanceStatus": instance.state}
        row["currentAction"] = _ACTIONS.get(instance.state, "NONE")
        if instance.expires:
            row["scheduling"] = {"terminationTimestamp": rfc3339(instance.expires)}
    if group.error and name not in group.made:
        row["lastAttempt"] = {"errors": _errors(group.error)}
    return row


def list_managed(world: World, group: Group) -> list[Document]:
    """List the instances of a group, including those not created yet and those being deleted."""
    names = [*group.names, *(item.key.name for item in group.instances(world.compute))]
    return [_managed(world, group, name) for name in dict.fromkeys(names)]


def list_errors(world: World, group: Group) -> list[Document]:
    """List the reasons why a group could not create its instances."""
    found = []
    for row in list_managed(world, group):
        for error in row.get("lastAttempt", {}).get("errors", {}).get("errors", []):
            details = {"action": "CREATING", "instance": row["instance"]}
            shown = {"code": error["code"], "message": error["message"]}
            moment = {"timestamp": rfc3339(world.now)}
            found.append({"error": shown, "instanceActionDetails": details, **moment})
    return found
