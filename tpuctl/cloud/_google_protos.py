"""Convert between the messages of google-cloud-tpu and our models."""

import uuid
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from google.cloud import tpu_v2
from google.longrunning import operations_pb2
from google.protobuf.duration_pb2 import Duration

from tpuctl.cloud import models
from tpuctl.cloud._google_channel import error_of_status
from tpuctl.cloud.error_table import RequestContext
from tpuctl.cloud.models import LABEL_CREATE_ID

CLOUD_PLATFORM = "https://www.googleapis.com/auth/cloud-platform"

# Messages are read through the underlying protobuf classes: the wrappers of google-cloud-tpu take
# ten times as long, which matters in a list of a thousand TPUs.
_NODE = tpu_v2.Node.pb()
_DISK = tpu_v2.AttachedDisk.pb()
_SYMPTOM = tpu_v2.Symptom.pb()
_QUEUED_STATE = tpu_v2.QueuedResourceState.pb()
_METADATA = tpu_v2.OperationMetadata.pb()
_INITIATORS = {1: "user", 2: "service"}


def last(resource_name: str) -> str:
    """Return the last part of a resource name."""
    return resource_name.rpartition("/")[2]


def zone_of(resource_name: str) -> str:
    """Return the zone in a resource name."""
    return resource_name.partition("/locations/")[2].partition("/")[0]


def node_of(node: Any) -> models.Node:
    """Convert a node."""
    scheduling, networks = node.scheduling_config, node.network_configs
    network = networks[0] if networks else node.network_config
    read_only = _DISK.DiskMode.Value("READ_ONLY")
    return models.Node(
        name=last(node.name),
        zone=zone_of(node.name),
        id=str(node.id),
        accelerator_type=node.accelerator_type,
        runtime_version=node.runtime_version,
        state=_word(_NODE.State, node.state),
        health=_word(_NODE.Health, node.health),
        created=_time(node.create_time),
        health_description=node.health_description,
        spot=scheduling.spot or scheduling.preemptible,
        reserved=scheduling.reserved,
        queued_resource=last(node.queued_resource) or None,
        endpoints=tuple(
            models.Endpoint(each.ip_address or None, each.access_config.external_ip or None)
            for each in node.network_endpoints
        ),
        labels=dict(node.labels),
        metadata=dict(node.metadata),
        data_disks=tuple(
            models.DataDisk(disk.source_disk, disk.mode == read_only) for disk in node.data_disks
        ),
        symptoms=tuple(_symptom(symptom) for symptom in node.symptoms),
        network=network.network or None,
        subnetwork=network.subnetwork or None,
        external_ips=network.enable_external_ips,
        service_account=node.service_account.email or None,
        tags=tuple(node.tags),
    )


def queued_resource_of(queued: Any) -> models.QueuedResource:
    """Convert a queued resource."""
    name, zone, state = last(queued.name), zone_of(queued.name), queued.state
    specs = queued.tpu.node_spec
    failed = state.HasField("failed_data") and state.failed_data.error.code
    context = RequestContext(f"The queued resource {name} in {zone} failed", zone=zone, name=name)
    return models.QueuedResource(
        name=name,
        zone=zone,
        state=_word(_QUEUED_STATE.State, state.state),
        created=_time(queued.create_time),
        accelerator_type=specs[0].node.accelerator_type if specs else "",
        nodes=tuple(node for spec in specs for node in _node_names(spec, name)),
        spot=queued.HasField("spot"),
        labels=dict(specs[0].node.labels) if specs else {},
        requested=_requested(queued, name, zone) if specs else None,
        error=error_of_status(state.failed_data.error, context) if failed else None,
        stopped_by=_INITIATORS.get(state.state_initiator),
    )


def operation_of(operation: operations_pb2.Operation, project: str) -> models.Operation:
    """Convert an operation, with the node that a finished create made."""
    metadata, node = _METADATA(), _NODE()
    operation.metadata.Unpack(metadata)
    name, zone, verb = last(metadata.target), zone_of(operation.name), metadata.verb
    context = RequestContext(f"Could not {verb or 'change'} {name} in {zone}", project, zone, name)
    return models.Operation(
        name=operation.name,
        verb=verb,
        target=metadata.target,
        done=operation.done,
        detail=metadata.status_detail,
        error=error_of_status(operation.error, context) if operation.error.code else None,
        node=node_of(node) if operation.response.Unpack(node) else None,
    )


def node_message(request: models.NodeRequest) -> tpu_v2.Node:
    """Build the node message of a request."""
    network = tpu_v2.NetworkConfig(
        network=request.network or "",
        subnetwork=request.subnetwork or "",
        enable_external_ips=request.external_ips,
    )
    return tpu_v2.Node(
        accelerator_type=request.accelerator_type,
        runtime_version=request.runtime_version,
        network_config=network,
        service_account=tpu_v2.ServiceAccount(
            email=request.service_account or "", scope=[CLOUD_PLATFORM]
        ),
        scheduling_config=tpu_v2.SchedulingConfig(spot=request.spot, reserved=request.reserved),
        labels={**request.labels, LABEL_CREATE_ID: request.create_id},
        metadata=request.metadata,
        tags=request.tags,
        data_disks=[_disk_message(disk) for disk in request.data_disks],
    )


def queued_resource_message(
    request: models.NodeRequest, *, parent: str, valid_for_s: float | None
) -> tpu_v2.QueuedResource:
    """Build a queued resource for one node of the same name."""
    node = node_message(request)
    # In a queued resource, spot and reserved are set by its tier instead.
    del node.scheduling_config
    spec = tpu_v2.QueuedResource.Tpu.NodeSpec(parent=parent, node_id=request.name, node=node)
    queued = tpu_v2.QueuedResource(tpu=tpu_v2.QueuedResource.Tpu(node_spec=[spec]))
    if request.spot:
        queued.spot = tpu_v2.QueuedResource.Spot()
    if request.reserved:
        queued.guaranteed = tpu_v2.QueuedResource.Guaranteed()
        queued.reservation_name = f"{parent}/reservations/-"
    if valid_for_s is not None:
        queued.queueing_policy = tpu_v2.QueuedResource.QueueingPolicy(
            valid_until_duration=Duration(seconds=round(valid_for_s))
        )
    return queued


def request_id(create_id: str) -> str:
    """Return the UUID by which the service recognizes a repeated request."""
    try:
        return str(uuid.UUID(create_id))
    except ValueError:
        return str(uuid.uuid5(uuid.NAMESPACE_OID, create_id))


def _requested(queued: Any, name: str, zone: str) -> models.Node:
    node = node_of(queued.tpu.node_spec[0].node)
    return replace(
        node,
        name=name,
        zone=zone,
        spot=queued.HasField("spot"),
        reserved=queued.HasField("guaranteed") and bool(queued.reservation_name),
        queued_resource=name,
    )


def _disk_message(disk: models.DataDisk) -> tpu_v2.AttachedDisk:
    mode = tpu_v2.AttachedDisk.DiskMode
    return tpu_v2.AttachedDisk(
        source_disk=disk.source, mode=mode.READ_ONLY if disk.read_only else mode.READ_WRITE
    )


def _node_names(spec: Any, queued_name: str) -> list[str]:
    if spec.node_id or not spec.HasField("multislice_params"):
        return [spec.node_id]
    params = spec.multislice_params
    prefix = params.node_id_prefix or queued_name
    return [f"{prefix}-{i}" for i in range(params.node_count)]


def _symptom(symptom: Any) -> str:
    what = _word(_SYMPTOM.SymptomType, symptom.symptom_type)
    where = f" on worker {symptom.worker_id}" if symptom.worker_id else ""
    return f"{what}{where}: {symptom.details}" if symptom.details else f"{what}{where}"


def _word(enum: Any, number: int) -> str:
    # 0 means "unspecified"; a number without a name is newer than our client.
    value = enum.DESCRIPTOR.values_by_number.get(number) if number else None
    return value.name if value else "UNKNOWN"


def _time(stamp: Any) -> datetime:
    time: datetime = stamp.ToDatetime(tzinfo=timezone.utc)
    return time
