"""Resources of Compute Engine as the API shows them."""

import re
from zlib import crc32

from tpuctl.emulator.compute.instances import fingerprint
from tpuctl.emulator.compute.resources import (
    ROOT,
    Instance,
    Resource,
    path_of,
    place_of,
    region_of,
    rfc3339,
)
from tpuctl.emulator.documents import SSH_PORT, default_account
from tpuctl.emulator.errors import load_data, project_number
from tpuctl.emulator.methods import Document
from tpuctl.emulator.resources import Key

# Constant, because the field that it belongs to cannot be changed.
_FINGERPRINT = "AAAAAAAAAAA="
_DEFAULTS = load_data("compute")["defaults"]


def describe(kind: str, collection: str, key: Key, about: Document) -> Document:
    """Write the fields that every resource has, and those in `about`."""
    place = place_of(key.zone)
    where = (
        {place.partition("s/")[0]: f"{ROOT}projects/{key.project}/{place}"} if "/" in place else {}
    )
    path = path_of(collection, key)
    known = {"id": str(crc32(path.encode())), "creationTimestamp": "1969-12-31T16:00:00.000-08:00"}
    link = {"name": key.name, "selfLink": ROOT + path}
    return {**known, **about, "kind": f"compute#{kind}", **link, **where}


def resource_document(item: Resource) -> Document:
    """Write a policy, a template or the base of a group: its identity, and what was sent."""
    known = {"id": str(item.id), "creationTimestamp": rfc3339(item.created)}
    about = {**item.document, **known}
    return describe(kind_of(item.collection), item.collection, item.key, about)


def kind_of(collection: str) -> str:
    """Return the singular of a collection."""
    if "Operations" in collection:
        return "operation"
    singular = {"regionInstanceTemplates": "instanceTemplate", "resourcePolicies": "resourcePolicy"}
    return singular.get(collection, collection.removesuffix("s"))


def metadata_items(instance: Instance) -> dict[str, str]:
    """Return the metadata of an instance, including what its group and the emulator add."""
    added = {SSH_PORT: str(instance.ssh_port)} if instance.ssh_port else {}
    if group := instance.group:
        number = f"projects/{project_number(instance.key.project)}/"
        for name, path in (("created-by", group.path), ("instance-template", group.template.path)):
            added[name] = number + path.split("/", 2)[2]
    return {**instance.metadata, **added}


def instance_document(instance: Instance) -> Document:
    """Write an instance."""
    requested, metadata = instance.document, metadata_items(instance)
    machine = instance.key._replace(name=instance.machine.name)
    about = {
        **_DEFAULTS["instance"],
        **{key: value for key, value in requested.items() if key != "params"},
        "id": str(instance.id),
        "machineType": ROOT + path_of("machineTypes", machine),
        "status": instance.state,
        "creationTimestamp": rfc3339(instance.created),
        "labels": requested.get("labels", {}),
        "labelFingerprint": fingerprint(instance),
        "metadata": {
            "fingerprint": fingerprint(instance),
            "items": [{"key": key, "value": text} for key, text in metadata.items()],
        },
        "tags": {"fingerprint": _FINGERPRINT, **(requested.get("tags") or {})},
        "networkInterfaces": _interfaces(instance),
        "disks": _disks(instance),
        "serviceAccounts": accounts_of(instance),
        "resourceStatus": {"scheduling": {}},
    }
    if instance.expires:
        about["resourceStatus"] = {
            "scheduling": {"terminationTimestamp": rfc3339(instance.expires)}
        }
    for name in ("Start", "Stop"):
        if moment := instance.started if name == "Start" else instance.stopped:
            about[f"last{name}Timestamp"] = rfc3339(moment)
    if instance.status_message:
        about["statusMessage"] = instance.status_message
    return describe("instance", "instances", instance.key, about)


def accounts_of(instance: Instance) -> list[Document]:
    """Return the service accounts of an instance; "default" is that of the project."""
    own = default_account(instance.key.project)
    accounts = instance.document.get("serviceAccounts") or []
    return [
        {
            **account,
            "email": own if account.get("email", "default") == "default" else account["email"],
        }
        for account in accounts
    ]


def _interfaces(instance: Instance) -> list[Document]:
    project, zone, _ = instance.key
    found = []
    for index, asked in enumerate(instance.document.get("networkInterfaces") or [{}]):
        internal, external = instance.addresses[0] if instance.addresses and not index else ("", "")
        subnet = asked.get("subnetwork") or f"regions/{region_of(zone)}/subnetworks/default"
        shown = {
            **_DEFAULTS["interface"],
            **asked,
            "name": f"nic{index}",
            "network": _link(project, asked.get("network") or "global/networks/default"),
            "subnetwork": _link(project, subnet),
        }
        shown |= {"networkIP": internal} if internal else {}
        if configs := asked.get("accessConfigs"):
            outer = {"natIP": external} if external else {}
            own = _DEFAULTS["access"]
            shown["accessConfigs"] = [{**own, **config, **outer} for config in configs]
        found.append(shown)
    return found


def _link(project: str, url: str) -> str:
    """Expand any form of a resource's name to a full URL."""
    found = re.search(r"projects/.*", url)
    return ROOT + (found[0] if found else f"projects/{project}/{url}")


def _disks(instance: Instance) -> list[Document]:
    found = []
    for index, asked in enumerate(instance.document.get("disks") or [{"boot": True}]):
        parameters = asked.get("initializeParams") or {}
        name = instance.key.name + (f"-{index}" if index else "")
        shown = {
            **_DEFAULTS["disk"],
            "index": index,
            "deviceName": f"persistent-disk-{index}",
            "diskSizeGb": str(parameters.get("diskSizeGb", 10)),
            "source": ROOT + path_of("disks", instance.key._replace(name=name)),
            **asked,
        }
        shown.pop("initializeParams", None)
        found.append(shown)
    return found
