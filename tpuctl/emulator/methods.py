"""The methods of the API that the emulator has, and one call of one of them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

TPU = "google.cloud.tpu.v2.Tpu"
OPERATIONS = "google.longrunning.Operations"
LOCATIONS = "google.cloud.location.Locations"
QUOTAS = "google.api.cloudquotas.v1.CloudQuotas"

Document = dict[str, Any]
"""A message of the API in the spelling of its JSON."""


@dataclass(frozen=True)
class Method:
    """One method: its name here and on the wire, and the field that says where it acts.

    `permission` is what the caller must be allowed; `starts` is whether it starts an operation.
    """

    name: str
    service: str
    rpc: str
    where: str
    permission: str
    starts: bool = False


def _tpu(name: str, rpc: str, where: str, permission: str, *, starts: bool = False) -> Method:
    return Method(name, TPU, rpc, where, f"tpu.{permission}", starts)


_ALL = (
    _tpu("create_node", "CreateNode", "parent", "nodes.create", starts=True),
    _tpu("get_node", "GetNode", "name", "nodes.get"),
    _tpu("list_nodes", "ListNodes", "parent", "nodes.list"),
    _tpu("delete_node", "DeleteNode", "name", "nodes.delete", starts=True),
    _tpu("stop_node", "StopNode", "name", "nodes.stop", starts=True),
    _tpu("start_node", "StartNode", "name", "nodes.start", starts=True),
    _tpu("update_node", "UpdateNode", "node.name", "nodes.update", starts=True),
    _tpu(
        "create_queued_resource",
        "CreateQueuedResource",
        "parent",
        "queuedResources.create",
        starts=True,
    ),
    _tpu("get_queued_resource", "GetQueuedResource", "name", "queuedResources.get"),
    _tpu("list_queued_resources", "ListQueuedResources", "parent", "queuedResources.list"),
    _tpu(
        "delete_queued_resource",
        "DeleteQueuedResource",
        "name",
        "queuedResources.delete",
        starts=True,
    ),
    _tpu(
        "reset_queued_resource", "ResetQueuedResource", "name", "queuedResources.reset", starts=True
    ),
    _tpu("list_accelerator_types", "ListAcceleratorTypes", "parent", "acceleratortypes.list"),
    _tpu("get_accelerator_type", "GetAcceleratorType", "name", "acceleratortypes.get"),
    _tpu("list_runtime_versions", "ListRuntimeVersions", "parent", "runtimeversions.list"),
    _tpu("get_runtime_version", "GetRuntimeVersion", "name", "runtimeversions.get"),
    _tpu("get_guest_attributes", "GetGuestAttributes", "name", "nodes.getGuestAttributes"),
    _tpu(
        "generate_service_identity",
        "GenerateServiceIdentity",
        "parent",
        "locations.generateServiceIdentity",
    ),
    Method("get_operation", OPERATIONS, "GetOperation", "name", "tpu.operations.get"),
    Method("list_operations", OPERATIONS, "ListOperations", "name", "tpu.operations.list"),
    Method("list_locations", LOCATIONS, "ListLocations", "name", "tpu.locations.list"),
    Method("get_location", LOCATIONS, "GetLocation", "name", "tpu.locations.get"),
    Method("list_quota_infos", QUOTAS, "ListQuotaInfos", "parent", "cloudquotas.quotas.get"),
)
METHODS = {method.name: method for method in _ALL}


@dataclass(frozen=True)
class Call:
    """One request: a method, where it acts, and the message itself.

    `name` is the id of the node, queued resource, operation, type or version it is about, "" where
    there is none; `zone` may be `-` in a list, and is "" where a method is about the project.
    """

    method: str
    project: str
    zone: str
    name: str = ""
    body: Mapping[str, Any] = field(default_factory=dict)


_PLACE = r"projects/[^/]+/locations/[^/]+"
_IDS = {"nodes": "node", "queuedResources": "queued_resource"}
_READ_ONLY = {
    "acceleratorTypes": "accelerator_type",
    "runtimeVersions": "runtime_version",
    "operations": "operation",
}


@dataclass(frozen=True)
class Route:
    """One kind of path. `body` is the field of the message that the HTTP body is; "" is all."""

    verb: str
    path: re.Pattern[str]
    method: Method
    body: str | None = None


def _routes() -> list[Route]:
    found = [
        _route("GET", r"(projects/[^/]+)/locations", "list_locations"),
        _route("GET", rf"({_PLACE})", "get_location"),
        _route("POST", rf"({_PLACE}):generateServiceIdentity", "generate_service_identity", ""),
        _route("POST", rf"({_PLACE})/nodes", "create_node", "node"),
        _route("PATCH", rf"({_PLACE}/nodes/[^/]+)", "update_node", "node"),
        _route("POST", rf"({_PLACE})/queuedResources", "create_queued_resource", "queuedResource"),
        _route("POST", rf"({_PLACE}/queuedResources/[^/:]+):reset", "reset_queued_resource", ""),
        _route("POST", rf"({_PLACE}/nodes/[^/:]+):stop", "stop_node", ""),
        _route("POST", rf"({_PLACE}/nodes/[^/:]+):start", "start_node", ""),
        _route("POST", rf"({_PLACE}/nodes/[^/:]+):getGuestAttributes", "get_guest_attributes", ""),
    ]
    for collection, name in (_IDS | _READ_ONLY).items():
        found.append(_route("GET", rf"({_PLACE})/{collection}", f"list_{name}s"))
        found.append(_route("GET", rf"({_PLACE}/{collection}/[^/]+)", f"get_{name}"))
    for collection, name in _IDS.items():
        found.append(_route("DELETE", rf"({_PLACE}/{collection}/[^/]+)", f"delete_{name}"))
    return found


def _route(verb: str, path: str, name: str, body: str | None = None) -> Route:
    return Route(verb, re.compile(path), METHODS[name], body)


ROUTES = tuple(_routes())


def match_route(
    verb: str, path: str, query: Mapping[str, str], body: Document
) -> tuple[Method, Document] | None:
    """The method that a request asks for, and the message in the spelling of its JSON."""
    for route in ROUTES:
        found = route.path.fullmatch(path) if route.verb == verb else None
        if found:
            return route.method, _message(route, found[1], query, body)
    return None


def _message(route: Route, name: str, query: Mapping[str, str], body: Document) -> Document:
    # Google's clients add `$alt` and the like, which are about the reply.
    message: Document = {
        key: value == "true" if value in ("true", "false") else value
        for key, value in query.items()
        if not key.startswith("$")
    }
    if route.body == "":
        message |= body
    elif route.body:
        message[route.body] = body
    container, _, key = route.method.where.rpartition(".")
    if container:
        message[container] = {**message[container], key: name}
    else:
        message[key] = name
    return message
