"""What the metadata server tells a worker of a node about itself."""

from collections.abc import Mapping
from typing import Any

from tpuctl.emulator.documents import CLOUD_SCOPE, node_document
from tpuctl.emulator.records import Node
from tpuctl.emulator.refusals import project_number

Tree = dict[str, Any]

_NO_NOTICE = '{"error": "no notifications have been received yet, try again later"}'


def project_tree(project: str) -> Tree:
    """What any machine of the project is told."""
    number = project_number(project)
    email = f"{number}-compute@developer.gserviceaccount.com"
    return {
        "project": {"project-id": project, "numeric-project-id": str(number)},
        "instance": {"service-accounts": {"default": _account(email, [CLOUD_SCOPE])}},
    }


def worker_tree(node: Node, worker: int) -> Tree:
    """What one worker of a node is told."""
    project, spec = node.key.project, node.spec.document
    account = node_document(node)["serviceAccount"]
    internal, external = node.addresses[worker] if node.addresses else ("", "")
    tree = project_tree(project)
    tree["instance"] |= {
        "id": str(node.id + worker),
        "name": worker_name(node, worker),
        "hostname": f"{worker_name(node, worker)}.{node.key.zone}.c.{project}.internal",
        "zone": f"projects/{project_number(project)}/zones/{node.key.zone}",
        "attributes": {**spec.get("metadata", {}), **_tpu_attributes(node, worker)},
        "preempted": "TRUE" if node.state == "PREEMPTED" else "FALSE",
        "upcoming-maintenance": _NO_NOTICE,
        "guest-attributes": _nested(node.published(worker)),
        "network-interfaces": {
            "0": {"ip": internal, "access-configs": {"0": {"external-ip": external}}}
        },
        "service-accounts": {"default": _account(account["email"], account["scope"])},
    }
    return tree


def find(tree: Tree, path: str) -> Any:
    """The value at a path, a folder as a tree; None where there is nothing."""
    value: Any = tree
    for part in (part for part in path.split("/") if part):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return value


def listing(folder: Tree) -> str:
    """The names in a folder, one a line; folders end in a slash."""
    names = (f"{name}/" if isinstance(value, dict) else name for name, value in folder.items())
    return "".join(f"{name}\n" for name in sorted(names))


def scopes_of(node: Node) -> list[str]:
    """What the tokens of a node's workers are good for."""
    scopes: list[str] = node_document(node)["serviceAccount"]["scope"]
    return scopes


def worker_name(node: Node, worker: int) -> str:
    """The name of the machine of one worker."""
    return f"{node.key.name}-w-{worker}"


def _account(email: str, scopes: list[str]) -> Tree:
    return {"email": email, "scopes": "\n".join(scopes) + "\n", "aliases": "default"}


def _tpu_attributes(node: Node, worker: int) -> dict[str, str]:
    kind = node.spec.type.accelerator_type
    return {
        "accelerator-type": kind,
        "agent-worker-number": str(worker),
        "instance-id": node.key.name,
        "worker-network-endpoints": ",".join(
            f"{worker_name(node, index)}:{node.id + index}:{internal}"
            for index, (internal, _) in enumerate(node.addresses)
        ),
        "tpu-env": "".join(f"{key}: '{value}'\n" for key, value in _tpu_env(node, worker).items()),
    }


def _tpu_env(node: Node, worker: int) -> dict[str, str]:
    topology = node.spec.type.topology
    return {
        "ACCELERATOR_TYPE": node.spec.type.accelerator_type,
        "CONSUMER_PROJECT_ID": node.key.project,
        "NODE_ID": node.key.name,
        "WORKER_ID": str(worker),
        "ZONE": node.key.zone,
        **({"TOPOLOGY": topology} if topology else {}),
    }


def _nested(flat: Mapping[str, str]) -> Tree:
    tree: Tree = {}
    for path, value in flat.items():
        namespace, _, key = path.partition("/")
        tree.setdefault(namespace, {})[key] = value
    return tree
