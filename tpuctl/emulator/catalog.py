"""Read-only resources: zones, accelerator types, runtime versions, quotas."""

from collections.abc import Iterator

from tpuctl.emulator.compute.resources import region_of
from tpuctl.emulator.documents import accelerator_config, page
from tpuctl.emulator.errors import load_data, not_found, project_number
from tpuctl.emulator.methods import Call, Document
from tpuctl.emulator.scenario import known_type, quota_id
from tpuctl.emulator.world import World, quota_per_chip

_SERVICE, _COMPUTE = "tpu.googleapis.com", "compute.googleapis.com"

_Limit = tuple[str, str, dict[str, str], int]


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
    """List the quotas of Cloud TPU or Compute Engine like the Cloud Quotas API."""
    items = sorted(_quotas(world, call).items(), key=lambda item: item[0])
    return page("quotaInfos", items, call, lambda info: info)


def get_quota(world: World, call: Call) -> Document:
    """Show one quota."""
    name = str(call.body["name"]).rpartition("/")[2]
    if found := _quotas(world, call).get(name):
        return found
    raise not_found(str(call.body["name"]))


def _quotas(world: World, call: Call) -> dict[str, Document]:
    limits = {_SERVICE: _zone_limits, _COMPUTE: _region_limits}.get(call.name)
    found: dict[str, Document] = {}
    for name, what, dimensions, limit in limits(world) if limits else ():
        info = found.setdefault(name, _quota(call, name, what, list(dimensions)))
        details = {"value": str(limit)} if limit else {}
        places = [dimensions.get("zone") or dimensions["region"]]
        shown = {"dimensions": dimensions, "details": details, "applicableLocations": places}
        info["dimensionsInfos"].append(shown)
    return found


def _zone_limits(world: World) -> Iterator[_Limit]:
    for zone in world.scenario.zones.values():
        kinds = {kind.generation: kind for kind in reversed([*map(known_type, zone.types)])}
        for generation in dict.fromkeys(known_type(name).generation for name in zone.types):
            for spot, chips in ((False, zone.quota_chips), (True, zone.spot_quota_chips)):
                units = chips * quota_per_chip(kinds[generation])
                what = f"{'preemptible ' if spot else ''}{generation}"
                yield quota_id(generation, spot=spot), what, {"zone": zone.name}, units


def _region_limits(world: World) -> Iterator[_Limit]:
    """Return the quotas of Compute Engine, one of which covers several generations."""
    for region in sorted({region_of(zone) for zone in world.scenario.compute_zones}):
        plan = world.scenario.compute.quota(region)
        for facts in load_data("compute")["generations"].values():
            family = {"tpu_family": facts["family"]} if facts["family"] else {}
            yield facts["quota"], facts["metric"], {"region": region, **family}, plan.quota_chips
            spot = facts["spot_quota"], facts["spot_metric"]
            yield *spot, {"region": region}, plan.spot_quota_chips


def service_identity(world: World, call: Call) -> Document:
    """Return the service account of Cloud TPU in a project."""
    world.zone(call.project, call.zone)
    number = project_number(call.project)
    return {"identity": {"email": f"service-{number}@cloud-tpu.iam.gserviceaccount.com"}}


def _quota(call: Call, name: str, what: str, dimensions: list[str]) -> Document:
    parent = f"projects/{call.project}/locations/global/services/{call.name}"
    return {
        "name": f"{parent}/quotaInfos/{name}",
        "quotaId": name,
        "metric": f"{call.name}/{what.replace(' ', '_').lower()}",
        "service": call.name,
        "containerType": "PROJECT",
        "dimensions": dimensions,
        "metricDisplayName": f"TPU {what}",
        "quotaDisplayName": name,
        "metricUnit": "1",
        "dimensionsInfos": [],
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
