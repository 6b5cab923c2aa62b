"""Resources of Compute Engine as the API shows them."""

import re

from tpuctl.emulator.compute.instances import fingerprint
from tpuctl.emulator.compute.resources import (
    ROOT,
    Instance,
    MachineType,
    Resource,
    place_of,
    region_of,
    rfc3339,
)
from tpuctl.emulator.compute.validate import last_part
from tpuctl.emulator.documents import SSH_PORT, default_account
from tpuctl.emulator.errors import load_data, project_number
from tpuctl.emulator.methods import Document

# Nobody can change what it is the fingerprint of.
_FINGERPRINT = "AAAAAAAAAAA="
_SECRET = ("resourcePolicies", "params", "sourceInstanceTemplate")


def resource_document(item: Resource) -> Document:
    """Write a policy or a template: what was sent, and who it is."""
    place = place_of(item.key.zone)
    return {
        **item.document,
        "kind": f"compute#{kind_of(item.collection)}",
        "id": str(item.id),
        "creationTimestamp": rfc3339(item.created),
        "name": item.key.name,
        "selfLink": ROOT + item.path,
        **(
            {place.partition("s/")[0]: f"{ROOT}projects/{item.key.project}/{place}"}
            if "/" in place
            else {}
        ),
    }


def kind_of(collection: str) -> str:
    """Return the singular of a collection."""
    if "Operation" in collection:
        return "operation"
    singular = {"regionInstanceTemplates": "instanceTemplate", "resourcePolicies": "resourcePolicy"}
    return singular.get(collection, collection.removesuffix("s"))


def metadata_items(instance: Instance) -> dict[str, str]:
    """Return the metadata of an instance, with what its group and the emulator add."""
    added = {SSH_PORT: str(instance.ssh_port)} if instance.ssh_port else {}
    if group := instance.group:
        number = f"projects/{project_number(instance.key.project)}/"
        for name, path in (("created-by", group.path), ("instance-template", group.template.path)):
            added[name] = number + path.split("/", 2)[2]
    return {**instance.metadata, **added}


def instance_document(instance: Instance) -> Document:
    """Write an instance."""
    project, zone, name = instance.key
    requested, place = instance.document, f"{ROOT}projects/{project}/zones/{zone}"
    accounts = requested.get("serviceAccounts") or []
    found = {
        **{key: value for key, value in requested.items() if key not in _SECRET},
        "kind": "compute#instance",
        "id": str(instance.id),
        "name": name,
        "zone": place,
        "machineType": f"{place}/machineTypes/{instance.machine.name}",
        "status": instance.state,
        "creationTimestamp": rfc3339(instance.created),
        "labels": requested.get("labels", {}),
        "labelFingerprint": fingerprint(instance),
        "metadata": {
            "kind": "compute#metadata",
            "fingerprint": fingerprint(instance),
            "items": [
                {"key": key, "value": text} for key, text in metadata_items(instance).items()
            ],
        },
        "tags": {"fingerprint": _FINGERPRINT, **(requested.get("tags") or {})},
        "networkInterfaces": _interfaces(instance),
        "disks": _disks(instance),
        "serviceAccounts": [{**account, "email": account_of(instance)} for account in accounts],
        "selfLink": f"{place}/instances/{name}",
        "cpuPlatform": "Unknown CPU Platform",
        "startRestricted": False,
        "deletionProtection": False,
        "resourceStatus": {"scheduling": {}},
    }
    if instance.expires:
        expires = rfc3339(instance.expires)
        found["resourceStatus"] = {"scheduling": {"terminationTimestamp": expires}}
    for key, moment in (
        ("lastStartTimestamp", instance.started),
        ("lastStopTimestamp", instance.stopped),
    ):
        if moment:
            found[key] = rfc3339(moment)
    if instance.status_message:
        found["statusMessage"] = instance.status_message
    return found


def link(project: str, url: str) -> str:
    """Write any form of the name of a resource in full."""
    found = re.search(r"projects/.*", url)
    return ROOT + (found[0] if found else f"projects/{project}/{url}")


def account_of(instance: Instance) -> str:
    """Return the service account of an instance; "default" stands for that of the project."""
    accounts = instance.document.get("serviceAccounts") or [{}]
    email = accounts[0].get("email", "default")
    return default_account(instance.key.project) if email == "default" else str(email)


def _interfaces(instance: Instance) -> list[Document]:
    project, zone, _ = instance.key
    network, subnet = "global/networks/default", f"regions/{region_of(zone)}/subnetworks/default"
    found = []
    for index, asked in enumerate(instance.document.get("networkInterfaces") or [{}]):
        internal, external = instance.addresses[0] if instance.addresses and not index else ("", "")
        shown = {**asked, "name": f"nic{index}"}
        shown["network"] = link(project, asked.get("network") or network)
        shown["subnetwork"] = link(project, asked.get("subnetwork") or subnet)
        shown |= {"kind": "compute#networkInterface", "fingerprint": _FINGERPRINT}
        shown |= {"networkIP": internal} if internal else {}
        if configs := asked.get("accessConfigs"):
            own = {"kind": "compute#accessConfig", "name": "external-nat", "type": "ONE_TO_ONE_NAT"}
            outer = {"natIP": external} if external else {}
            shown["accessConfigs"] = [{**own, **config, **outer} for config in configs]
        found.append(shown)
    return found


def _disks(instance: Instance) -> list[Document]:
    project, zone, name = instance.key
    found = []
    for index, asked in enumerate(instance.document.get("disks") or [{"boot": True}]):
        parameters = asked.get("initializeParams") or {}
        shown = {key: value for key, value in asked.items() if key != "initializeParams"}
        own = name if not index else f"{name}-{index}"
        own = parameters.get("diskName") or own
        found.append(
            {
                "kind": "compute#attachedDisk",
                "type": "PERSISTENT",
                "mode": "READ_WRITE",
                "deviceName": f"persistent-disk-{index}",
                "index": index,
                "boot": index == 0,
                "diskSizeGb": str(parameters.get("diskSizeGb", 10)),
                "source": f"{ROOT}projects/{project}/zones/{zone}/disks/{own}",
                **shown,
            }
        )
    return found


def disk_document(instance: Instance) -> Document:
    """Write the boot disk of an instance, which knows the image that was meant by a family."""
    project, zone, name = instance.key
    asked = (instance.document.get("disks") or [{}])[0].get("initializeParams") or {}
    image = str(asked.get("sourceImage", "projects/debian-cloud/global/images/family/debian-12"))
    family = last_part(image)
    owner = image.partition("projects/")[2].partition("/")[0]
    exact = load_data("compute")["images"].get(family, family)
    place = f"{ROOT}projects/{project}/zones/{zone}"
    return {
        "kind": "compute#disk",
        "name": name,
        "sizeGb": str(asked.get("diskSizeGb", 10)),
        "status": "READY",
        "type": f"{place}/diskTypes/{last_part(asked.get('diskType') or 'pd-balanced')}",
        "sourceImage": f"{ROOT}projects/{owner}/global/images/{exact}",
        "zone": place,
        "users": [f"{place}/instances/{name}"],
        "selfLink": f"{place}/disks/{name}",
    }


def machine_document(machine: MachineType, name: str, project: str, zone: str) -> Document:
    """Write a machine type of a zone, under either of its names."""
    kind = machine.facts["accelerator"]
    twin = kind if name == machine.name else f"tpu-{machine.generation}"
    return {
        "kind": "compute#machineType",
        "name": name,
        "description": f"{machine.chips} TPU chips",
        "guestCpus": machine.vcpus or 0,
        "memoryMb": machine.memory_gb * 1024,
        "zone": zone,
        "accelerators": [{"guestAcceleratorType": twin, "guestAcceleratorCount": machine.chips}],
        "selfLink": f"{ROOT}projects/{project}/zones/{zone}/machineTypes/{name}",
    }
