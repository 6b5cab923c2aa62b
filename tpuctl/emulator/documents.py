"""Resources as the API shows them, and paged lists of them."""

import base64
from collections.abc import Callable, Sequence
from ipaddress import ip_network
from typing import TypeVar

from tpuctl.emulator.errors import bad_request, load_data, project_number
from tpuctl.emulator.methods import Call, Document
from tpuctl.emulator.resources import Node, Operation, QueuedResource, Target, timestamp
from tpuctl.hardware.types import AcceleratorType

T = TypeVar("T")

DEFAULT_ITEMS = 500
MOST_ITEMS = 1000
# A gRPC client accepts messages of 4 MiB, and the metadata of one more node can be 0.5 MiB.
MOST_BYTES = 2 << 20

TPU_PORT = 8470
SSH_PORT = "tpuctl-emulator-ssh-port"
"""The metadata key for the port of an emulated worker's SSH server, which cannot be 22."""

CLOUD_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_TYPES = "type.googleapis.com/google.cloud.tpu"


def page(
    field: str, items: Sequence[tuple[str, T]], call: Call, show: Callable[[T], Document]
) -> Document:
    """Return the page that a call asks for; the items must be sorted by key.

    A page token is the key of the last item shown, so it stays valid when items change.
    """
    size = int(call.body.get("pageSize", 0))
    if size < 0:
        raise bad_request(f"page_size must not be negative: {size}.")
    token = str(call.body.get("pageToken", ""))
    try:
        after = base64.b64decode(token.encode(), altchars=b"-_", validate=True).decode()
    except ValueError as error:
        raise bad_request(f'The page token "{token}" is not valid.') from error
    rest = [item for item in items if item[0] > after] if after else items
    shown: list[Document] = []
    size_bytes = 0
    for _, item in rest[: min(size or DEFAULT_ITEMS, MOST_ITEMS)]:
        shown.append(show(item))
        size_bytes += _size_bytes(shown[-1])
        if size_bytes > MOST_BYTES:
            break
    document: Document = {field: shown}
    if len(shown) < len(rest):
        last = rest[len(shown) - 1][0]
        document["nextPageToken"] = base64.urlsafe_b64encode(last.encode()).decode()
    return document


def _size_bytes(document: Document) -> int:
    """Estimate the size of a message; only its metadata can be large."""
    specs = document.get("tpu", {}).get("nodeSpec", [])
    holders = (document, *(spec.get("node", {}) for spec in specs))
    texts = (str(value) for holder in holders for value in holder.get("metadata", {}).values())
    return 2048 + sum(map(len, texts))


def node_document(node: Node) -> Document:
    """Write a node as the API shows it."""
    project, spec = node.key.project, node.document
    account = spec.get("serviceAccount", {})
    document = {
        "schedulingConfig": {},
        "shieldedInstanceConfig": {},
        **spec,
        "name": node.path,
        "state": node.state,
        "healthDescription": node.health_description,
        "acceleratorConfig": accelerator_config(node.spec.type),
        "serviceAccount": {
            "email": account.get("email", default_account(project)),
            "scope": account.get("scope") or [CLOUD_SCOPE],
        },
        "createTime": timestamp(node.created),
        "networkEndpoints": [_endpoint(*pair) for pair in node.addresses],
        "id": str(node.id),
        "apiVersion": "V2",
        "symptoms": list(node.symptoms),
        "multisliceNode": node.multislice,
    }
    # Clients read the port from the metadata, because the API has no field for it.
    if node.ssh_port:
        document["metadata"] = {**spec.get("metadata", {}), SSH_PORT: str(node.ssh_port)}
    if node.health:
        document["health"] = node.health
    if "networkConfigs" not in spec:
        config = spec.get("networkConfig", {})
        network = config.get("network", "default")
        full = network if "/" in network else f"projects/{project}/global/networks/{network}"
        document["networkConfig"] = {**config, "network": full}
        if network == "default":
            region = node.key.zone.rpartition("-")[0]
            subnet = f"projects/{project}/regions/{region}/subnetworks/default"
            document["networkConfig"].setdefault("subnetwork", subnet)
    if node.addresses and "cidrBlock" not in spec:
        document["cidrBlock"] = str(ip_network(f"{node.addresses[0][0]}/20", strict=False))
    if node.queued:
        document["queuedResource"] = node.queued.path("queuedResources")
    return document


def queued_document(queued: QueuedResource) -> Document:
    """Write a queued resource as the API shows it."""
    state: Document = {"state": queued.state}
    if queued.state != "WAITING_FOR_RESOURCES":
        state[f"{queued.state.lower()}Data"] = {}
    if queued.state == "FAILED" and queued.failure:
        state["failedData"] = {"error": queued.failure.document}
    if queued.initiator:
        state["stateInitiator"] = queued.initiator
    document = queued.document
    if queued.state == "ACTIVE" and len(document["tpu"]["nodeSpec"]) == 1:
        # gcloud reads the names of the nodes here, and counts them.
        specs = [
            {**document["tpu"]["nodeSpec"][0], "nodeId": key.name} for key in queued.node_specs
        ]
        document = {**document, "tpu": {**document["tpu"], "nodeSpec": specs}}
    return {
        **document,
        "name": queued.path,
        "createTime": timestamp(queued.created),
        "state": state,
    }


def operation_document(operation: Operation) -> Document:
    """Write an operation as the API shows it."""
    metadata = {
        "@type": f"{_TYPES}.{operation.version}.OperationMetadata",
        "createTime": timestamp(operation.created),
        "target": operation.target,
        "verb": operation.verb,
        "apiVersion": operation.version,
    }
    document: Document = {
        "name": operation.key.path("operations"),
        "metadata": metadata,
        "done": operation.ended is not None and not operation.unfinished,
    }
    if operation.ended and not operation.unfinished:
        metadata["endTime"] = timestamp(operation.ended)
        if operation.failure:
            document["error"] = operation.failure.document
        else:
            document["response"] = operation.response
    return document


def response(target: Target | None, version: str) -> Document:
    """Write the response of a finished operation: the current state of its target, or nothing."""
    if target is None:
        return {"@type": "type.googleapis.com/google.protobuf.Empty"}
    if isinstance(target, Node):
        return {"@type": f"{_TYPES}.{version}.Node", **node_document(target)}
    if isinstance(target, QueuedResource):
        return {"@type": f"{_TYPES}.{version}.QueuedResource", **queued_document(target)}
    return {}


def accelerator_config(kind: AcceleratorType) -> Document:
    """Write a type as generation and topology; empty if the topology is unknown."""
    if kind.topology is None:
        return {}
    config = load_data("service")["generations"][kind.generation]["config"]
    return {"type": config, "topology": kind.topology}


def default_account(project: str) -> str:
    """Return the default service account of machines."""
    return f"{project_number(project)}-compute@developer.gserviceaccount.com"


def _endpoint(internal: str, external: str) -> Document:
    document: Document = {"ipAddress": internal, "port": TPU_PORT}
    if external:
        document["accessConfig"] = {"externalIp": external}
    return document
