"""What the service only lists: zones, accelerator types, runtime versions, quotas."""

from tpuctl.emulator.documents import accelerator_config, page
from tpuctl.emulator.errors import load_data, not_found, project_number
from tpuctl.emulator.methods import Call, Document
from tpuctl.emulator.scenario import ZonePlan, known_type, quota_id
from tpuctl.emulator.world import World, quota_per_chip

_SERVICE = "tpu.googleapis.com"


def list_locations(world: World, call: Call) -> Document:
    """List all zones of the scenario."""
    found = [(zone, zone) for zone in sorted(world.scenario.zones)]
    return page("locations", found, call, lambda zone: _location(call.project, zone))


def get_location(world: World, call: Call) -> Document:
    """Show a zone."""
    return _location(call.project, world.zone(call.project, call.zone).name)


def list_types(world: World, call: Call) -> Document:
    """List the accelerator types of a zone."""
    zone = world.zone(call.project, call.zone)
    found = [(name, name) for name in sorted(zone.types)]
    return page("acceleratorTypes", found, call, lambda name: _type(call, name))


def get_type(world: World, call: Call) -> Document:
    """Show one accelerator type."""
    if call.name not in world.zone(call.project, call.zone).types:
        raise not_found(f"{call.place}/acceleratorTypes/{call.name}")
    return _type(call, call.name)


def list_versions(world: World, call: Call) -> Document:
    """List the runtime versions, which are the same in every zone."""
    world.zone(call.project, call.zone)
    found = [(name, name) for name in sorted(load_data("service")["runtime_versions"])]
    return page("runtimeVersions", found, call, lambda name: _version(call, name))


def get_version(world: World, call: Call) -> Document:
    """Show one runtime version."""
    world.zone(call.project, call.zone)
    if call.name not in load_data("service")["runtime_versions"]:
        raise not_found(f"{call.place}/runtimeVersions/{call.name}")
    return _version(call, call.name)


def list_reservations(world: World, call: Call) -> Document:
    """List the reservation of a zone, if it has one."""
    zone = world.zone(call.project, call.zone)
    size = zone.reserved_chips
    standard = {"size": size, "capacityUnits": "CHIPS", "usage": {}}
    found: Document = {"name": f"{call.place}/reservations/practice", "standard": standard}
    return {"reservations": [found] if size else []}


def list_quotas(world: World, call: Call) -> Document:
    """List the quotas of Cloud TPU as the Cloud Quotas API does; other services have none."""
    zones = world.scenario.zones.values() if call.name == _SERVICE else ()
    found: dict[str, Document] = {}
    for zone in zones:
        for generation in dict.fromkeys(known_type(name).generation for name in zone.types):
            for spot in (False, True):
                info = found.setdefault(
                    quota_id(generation, spot=spot), _quota(call, generation, spot=spot)
                )
                info["dimensionsInfos"].append(_limit(zone, generation, spot=spot))
    items = sorted(found.items(), key=lambda item: item[0])
    return page("quotaInfos", items, call, lambda info: info)


def service_identity(world: World, call: Call) -> Document:
    """Return the service account of Cloud TPU in a project."""
    world.zone(call.project, call.zone)
    number = project_number(call.project)
    return {"identity": {"email": f"service-{number}@cloud-tpu.iam.gserviceaccount.com"}}


def _quota(call: Call, generation: str, *, spot: bool) -> Document:
    name = quota_id(generation, spot=spot)
    parent = f"projects/{call.project}/locations/global/services/{call.name}"
    return {
        "name": f"{parent}/quotaInfos/{name}",
        "quotaId": name,
        "metric": f"{_SERVICE}/{'preemptible_' if spot else ''}{generation}",
        "service": _SERVICE,
        "containerType": "PROJECT",
        "dimensions": ["zone"],
        "metricDisplayName": f"TPU {generation}{' preemptible' if spot else ''}",
        "quotaDisplayName": name,
        "metricUnit": "1",
        "dimensionsInfos": [],
    }


def _limit(zone: ZonePlan, generation: str, *, spot: bool) -> Document:
    kind = next(kind for kind in map(known_type, zone.types) if kind.generation == generation)
    chips = zone.spot_quota_chips if spot else zone.quota_chips
    return {
        "dimensions": {"zone": zone.name},
        "details": {"value": str(chips * quota_per_chip(kind))} if chips else {},
        "applicableLocations": [zone.name],
    }


def _location(project: str, zone: str) -> Document:
    name = f"projects/{project}/locations/{zone}"
    return {"name": name, "locationId": zone, "labels": {"cloud.googleapis.com/zone": zone}}


def _type(call: Call, name: str) -> Document:
    config = accelerator_config(known_type(name))
    return {
        "name": f"{call.place}/acceleratorTypes/{name}",
        "type": name,
        "acceleratorConfigs": [config] if config else [],
    }


def _version(call: Call, name: str) -> Document:
    return {"name": f"{call.place}/runtimeVersions/{name}", "version": name}
