"""Read instances, groups and operations of compute.v1 as the objects of our port."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

from tpuctl.cloud.gce.bodies import METADATA_IMAGE, Mark, base_name, read_mark
from tpuctl.cloud.models import (
    INCOMPLETE,
    LABEL_CREATE_ID,
    LABEL_TTL_S,
    DataDisk,
    Departure,
    Endpoint,
    Node,
)
from tpuctl.hardware.compute_engine import GCE, is_tpu_machine, type_of_machine

Json = dict[str, Any]

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_STATES = {
    "PROVISIONING": "CREATING",
    "STAGING": "CREATING",
    "PENDING": "PENDING",
    "RUNNING": "READY",
    "STOPPING": "STOPPING",
    "PENDING_STOP": "STOPPING",
    "SUSPENDING": "STOPPING",
    "DEPROVISIONING": "DELETING",
    "REPAIRING": "REPAIRING",
    "STOPPED": "STOPPED",
    "SUSPENDED": "STOPPED",
    "TERMINATED": "STOPPED",
}
_BILLED = ("CREATING", "READY", "REPAIRING")
_OF_GROUPS = ("created-by", "instance-template")
_CAUSES: dict[str, Any] = {
    "compute.instances.preempted": "preempted",
    "compute.instances.deferredDelete": "expired",
    "compute.instances.deferredStop": "expired",
    "compute.instances.hostError": "host_error",
    "compute.instances.terminateOnHostMaintenance": "host_error",
}
_STATE_AFTER = {
    "preempted": "PREEMPTED",
    "host_error": "TERMINATED",
    "expired": "TERMINATED",
    "deleted": "DELETING",
}


def last(url: object) -> str:
    """Return the last part of an address or a resource name."""
    return str(url or "").rpartition("/")[2]


def path_of(operation: Json) -> str:
    """Return the full name of an operation, without the address of the service."""
    link = str(operation.get("selfLink") or "")
    return link[link.find("projects/") :] if "projects/" in link else ""


def read_time(text: object) -> datetime:
    """Read a time; what cannot be read was long ago."""
    try:
        found = datetime.fromisoformat(str(text).replace("Z", "+00:00"))
    except ValueError:
        return _EPOCH
    return found if found.tzinfo else found.replace(tzinfo=timezone.utc)


def scoped(page: Json, kind: str) -> Iterable[tuple[str, Json]]:
    """Walk through one page of an aggregated list, with the zone or region of each resource."""
    for scope, found in (page.get("items") or {}).items():
        for item in found.get(kind) or ():
            yield last(scope), item


def unreachable(pages: Sequence[Json]) -> tuple[str, ...]:
    """Return the places that did not answer."""
    found = [each for page in pages for each in page.get("unreachables") or ()]
    for page in pages:
        items = page.get("items")
        scopes = items.items() if isinstance(items, dict) else ()
        found += [s for s, i in scopes if (i.get("warning") or {}).get("code") == "UNREACHABLE"]
    return tuple(sorted({last(each) for each in found}))


def is_tpu(instance: Json) -> bool:
    """Whether a VM has TPUs."""
    return is_tpu_machine(last(instance.get("machineType")))


def group_of(instance: Json) -> str | None:
    """Return the name of the group that created a VM; None for one that stands alone."""
    maker = metadata_of(instance).get("created-by", "")
    return last(maker) if "/instanceGroupManagers/" in maker else None


def metadata_of(instance: Json) -> dict[str, str]:
    """Return the metadata of a VM."""
    items = instance.get("metadata", {}).get("items") or ()
    return {str(each["key"]): str(each.get("value", "")) for each in items if "key" in each}


def node_of_instance(instance: Json) -> Node:
    """Read a VM that stands alone."""
    state = _STATES.get(str(instance.get("status")), "UNKNOWN")
    return _node(str(instance["name"]), [instance], state, str(instance.get("id", "")), 1)


def node_of_slice(group: Json, instances: Sequence[Json], managed: Sequence[Json]) -> Node:
    """Read a slice: its group and its VMs; `managed` are the group's own views of the VMs."""
    size, mark = int(group.get("targetSize") or 0), read_mark(group)
    ordered = sorted(instances, key=_worker_order)
    state = _slice_state(group, ordered, managed, size)
    id_ = f"slice-{mark.create_id}" if mark else str(group.get("id", ""))
    node = _node(str(group["name"]), ordered, state, id_, size, group, mark)
    billed = sum(_STATES.get(str(each.get("status"))) in _BILLED for each in ordered)
    down = [
        f"{e.get('name')} is {e.get('status')}" for e in ordered if e.get("status") != "RUNNING"
    ]
    text = ", ".join(down) if len(down) < len(ordered) else ""
    share = billed / max(size, len(ordered), 1)
    return replace(node, billed_share=share, health_description=text)


def with_departure(node: Node, departure: Departure | None) -> Node:
    """Say why a TPU or some VMs of a slice have stopped, or are about to."""
    state = _STATE_AFTER.get(departure.cause) if departure else None
    return replace(node, state=state, health_description=str(departure)) if state else node


def node_of_mark(mark: Mark) -> Node:
    """Describe what is left of a slice, or the beginning of one."""
    return Node(
        name=mark.name,
        zone=mark.zone,
        id=f"slice-{mark.create_id}",
        accelerator_type=mark.kind,
        runtime_version="",
        state=INCOMPLETE,
        health="UNKNOWN",
        created=mark.at,
        labels={LABEL_CREATE_ID: mark.create_id},
        provider=GCE,
        spot=mark.model == "SPOT",
        reserved=mark.model == "RESERVATION_BOUND",
        flex=mark.model == "FLEX_START",
    )


def _worker_order(instance: Json) -> tuple[int, str]:
    # The number that JAX reads, where the service shows it; else the names, which end in a number.
    number = metadata_of(instance).get("agent-worker-number", "")
    return (int(number) if number.isdigit() else 0), str(instance.get("name"))


def _slice_state(group: Json, instances: Sequence[Json], managed: Sequence[Json], size: int) -> str:
    actions = {str(each.get("currentAction")) for each in managed}
    states = [_STATES.get(str(each.get("status")), "UNKNOWN") for each in instances]
    if size == 0 or (actions and actions <= {"DELETING", "ABANDONING"}):
        return "DELETING"
    status = group.get("status") or {}
    for wanted in ("PENDING", "DELETING", "STOPPING", "REPAIRING"):
        if wanted in states:
            return wanted
    counts = status.get("currentInstanceStatuses") or {}
    if counts.get("pending") or counts.get("PENDING"):
        return "PENDING"
    if "STOPPED" in states:
        return "STOPPED"
    topologies = [str(each.get("state")) for each in status.get("appliedAcceleratorTopologies", ())]
    if len(states) >= size and set(states) == {"READY"}:
        return "READY" if all(each == "ACTIVE" for each in topologies) else "CREATING"
    is_starting = (status.get("bulkInstanceOperation") or {}).get("inProgress")
    # A slice that once had a topology and has no VMs was taken away, or its time is over.
    return "CREATING" if is_starting or states or not topologies else "STOPPED"


def _node(
    name: str,
    instances: Sequence[Json],
    state: str,
    id_: str,
    size: int,
    group: Json | None = None,
    mark: Mark | None = None,
) -> Node:
    first: Json = instances[0] if instances else {}
    source = group or first
    shared = source.get("allInstancesConfig", {}).get("properties", {}).get("labels")
    scheduling, network = first.get("scheduling") or {}, (first.get("networkInterfaces") or [{}])[0]
    model = scheduling.get("provisioningModel") or (mark and mark.model)
    machine, metadata = last(first.get("machineType")), metadata_of(first)
    affinity = first.get("reservationAffinity") or {}
    labels = dict(first.get("labels") or shared or {})
    created = mark.at if mark else read_time(source.get("creationTimestamp"))
    kind = type_of_machine(machine, size) or machine
    return Node(
        name=name,
        zone=last(source.get("zone")),
        id=id_,
        accelerator_type=mark.kind if mark else kind,
        runtime_version=metadata.get(METADATA_IMAGE, ""),
        state=state,
        health="UNKNOWN",
        created=created,
        spot=model == "SPOT" or scheduling.get("preemptible") is True,
        reserved=model == "RESERVATION_BOUND",
        endpoints=tuple(_endpoint(each) for each in instances),
        labels={**labels, LABEL_CREATE_ID: mark.create_id} if mark else labels,
        data_disks=tuple(
            DataDisk(path_of({"selfLink": disk.get("source")}), disk.get("mode") == "READ_ONLY")
            for disk in first.get("disks") or ()
            if not disk.get("boot")
        ),
        metadata={k: v for k, v in metadata.items() if k not in _OF_GROUPS},
        network=network.get("network"),
        subnetwork=network.get("subnetwork"),
        external_ips=not first or bool(network.get("accessConfigs")),
        service_account=(first.get("serviceAccounts") or [{}])[0].get("email"),
        tags=tuple((first.get("tags") or {}).get("items") or ()),
        provider=GCE,
        flex=model == "FLEX_START",
        reservation=next(iter(affinity.get("values") or ()), None),
        expires=_expires(instances, labels, state),
        billed_from=read_time(started) if (started := first.get("lastStartTimestamp")) else None,
    )


def _expires(instances: Sequence[Json], labels: dict[str, str], state: str) -> datetime | None:
    """Return when the service ends the first VM; its own time counts from when it runs."""
    ends = [
        each.get("resourceStatus", {}).get("scheduling", {}).get("terminationTimestamp")
        for each in instances
    ]
    if known := [read_time(end) for end in ends if end]:
        return min(known)
    ttl = labels.get(LABEL_TTL_S, "")
    if state != "READY" or not ttl.isdigit():
        return None
    began = min(read_time(each.get("creationTimestamp")) for each in instances)
    return began + timedelta(seconds=min(int(ttl), 10**9))


def _endpoint(instance: Json) -> Endpoint:
    network = (instance.get("networkInterfaces") or [{}])[0]
    outside = (network.get("accessConfigs") or [{}])[0].get("natIP")
    return Endpoint(network.get("networkIP"), outside, str(instance.get("name")))


def departure_of(
    operations: Iterable[Json], name: str, since: datetime | None
) -> tuple[Departure, Json] | None:
    """Find in operations, newest first, why a VM or a slice of that name is gone."""
    parts = (rf"instances/{re.escape(name)}", rf"instances/{re.escape(base_name(name))}\d+")
    own = re.compile(rf"/({'|'.join(parts)}|instanceGroupManagers/{re.escape(name)})$")
    deleted: tuple[Departure, Json] | None = None
    for each in operations:
        at = read_time(each.get("endTime") or each.get("insertTime"))
        if not own.search(str(each.get("targetLink", ""))) or (since and at < since):
            continue
        verb, user = str(each.get("operationType")), str(each.get("user") or "")
        target = last(each["targetLink"])
        vm = "" if target == name else f"its VM {target}"
        if cause := _CAUSES.get(verb):
            return Departure(cause, at, user, vm=vm), each
        # Deleting the group of a slice also deletes its VMs.
        if verb == "delete" and (deleted is None or target == name):
            deleted = Departure("deleted", at, user, vm=vm), each
        # What was before its last creation is about another one of the same name.
        if verb == "insert":
            failed = (Departure("not_created", at), each) if each.get("error") else None
            return deleted or failed
    return deleted
