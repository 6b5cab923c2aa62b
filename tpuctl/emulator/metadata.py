"""The metadata servers of the emulated workers, and of a VM without a TPU."""

import re
from collections.abc import Mapping
from typing import Any, cast

from tpuctl.emulator.compute.documents import accounts_of, metadata_items
from tpuctl.emulator.compute.resources import Instance
from tpuctl.emulator.documents import CLOUD_SCOPE, SSH_PORT, default_account, node_document
from tpuctl.emulator.errors import api_error, not_found, project_number
from tpuctl.emulator.http import HttpApi, Reply, Request, Route, text_reply
from tpuctl.emulator.methods import Call
from tpuctl.emulator.resources import INSTANCE, Host, Key, Node
from tpuctl.emulator.service import Emulator
from tpuctl.emulator.world import World

Tree = dict[str, Any]

TOKEN_LIVES_S = 3599
_NO_NOTICE = '{"error": "no notifications have been received yet, try again later"}'
_GUEST = "/instance/guest-attributes/"
_GUEST_PATH = re.compile(r"[A-Za-z0-9_.-]{1,128}/[A-Za-z0-9_.-]{1,128}")
_LARGEST_GUEST_VALUE = 256 << 10
_LISTS = ("/scopes", "/aliases")
_NUMBERS = ("/numeric-project-id", "/instance/id")
_FREE_NAMES = ("/attributes", "/guest-attributes", "/service-accounts")
_FROM_SERVER = {"Metadata-Flavor": "Google"}


def metadata_api(emulator: Emulator) -> HttpApi:
    """Serve the metadata of every worker below `/vm/PROJECT/ZONE/NODE/WORKER`."""
    server = MetadataServer(emulator)
    workers = "/vm/{project}/{zone}/{node}/{worker}"
    return HttpApi(
        ("/vm/", "/computeMetadata/"),
        [
            *(Route(f"GET {workers}{end}", answer_probe) for end in ("", "/")),
            *(
                Route(f"{verb} {machine}/computeMetadata/v1{{path=**}}", answer)
                for machine in ("", workers)
                for verb, answer in (("GET", server.get), ("PUT", server.put))
            ),
        ],
    )


def answer_probe(_: Request) -> Reply:
    """Answer google-auth's probe for a metadata server."""
    return text_reply("computeMetadata/\n", "application/text", headers=_FROM_SERVER)


class MetadataServer:
    """Serves the metadata of each machine."""

    def __init__(self, emulator: Emulator) -> None:
        self._emulator = emulator

    def get(self, request: Request) -> Reply:
        """Return a value, or a directory: as a list of names, or as JSON with `recursive`."""
        if refused := _refuse_headers(request):
            return refused
        path = request.names["path"] or "/"
        node, worker = self._machine(request)
        if path.startswith("/instance/service-accounts/") and path.endswith("/token"):
            return Reply(document=self._token(node, path), headers=_FROM_SERVER)
        if node:
            tree = worker_tree(self._emulator.world, node, worker)
        else:
            tree = project_tree(self._emulator.scenario.project or "practice")
        value = _find(tree, path)
        if value is None:
            raise not_found(path)
        if isinstance(value, dict):
            if request.query.get("recursive", "").lower() == "true":
                return Reply(document=_as_json(value, path), headers=_FROM_SERVER)
            names = (f"{name}/" if isinstance(item, dict) else name for name, item in value.items())
            value = "".join(f"{name}\n" for name in sorted(names))
        return text_reply(str(value), "application/text", headers=_FROM_SERVER)

    def put(self, request: Request) -> Reply:
        """Store a guest attribute of a worker, if its node's metadata allows that."""
        if refused := _refuse_headers(request):
            return refused
        path, (node, worker) = request.names["path"], self._machine(request)
        if node is None or not path.startswith(_GUEST):
            raise api_error("unimplemented", what=f"PUT {path}")
        value = request.body.read(_LARGEST_GUEST_VALUE).decode("utf-8", "replace")
        if node.metadata.get("enable-guest-attributes", "").upper() != "TRUE":
            raise api_error("permission", permission="guest-attributes", resource=node.path)
        attribute = path.removeprefix(_GUEST)
        if not _GUEST_PATH.fullmatch(attribute):
            raise not_found(attribute)
        own = worker if isinstance(node, Node) else INSTANCE
        body = {"worker": own, "path": attribute, "value": value}
        self._emulator.answer(Call("publish_guest_attribute", *node.key, body))
        return text_reply("", "text/plain", headers=_FROM_SERVER)

    def _machine(self, request: Request) -> tuple[Host | None, int]:
        """Return the node and worker that sent a request; None for a VM without a TPU."""
        if "node" not in request.names:
            return None, 0
        project, zone, name, worker, _ = request.names.values()
        key, world = Key(project, zone, name), self._emulator.advance()
        if worker == INSTANCE:
            if instance := world.compute.instances.get(key):
                return instance, 0
            raise not_found(key.path("instances"))
        node = world.node(key)
        if not worker.isdecimal() or int(worker) >= node.spec.type.workers:
            raise not_found(f"{node.path} worker {worker}")
        return node, int(worker)

    def _token(self, node: Host | None, path: str) -> dict[str, Any]:
        """Issue an access token for a machine's service account."""
        about = f"token of {node.id if node else 'the project'}"
        token = f"ya29.emulated-{self._emulator.advance().digest(about)[:48]}"
        account = account_of(node) if node else ("", [CLOUD_SCOPE])
        if account is None:
            raise not_found(path)
        self._emulator.tokens[token] = account[1]
        return {"access_token": token, "expires_in": TOKEN_LIVES_S, "token_type": "Bearer"}


def project_tree(project: str) -> Tree:
    """Return the metadata that all machines of a project share."""
    account = _account(default_account(project), [CLOUD_SCOPE])
    return {
        "project": {
            "project-id": project,
            "numeric-project-id": str(project_number(project)),
            "attributes": {},
        },
        "instance": {"service-accounts": {"default": account, account["email"]: account}},
    }


def account_of(node: Host) -> tuple[str, list[str]] | None:
    """Return a machine's service account and scopes; an instance may have none."""
    if isinstance(node, Node):
        account = node_document(node)["serviceAccount"]
        return account["email"], account["scope"]
    accounts = accounts_of(cast(Instance, node))
    return (accounts[0]["email"], accounts[0].get("scopes", [])) if accounts else None


def worker_tree(world: World, node: Host, worker: int) -> Tree:
    """Return the metadata of one worker of a node, or of an instance."""
    project = node.key.project
    account = account_of(node)
    internal, external = node.addresses[worker] if node.addresses else ("", "")
    guest_attributes: Tree = {}
    for path, value in node.published_attributes(worker).items():
        namespace, _, key = path.partition("/")
        guest_attributes.setdefault(namespace, {})[key] = value
    tree = project_tree(project)
    if isinstance(node, Node):
        own = _node_tree(node, worker)
    else:
        own = instance_tree(world, cast(Instance, node))
    tree["instance"] |= own | {
        "upcoming-maintenance": _NO_NOTICE,
        "guest-attributes": guest_attributes,
        "network-interfaces": {
            "0": {"ip": internal, "access-configs": {"0": {"external-ip": external}}}
        },
        "service-accounts": dict.fromkeys(("default", account[0]), _account(*account))
        if account
        else {},
    }
    return tree


def _node_tree(node: Node, worker: int) -> Tree:
    project = node.key.project
    return {
        "id": str(node.id + worker),
        "name": node.worker_name(worker),
        "hostname": f"{node.worker_name(worker)}.{node.key.zone}.c.{project}.internal",
        "zone": f"projects/{project_number(project)}/zones/{node.key.zone}",
        "attributes": {**node.metadata, **_tpu_attributes(node, worker)},
        "preempted": "TRUE" if node.state == "PREEMPTED" else "FALSE",
    }


def _as_json(value: Any, path: str) -> Any:
    """Write a directory like the real server: names in camel case, numbered entries as a list."""
    if path.endswith(_LISTS):
        return str(value).split()
    if not isinstance(value, dict):
        return int(value) if path.endswith(_NUMBERS) else value
    if value and all(name.isdecimal() for name in value):
        return [_as_json(item, "") for item in value.values()]
    is_free = path.rstrip("/").endswith(_FREE_NAMES)
    return {
        name if is_free else re.sub(r"-(\w)", lambda found: found[1].upper(), name): _as_json(
            item, f"{'' if is_free else path.rstrip('/')}/{name}"
        )
        for name, item in value.items()
    }


def _refuse_headers(request: Request) -> Reply | None:
    """Refuse requests that a web page or a proxy could have made, like the real server."""
    headers = request.headers
    if headers.get("Metadata-Flavor") == "Google" and "X-Forwarded-For" not in headers:
        return None
    return text_reply("Missing required header: Metadata-Flavor", "text/plain", status=403)


def _find(tree: Tree, path: str) -> Any:
    """Return the value at a path, a tree for a directory, or None if there is nothing."""
    value: Any = tree
    for part in (part for part in path.split("/") if part):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return value


def _account(email: str, scopes: list[str]) -> Tree:
    return {"email": email, "scopes": "\n".join(scopes) + "\n", "aliases": "default"}


def _tpu_attributes(node: Node, worker: int) -> dict[str, str]:
    kind = node.spec.type
    tpu_env = {
        "ACCELERATOR_TYPE": kind.accelerator_type,
        "CONSUMER_PROJECT_ID": node.key.project,
        "NODE_ID": node.key.name,
        "WORKER_ID": str(worker),
        "ZONE": node.key.zone,
        **({"TOPOLOGY": kind.topology} if kind.topology else {}),
    }
    return {
        "accelerator-type": kind.accelerator_type,
        "agent-worker-number": str(worker),
        "instance-id": node.key.name,
        "worker-network-endpoints": ",".join(
            f"{node.worker_name(index)}:{node.id + index}:{internal}"
            for index, (internal, _) in enumerate(node.addresses)
        ),
        "tpu-env": "".join(f"{key}: '{value}'\n" for key, value in tpu_env.items()),
    }


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
        "attributes": {**own, **_instance_tpu(world, instance)},
        "preempted": "TRUE" if instance.was_preempted else "FALSE",
        "maintenance-event": instance.maintenance,
        "tags": "[]",
        "scheduling": {
            "automatic-restart": str(bool(scheduling["automaticRestart"])).upper(),
            "on-host-maintenance": str(scheduling["onHostMaintenance"]),
            "preemptible": str(bool(scheduling["preemptible"])).upper(),
        },
    }


def _instance_tpu(world: World, instance: Instance) -> dict[str, str]:
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
