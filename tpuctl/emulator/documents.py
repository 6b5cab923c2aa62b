"""What the service shows of what it remembers, in the spelling of the API's JSON."""

from tpuctl.emulator.methods import Document
from tpuctl.emulator.records import Node, Operation, Queued
from tpuctl.emulator.refusals import load_data, project_number
from tpuctl.emulator.world import timestamp
from tpuctl.hardware.types import AcceleratorType

_TYPES = "type.googleapis.com/google.cloud.tpu.v2"
_DATA_OF_STATE = {
    "CREATING": "creatingData",
    "ACCEPTED": "acceptedData",
    "PROVISIONING": "provisioningData",
    "FAILED": "failedData",
    "DELETING": "deletingData",
    "ACTIVE": "activeData",
    "SUSPENDING": "suspendingData",
    "SUSPENDED": "suspendedData",
}
TPU_PORT = 8470
SSH_PORT = "tpuctl-emulator-ssh-port"
"""The metadata that tells on which port an emulated worker listens: 22 is not ours to take."""

CLOUD_SCOPE = "https://www.googleapis.com/auth/cloud-platform"


def node_document(node: Node) -> Document:
    """A node as it is shown."""
    project, spec = node.key.project, node.spec.document
    document = {
        **spec,
        "name": node.path,
        "state": node.state,
        "healthDescription": node.health_description,
        "acceleratorConfig": accelerator_config(node.spec.type),
        "serviceAccount": _service_account(spec.get("serviceAccount", {}), project),
        "createTime": timestamp(node.created),
        "networkEndpoints": [_endpoint(*pair) for pair in node.addresses],
        "id": str(node.id),
        "apiVersion": "V2",
        "symptoms": list(node.symptoms),
        "multisliceNode": node.multislice,
    }
    if node.ssh_port:
        document["metadata"] = {**spec.get("metadata", {}), SSH_PORT: str(node.ssh_port)}
    if node.health:
        document["health"] = node.health
    if "networkConfigs" not in spec:
        document["networkConfig"] = _network(spec.get("networkConfig", {}), project)
    if node.queued:
        document["queuedResource"] = node.queued.path("queuedResources")
    return document


def queued_document(queued: Queued) -> Document:
    """A queued resource as it is shown."""
    state: Document = {"state": queued.state}
    if data := _DATA_OF_STATE.get(queued.state):
        state[data] = {}
    if queued.state == "FAILED" and queued.failure:
        state["failedData"] = {"error": queued.failure.document}
    if queued.initiator:
        state["stateInitiator"] = queued.initiator
    return {
        **queued.document,
        "name": queued.path,
        "createTime": timestamp(queued.created),
        "state": state,
    }


def operation_document(operation: Operation) -> Document:
    """An operation as it is shown."""
    metadata = {
        "@type": f"{_TYPES}.OperationMetadata",
        "createTime": timestamp(operation.created),
        "target": operation.target,
        "verb": operation.verb,
        "apiVersion": "v2",
    }
    document: Document = {"name": operation.key.path("operations"), "metadata": metadata}
    if operation.ended:
        metadata["endTime"] = timestamp(operation.ended)
        document["done"] = True
        if operation.failure:
            document["error"] = operation.failure.document
        else:
            document["response"] = operation.response
    return document


def response(target: Node | Queued | None) -> Document:
    """What a finished operation answers with: the resource as it is now, or nothing."""
    if target is None:
        return {"@type": "type.googleapis.com/google.protobuf.Empty"}
    if isinstance(target, Node):
        return {"@type": f"{_TYPES}.Node", **node_document(target)}
    return {"@type": f"{_TYPES}.QueuedResource", **queued_document(target)}


def accelerator_config(kind: AcceleratorType) -> Document:
    """A type as generation and topology; empty where the topology is not known."""
    if kind.topology is None:
        return {}
    config = load_data("service")["generations"][kind.generation]["config"]
    return {"type": config, "topology": kind.topology}


def _service_account(asked: Document, project: str) -> Document:
    default = f"{project_number(project)}-compute@developer.gserviceaccount.com"
    return {"email": asked.get("email", default), "scope": asked.get("scope") or [CLOUD_SCOPE]}


def _network(asked: Document, project: str) -> Document:
    network = asked.get("network", "default")
    full = network if "/" in network else f"projects/{project}/global/networks/{network}"
    return {**asked, "network": full}


def _endpoint(internal: str, external: str) -> Document:
    document: Document = {"ipAddress": internal, "port": TPU_PORT}
    if external:
        document["accessConfig"] = {"externalIp": external}
    return document
