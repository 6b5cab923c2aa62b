"""The metadata that a Compute Engine instance reads about itself."""

from typing import Any

from tpuctl.emulator.compute.documents import metadata_items
from tpuctl.emulator.compute.resources import Instance
from tpuctl.emulator.documents import SSH_PORT
from tpuctl.emulator.errors import project_number
from tpuctl.emulator.world import World

Tree = dict[str, Any]


def instance_tree(world: World, instance: Instance) -> Tree:
    """Return the instance's own metadata, below `instance/`."""
    project, zone, name = instance.key
    number = project_number(project)
    scheduling = instance.scheduling
    own = metadata_items(instance)
    own.pop(SSH_PORT, None)
    return {
        "id": str(instance.id),
        "name": name,
        "hostname": f"{name}.{zone}.c.{project}.internal",
        "zone": f"projects/{number}/zones/{zone}",
        "machine-type": f"projects/{number}/machineTypes/{instance.machine.name}",
        "attributes": {**own, **_tpu_attributes(world, instance)},
        "preempted": "TRUE" if instance.was_preempted else "FALSE",
        "maintenance-event": instance.maintenance,
        "tags": "[]",
        "scheduling": {
            "automatic-restart": str(bool(scheduling["automaticRestart"])).upper(),
            "on-host-maintenance": str(scheduling["onHostMaintenance"]),
            "preemptible": str(bool(scheduling["preemptible"])).upper(),
        },
    }


def _tpu_attributes(world: World, instance: Instance) -> dict[str, str]:
    """Return the keys that libtpu and JAX read; little is known about those of a single host."""
    found = {"accelerator-type": instance.accelerator_type}
    group = instance.group
    names: tuple[str, ...] = (instance.key.name,)
    if group and group.topology:
        names, topology = group.names, group.topology
    elif world.scenario.compute.single_host_attributes:
        topology = {1: "1x1", 4: "2x2", 8: "2x4"}.get(instance.chips, "1x2")
    else:
        return found
    is_flat = topology.count("x") == 1
    side = {1: "1,1,1", 2: "1,2,1", 4: "2,2,1", 8: "2,4,1"}[instance.chips]
    sizes = [int(part) for part in topology.split("x")] + ([1] if is_flat else [])
    bounds = ",".join(
        str(size // int(part)) for size, part in zip(sizes, side.split(","), strict=True)
    )
    tpu_env = {
        "TPU_ACCELERATOR_TYPE": instance.accelerator_type,
        "TOPOLOGY": topology,
        "TPU_WORKER_ID": str(instance.index),
        "HOST_BOUNDS": bounds,
        "CHIPS_PER_HOST_BOUNDS": side,
    }
    return {
        **found,
        "agent-worker-number": str(instance.index),
        "worker-network-endpoints": ",".join(names),
        "tpu-env": "".join(f"{key}: '{value}'\n" for key, value in tpu_env.items()),
    }
