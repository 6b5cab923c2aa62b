"""What Compute Engine only lists: places, machine types, images, networks, reservations, quotas."""

from collections.abc import Callable, Iterator

from tpuctl.emulator.compute.documents import disk_document, machine_document
from tpuctl.emulator.compute.resources import (
    GLOBAL,
    ROOT,
    MachineType,
    machine_types,
    path_of,
    region_of,
)
from tpuctl.emulator.compute.validate import find_machine
from tpuctl.emulator.documents import default_account
from tpuctl.emulator.errors import ComputeError, compute_error, load_data, project_number
from tpuctl.emulator.methods import Call, Document
from tpuctl.emulator.resources import Key
from tpuctl.emulator.world import World

Items = Iterator[tuple[Key, Document]]


def _project(_: World, call: Call) -> Document:
    number = str(project_number(call.project))
    about = {"kind": "compute#project", "name": call.project, "id": number}
    metadata = {"kind": "compute#metadata", "items": []}
    link = f"{ROOT}projects/{call.project}"
    return {
        **about,
        "commonInstanceMetadata": metadata,
        "selfLink": link,
        "quotas": [],
        "defaultServiceAccount": default_account(call.project),
    }


def _zones(world: World, call: Call) -> Items:
    for zone in world.scenario.zones:
        yield Key(call.project, "", zone), _zone(call, zone)


def _zone(call: Call, zone: str) -> Document:
    place = f"{ROOT}projects/{call.project}"
    about = {
        "kind": "compute#zone",
        "name": zone,
        "status": "UP",
        "region": f"{place}/regions/{region_of(zone)}",
    }
    return {**about, "selfLink": f"{place}/zones/{zone}"}


def _regions(world: World, call: Call) -> Items:
    for region in sorted({region_of(zone) for zone in world.scenario.zones}):
        yield Key(call.project, "", region), _region(world, call, region)


def _region(world: World, call: Call, region: str) -> Document:
    """Show a region; of its quotas the real one knows those of old generations only."""
    place = f"{ROOT}projects/{call.project}"
    zones = [f"{place}/zones/{zone}" for zone in world.scenario.zones if region_of(zone) == region]
    plan = world.scenario.compute.quota(region)
    quotas = [
        {"metric": metric, "limit": float(limit), "usage": 0.0}
        for metric, limit in (
            ("TPU_LITE_PODSLICE_V5", plan.quota_chips),
            ("PREEMPTIBLE_TPU_LITE_PODSLICE_V5", plan.spot_quota_chips),
        )
    ]
    about = {"kind": "compute#region", "name": region, "status": "UP", "zones": zones}
    return {**about, "quotas": quotas, "selfLink": f"{place}/regions/{region}"}


def _machine_types(world: World, call: Call) -> Items:
    for zone, plan in world.scenario.zones.items():
        for name in plan.machine_types:
            key = Key(call.project, zone, name)
            yield key, machine_document(machine_types()[name], name, call.project, zone)


def _machine_type(world: World, call: Call) -> Document:
    machine = find_machine(call.name)
    if machine is None or machine.name not in world.scenario.zones[call.zone].machine_types:
        raise _missing("machineTypes", call)
    return machine_document(machine, call.name, call.project, call.zone)


def _accelerator_types(world: World, call: Call) -> Items:
    for zone, plan in world.scenario.zones.items():
        kinds = {machine_types()[name].facts["accelerator"] for name in plan.machine_types}
        for name in sorted(kinds):
            link = f"{ROOT}projects/{call.project}/zones/{zone}/acceleratorTypes/{name}"
            shown = {"kind": "compute#acceleratorType", "name": name, "selfLink": link}
            yield Key(call.project, zone, name), shown


def _image(_: World, call: Call) -> Document:
    name = load_data("compute")["images"].get(call.name)
    if name is None:
        resource = f"projects/{call.project}/global/images/family/{call.name}"
        raise compute_error("not_found", resource=resource)
    link = f"{ROOT}projects/{call.project}/global/images/{name}"
    shown = {"kind": "compute#image", "name": name, "family": call.name, "status": "READY"}
    return {**shown, "architecture": "X86_64", "diskSizeGb": "10", "selfLink": link}


def _network(_: World, call: Call) -> Document:
    link = f"{ROOT}{path_of('networks', Key(call.project, GLOBAL, call.name))}"
    return {
        "kind": "compute#network",
        "name": call.name,
        "autoCreateSubnetworks": True,
        "selfLink": link,
    }


def _subnetwork(_: World, call: Call) -> Document:
    path = path_of("subnetworks", Key(call.project, call.zone, call.name))
    network = f"{ROOT}projects/{call.project}/global/networks/default"
    about = {"kind": "compute#subnetwork", "name": call.name, "network": network}
    return {
        **about,
        "ipCidrRange": "127.64.0.0/10",
        "privateIpGoogleAccess": True,
        "selfLink": ROOT + path,
    }


def _disk(world: World, call: Call) -> Document:
    instance = world.compute.instances.get(Key.of(call))
    if instance is None:
        raise _missing("disks", call)
    return disk_document(instance)


def _reservations(world: World, call: Call) -> Items:
    for zone, plan in world.scenario.zones.items():
        types = [machine_types()[name] for name in plan.machine_types]
        if plan.reserved_chips and types:
            yield (
                Key(call.project, zone, "practice"),
                _reservation(call, zone, types[0], plan.reserved_chips),
            )


def _reservation(call: Call, zone: str, machine: MachineType, chips: int) -> Document:
    place = f"{ROOT}projects/{call.project}/zones/{zone}"
    kind = f"{place}/acceleratorTypes/{machine.facts['accelerator']}"
    held = {"accelerator": {"acceleratorCount": chips, "acceleratorType": kind}}
    whole = {
        "vmFamily": machine.facts["reservation"],
        "workloadType": "BATCH",
        "reservedResources": [held],
    }
    about = {"kind": "compute#reservation", "name": "practice", "status": "READY", "zone": place}
    link = f"{place}/reservations/practice"
    return {
        **about,
        "aggregateReservation": whole,
        "specificReservationRequired": True,
        "selfLink": link,
    }


def _missing(collection: str, call: Call) -> ComputeError:
    return compute_error("not_found", resource=path_of(collection, Key.of(call)))


ITEMS: dict[str, Callable[[World, Call], Items]] = {
    "zones": _zones,
    "regions": _regions,
    "machineTypes": _machine_types,
    "acceleratorTypes": _accelerator_types,
    "reservations": _reservations,
}
READS: dict[str, Callable[[World, Call], Document]] = {
    "compute_projects_get": _project,
    "compute_zones_get": lambda _, call: _zone(call, call.zone),
    "compute_regions_get": lambda world, call: _region(world, call, call.zone),
    "compute_machine_types_get": _machine_type,
    "compute_images_get_from_family": _image,
    "compute_image_family_views_get": lambda world, call: {"image": _image(world, call)},
    "compute_networks_get": _network,
    "compute_subnetworks_get": _subnetwork,
    "compute_disks_get": _disk,
}
