"""The paths of the API over HTTP: which method a request is, and its message."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tpuctl.emulator.methods import METHODS, Document, Method

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
