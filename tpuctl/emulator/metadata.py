"""What the metadata server tells a worker of a node about itself."""

import os
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from tpuctl.emulator.documents import CLOUD_SCOPE, node_document
from tpuctl.emulator.methods import Call, Document
from tpuctl.emulator.records import Key, Node
from tpuctl.emulator.refusals import not_found, project_number, refusal
from tpuctl.emulator.service import Emulator
from tpuctl.emulator.world import timestamp

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


TOKEN_LIVES_S = 3599
_GUEST_PATH = re.compile(r"[A-Za-z0-9_.-]{1,128}/[A-Za-z0-9_.-]{1,128}")
_LARGEST_GUEST_VALUE = 256 << 10


class FrontDesk:
    """Answers those who come over HTTP.

    The tokens that it gave out are good until it ends; who comes with an older one is told to
    fetch another, as with the real service.
    """

    def __init__(self, emulator: Emulator) -> None:
        self._emulator = emulator
        self._scopes: dict[str, list[str]] = {}
        self.answer, self.headers, self.now = emulator.answer, emulator.headers, emulator.now

    def check_token(self, authorization: str) -> None:
        """Refuse a request without a token of ours, or with one for something else."""
        scheme, _, token = authorization.partition(" ")
        scopes = self._scopes.get(token) if scheme.lower() == "bearer" else None
        if scopes is None:
            raise refusal("unauthenticated")
        if CLOUD_SCOPE not in scopes:
            raise refusal("scope")

    def token(self, project: str | None, zone: str, name: str, worker: int) -> Document:
        """Give the machine a token of its service account."""
        node = self._node(project, zone, name, worker) if project else None
        about = f"token of {node.id if node else 'the project'}"
        token = f"ya29.emulated-{self._emulator.look().digest(about)[:48]}"
        self._scopes[token] = scopes_of(node) if node else [CLOUD_SCOPE]
        return {"access_token": token, "expires_in": TOKEN_LIVES_S, "token_type": "Bearer"}

    def metadata(self, project: str | None, zone: str, name: str, worker: int) -> Tree:
        """Everything that a machine is told; of the project alone where it is no worker."""
        if project is None:
            return project_tree(self._emulator.scenario.project or "practice")
        return worker_tree(self._node(project, zone, name, worker), worker)

    def publish(
        self, project: str, zone: str, name: str, worker: int, path: str, value: str
    ) -> None:
        """Take a guest attribute of a worker; refused unless its node's metadata allows it."""
        node = self._node(project, zone, name, worker)
        allowed = node.spec.document.get("metadata", {}).get("enable-guest-attributes", "")
        if allowed.upper() != "TRUE" or len(value) > _LARGEST_GUEST_VALUE:
            raise refusal("permission", permission="guest-attributes", resource=node.path)
        if not _GUEST_PATH.fullmatch(path):
            raise not_found(path)
        body = {"worker": worker, "path": path, "value": value}
        self._emulator.answer(Call("publish_guest_attribute", project, zone, name, body))

    def status(self) -> Document:
        """How it goes, for `tpuctl emulator status`."""
        world, emulator = self._emulator.look(), self._emulator
        return {
            "pid": os.getpid(),
            "endpoint": emulator.endpoint,
            "http": emulator.http,
            "time": timestamp(emulator.now()),
            "time_scale": emulator.scenario.time_scale,
            "requests": len(emulator.requests),
            "nodes": dict(Counter(node.state for node in list(world.nodes.values()))),
            "queued_resources": dict(Counter(item.state for item in list(world.queued.values()))),
        }

    def _node(self, project: str | None, zone: str, name: str, worker: int) -> Node:
        node = self._emulator.look().node(Key(project or "", zone, name))
        if worker >= node.spec.type.workers:
            raise not_found(f"{node.path} worker {worker}")
        return node
