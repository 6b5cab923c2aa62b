"""The bodies of the requests: one VM, and workload policy, template and group of a slice."""

import hashlib
import re
import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tpuctl.cloud.models import LABEL_CREATE_ID, NodeRequest, region_of
from tpuctl.errors import InvalidInputError
from tpuctl.hardware.compute_engine import Hardware, describe_on, hardware_of
from tpuctl.hardware.types import AcceleratorType, load_data

Json = dict[str, Any]

CLOUD_PLATFORM = "https://www.googleapis.com/auth/cloud-platform"
METADATA_IMAGE = "tpuctl-image"
"""Metadata key with the image family, which a VM does not tell otherwise."""

_MARK = re.compile(
    r"tpuctl create=(?P<create_id>\S+) name=(?P<name>\S+) zone=(?P<zone>\S+) type=(?P<kind>\S+) "
    r"model=(?P<model>\S+) at=(?P<at>\S+)"
)
_MODES = {True: "READ_ONLY", False: "READ_WRITE"}
# The name of a group's VMs, with `-w-###[1]`, has at most 58 letters, and part names a hash.
_LONGEST_BASE, _LONGEST_PART = 49, 40


@dataclass(frozen=True)
class Mark:
    """The content of the description of each part of a slice, which has no labels."""

    create_id: str
    name: str
    zone: str
    kind: str
    model: str
    at: datetime

    def __str__(self) -> str:
        known = f"create={self.create_id} name={self.name} zone={self.zone} type={self.kind}"
        return f"tpuctl {known} model={self.model} at={self.at.isoformat()}"


def read_mark(part: Json) -> Mark | None:
    """Read the mark of a part of a slice; None for what tpuctl has not made."""
    match = _MARK.match(str(part.get("description") or ""))
    if match is None:
        return None
    try:
        at = datetime.fromisoformat(match["at"])
    except ValueError:
        return None
    if at.tzinfo is None:
        return None
    return Mark(match[1], match[2], match[3], match[4], match[5], at)


def mark_of(request: NodeRequest, at: datetime) -> Mark:
    """Make the mark of a slice that is requested now."""
    kind, _ = kind_of(request)
    model = model_of(request)
    name, zone = request.name, request.zone
    return Mark(request.create_id, name, zone, kind.accelerator_type, model, at)


def model_of(request: NodeRequest) -> str:
    """Return the model of provisioning that a request asks for."""
    if request.reservation:
        return "RESERVATION_BOUND"
    return "SPOT" if request.spot else "FLEX_START" if request.flex else "STANDARD"


def base_name(name: str) -> str:
    """Return what the names of a slice's VMs begin with."""
    return f"{name if len(name) <= _LONGEST_BASE else _shortened(name, name)}-w-"


def part_name(name: str, zone: str) -> str:
    """Return the name of a slice's policy and template: templates of all zones share one list."""
    return f"tpuctl-{_shortened(name, f'{zone}/{name}')}"


def _shortened(name: str, identity: str) -> str:
    digest = hashlib.sha256(identity.encode()).hexdigest()[:8]
    return f"{name[:_LONGEST_PART].rstrip('-')}-{digest}"


def request_id(create_id: str, step: str) -> str:
    """Return the UUID by which the service recognizes a repeated request of one step."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{create_id}/{step}"))


def kind_of(request: NodeRequest) -> tuple[AcceleratorType, Hardware]:
    """Look up what a request asks for."""
    kind = describe_on("gce", request.accelerator_type)
    hardware = hardware_of(kind.generation)
    assert hardware, "describe_on has checked it"
    return kind, hardware


def instance_body(request: NodeRequest) -> Json:
    """Build the body of a single VM."""
    body = _properties(request, place=f"zones/{request.zone}/")
    machine = f"zones/{request.zone}/machineTypes/{body['machineType']}"
    if request.flex and request.valid_for_s is not None:
        body["params"] = {"requestValidForDuration": {"seconds": str(int(request.valid_for_s))}}
    return {**body, "name": request.name, "machineType": machine}


def policy_body(request: NodeRequest, mark: Mark) -> Json:
    """Build the workload policy, which gives a slice its topology."""
    kind, _ = kind_of(request)
    if kind.topology is None:
        raise InvalidInputError(
            f"Cannot create {request.name}: the topology of {kind.accelerator_type} is unknown.",
            hint=f"tpuctl types {kind.accelerator_type}",
        )
    policy = {"type": "HIGH_THROUGHPUT", "acceleratorTopology": kind.topology}
    name = part_name(request.name, request.zone)
    return {"name": name, "description": str(mark), "workloadPolicy": policy}


def template_body(request: NodeRequest, mark: Mark, project: str) -> Json:
    """Build the instance template of a slice's VMs."""
    properties = _properties(request, place="")
    # A global template needs the full path of a network within a region.
    if subnetwork := request.subnetwork:
        path = _subnetwork(subnetwork, request.zone)
        if not path.startswith("projects/"):
            path = f"projects/{project}/{path}"
        properties["networkInterfaces"][0]["subnetwork"] = path
    name = part_name(request.name, request.zone)
    return {"name": name, "description": str(mark), "properties": properties}


def group_body(request: NodeRequest, mark: Mark, project: str) -> Json:
    """Build the group, which makes all VMs of the slice together or none."""
    kind, _ = kind_of(request)
    part, region = part_name(request.name, request.zone), region_of(request.zone)
    policy = f"projects/{project}/regions/{region}/resourcePolicies/{part}"
    return {
        "name": request.name,
        "description": str(mark),
        "baseInstanceName": f"{base_name(request.name)}###[1]",
        "instanceTemplate": f"projects/{project}/global/instanceTemplates/{part}",
        "targetSize": kind.workers,
        "targetSizePolicy": {"mode": "BULK"},
        "resourcePolicies": {"workloadPolicy": policy},
        # Otherwise it would recreate single VMs of a slice that was preempted.
        "instanceLifecyclePolicy": {"defaultActionOnFailure": "DO_NOTHING"},
        "updatePolicy": {"type": "OPPORTUNISTIC"},
        "allInstancesConfig": {"properties": {"labels": _labels(request)}},
    }


def _properties(request: NodeRequest, *, place: str) -> Json:
    """Build what a VM and a template have in common; `place` is the zone's path or empty."""
    kind, hardware = kind_of(request)
    data = load_data("compute_engine")
    family = f"projects/{data['image_project']}/global/images/family/{request.runtime_version}"
    disk: Json = {"sourceImage": family, "diskSizeGb": str(data["disk_gb"])}
    if hardware.disk_type:
        disk["diskType"] = f"{place}diskTypes/{hardware.disk_type}" if place else hardware.disk_type
    image = str(request.runtime_version)
    metadata = {"enable-guest-attributes": "TRUE", METADATA_IMAGE: image, **request.metadata}
    account = {"email": request.service_account or "default", "scopes": [CLOUD_PLATFORM]}
    threads = (hardware.threads_per_core or {}).get(str(kind.chips_per_worker))
    body: Json = {
        "machineType": kind.machine_type,
        "disks": [
            {"boot": True, "autoDelete": True, "initializeParams": disk},
            *(
                {"source": each.source, "mode": _MODES[each.read_only]}
                for each in request.data_disks
            ),
        ],
        "networkInterfaces": [_network(request)],
        "scheduling": _scheduling(request),
        "serviceAccounts": [account],
        "metadata": {"items": [{"key": k, "value": v} for k, v in metadata.items()]},
        "labels": _labels(request),
    }
    if request.tags:
        body["tags"] = {"items": list(request.tags)}
    if affinity := _affinity(request):
        body["reservationAffinity"] = affinity
    if hardware.secure_boot is not None:
        body["shieldedInstanceConfig"] = {"enableSecureBoot": hardware.secure_boot}
    if threads:
        body["advancedMachineFeatures"] = {"threadsPerCore": threads}
    return body


def _labels(request: NodeRequest) -> dict[str, str]:
    return {**request.labels, LABEL_CREATE_ID: request.create_id}


def _network(request: NodeRequest) -> Json:
    found: Json = {"nicType": "GVNIC"}
    if request.subnetwork:
        found["subnetwork"] = _subnetwork(request.subnetwork, request.zone)
    if request.network or not request.subnetwork:
        name = request.network or "default"
        found["network"] = name if "/" in name else f"global/networks/{name}"
    if request.external_ips:
        found["accessConfigs"] = [{"name": "External NAT", "type": "ONE_TO_ONE_NAT"}]
    return found


def _subnetwork(name: str, zone: str) -> str:
    return name if "/" in name else f"regions/{region_of(zone)}/subnetworks/{name}"


def _scheduling(request: NodeRequest) -> Json:
    model = model_of(request)
    found: Json = {
        "provisioningModel": model,
        "onHostMaintenance": "TERMINATE",
        # Left at its default it is refused for spot, and a TPU is not restarted anyway.
        "automaticRestart": False,
    }
    if model != "STANDARD" or request.max_run_s is not None:
        found["instanceTerminationAction"] = "DELETE"
    if request.max_run_s is not None:
        found["maxRunDuration"] = {"seconds": str(request.max_run_s)}
    return found


def _affinity(request: NodeRequest) -> Json | None:
    if request.reservation:
        return {
            "consumeReservationType": "SPECIFIC_RESERVATION",
            "key": "compute.googleapis.com/reservation-name",
            "values": [request.reservation],
        }
    return {"consumeReservationType": "NO_RESERVATION"} if request.flex else None
