"""What Compute Engine can list, and its read-only resources."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from tpuctl.emulator.compute import documents, operations
from tpuctl.emulator.compute.groups import group_document
from tpuctl.emulator.compute.instances import find
from tpuctl.emulator.compute.methods import COMPUTE_METHODS
from tpuctl.emulator.compute.resources import (
    GLOBAL,
    IMAGE_PROJECT,
    ROOT,
    Group,
    MachineType,
    machine_types,
    path_of,
    region_of,
)
from tpuctl.emulator.compute.validate import RESERVATION
from tpuctl.emulator.documents import default_account
from tpuctl.emulator.errors import compute_error, load_data, project_number
from tpuctl.emulator.methods import Call, Document
from tpuctl.emulator.nodes import attribute_items
from tpuctl.emulator.resources import Key
from tpuctl.emulator.world import World

Items = Iterator[tuple[Key, Callable[[], Document]]]


def items(world: World, call: Call) -> Items:
    """Return the keys of a call's collection, and a function that writes each item."""
    collection = COMPUTE_METHODS[call.method].collection
    found = _of_zones(world, call, collection)
    if collection == "instances":
        known = world.compute.instances.items()
        found = ((key, partial(documents.instance_document, item)) for key, item in known)
    elif "Operations" in collection:
        ran = world.compute.operations.items()
        found = ((key, partial(operations.document, item)) for key, item in ran)
    elif collection == "images":
        found = _images(call.project)
    elif collection == "networks":
        key = Key(call.project, GLOBAL, "default")
        found = iter([(key, partial(_network, world, replace(call, name=key.name)))])
    elif collection not in _OF_ZONES:
        found = _resources(world, collection)
    return ((key, show) for key, show in found if key.project == call.project)


def _resources(world: World, collection: str) -> Items:
    for (kind, key), item in world.compute.resources.items():
        if kind == collection and isinstance(item, Group):
            yield key, partial(group_document, world, item)
        elif kind == collection:
            yield key, partial(documents.resource_document, item)
        elif collection == "instanceGroups" and isinstance(item, Group):
            size = {"size": len(item.names)}
            yield key, partial(documents.describe, "instanceGroup", collection, key, size)


_OF_ZONES = ("zones", "regions", "machineTypes", "reservations")


def _of_zones(world: World, call: Call, collection: str) -> Items:
    """Return the resources that follow from the scenario's zones."""
    project = call.project
    for zone, plan in world.scenario.compute_zones.items():
        types = [machine_types()[name] for name in plan.machine_types]
        region = f"{ROOT}projects/{project}/regions/{region_of(zone)}"
        if collection == "zones":
            key = Key(project, "", zone)
            about: Document = {"status": "UP", "region": region}
            yield key, partial(documents.describe, "zone", collection, key, about)
        elif collection == "machineTypes":
            for machine in types:
                key = Key(project, zone, machine.name)
                yield key, partial(_machine_type, machine, key)
        elif collection == "reservations" and plan.reserved_chips and types:
            key = Key(project, zone, RESERVATION)
            yield key, partial(_reservation, types[0], plan.reserved_chips, key)
    for region in sorted({region_of(zone) for zone in world.scenario.compute_zones}):
        if collection == "regions":
            # The real service has quotas only for old generations.
            about = {"status": "UP", "quotas": []}
            key = Key(project, "", region)
            yield key, partial(documents.describe, "region", collection, key, about)


def _machine_type(machine: MachineType, key: Key) -> Document:
    twin = machine.facts["accelerator"]
    if key.name != machine.name:
        twin = f"tpu-{machine.generation}"
    about = {
        "description": f"{machine.chips} TPU chips",
        "guestCpus": machine.vcpus or 0,
        "memoryMb": machine.memory_gb * 1024,
        "accelerators": [{"guestAcceleratorType": twin, "guestAcceleratorCount": machine.chips}],
    }
    return {**documents.describe("machineType", "machineTypes", key, about), "zone": key.zone}


def machine_type(world: World, call: Call) -> Document:
    """Show a machine type by either of its names; only one of them is listed."""
    bare = call.name.removesuffix("-tpu")
    for key, _ in _of_zones(world, call, "machineTypes"):
        if key.zone == call.zone and key.name.removesuffix("-tpu") == bare:
            return _machine_type(machine_types()[key.name], Key.of(call))
    raise compute_error("not_found", resource=path_of("machineTypes", Key.of(call)))


def _reservation(machine: MachineType, chips: int, key: Key) -> Document:
    kind = ROOT + path_of(
        "acceleratorTypes", Key(key.project, key.zone, machine.facts["accelerator"])
    )
    held = {"accelerator": {"acceleratorCount": chips, "acceleratorType": kind}}
    family = machine.facts["reservation"]
    whole = {"vmFamily": family, "workloadType": "BATCH", "reservedResources": [held]}
    about = {"status": "READY", "aggregateReservation": whole, "specificReservationRequired": True}
    return documents.describe("reservation", "reservations", key, about)


def _project(_: World, call: Call) -> Document:
    """Show a project, in which gcloud looks for SSH keys."""
    about = {
        "kind": "compute#project",
        "name": call.project,
        "id": str(project_number(call.project)),
    }
    metadata = {"kind": "compute#metadata", "items": []}
    account = {"defaultServiceAccount": default_account(call.project)}
    return {**about, **account, "commonInstanceMetadata": metadata}


def _image(_: World, call: Call) -> Document:
    name = load_data("compute")["images"].get(call.name)
    if name is None:
        resource = f"projects/{call.project}/global/images/family/{call.name}"
        raise compute_error("not_found", resource=resource)
    return _image_document(call.name, Key(call.project, GLOBAL, name))


def _image_document(family: str, key: Key) -> Document:
    about = {"family": family, "status": "READY", "architecture": "X86_64", "diskSizeGb": "10"}
    return documents.describe("image", "images", key, about)


def _images(project: str) -> Items:
    """Return Google's images for TPUs; other projects have none."""
    families = load_data("compute")["images"] if project == IMAGE_PROJECT else {}
    for name, family in {name: family for family, name in families.items()}.items():
        key = Key(project, GLOBAL, name)
        yield key, partial(_image_document, family, key)


def _network(_: World, call: Call) -> Document:
    """Show a network; every project has every network that is requested."""
    about = {"autoCreateSubnetworks": True}
    return documents.describe("network", "networks", Key.of(call), about)


def _guest_attributes(world: World, call: Call) -> Document:
    instance = find(world, call)
    path = str(call.body.get("queryPath") or call.body.get("variableKey") or "").strip("/")
    items = attribute_items(instance, 0, path)
    if not items:
        raise compute_error("not_found", resource=f"{instance.path}/guestAttributes/{path}")
    return {"queryPath": f"{path}/" if path else "", "queryValue": {"items": items}}


def _serial_port(world: World, call: Call) -> Document:
    instance, start = find(world, call), str(call.body.get("start") or 0)
    log = (
        f"[{instance.started}] {instance.key.name} Startup finished.\r\n"
        if instance.started
        else ""
    )
    first = int(start) if start.isdecimal() else 0
    return {"contents": log[first:], "start": str(first), "next": str(max(first, len(log)))}


READS: dict[str, Callable[[World, Call], Document]] = {
    "compute_instances_get_guest_attributes": _guest_attributes,
    "compute_instances_get_serial_port_output": _serial_port,
    "compute_projects_get": _project,
    "compute_machine_types_get": machine_type,
    "compute_images_get_from_family": _image,
    "compute_image_family_views_get": lambda world, call: {"image": _image(world, call)},
    "compute_networks_get": _network,
    "compute_subnetworks_get": lambda _, call: documents.describe(
        "subnetwork", "subnetworks", Key.of(call), {"privateIpGoogleAccess": True}
    ),
}
