"""The Cloud TPU API over HTTP, with the paths from Google's reference."""

import json
from functools import partial

from tpuctl.emulator._grpc import to_call
from tpuctl.emulator._json_messages import read_message, read_parameters, show
from tpuctl.emulator.documents import CLOUD_SCOPE
from tpuctl.emulator.errors import api_error, bad_request
from tpuctl.emulator.http import HttpApi, Reply, Request, Route, is_standard
from tpuctl.emulator.methods import METHODS, QUOTAS, Document, Method
from tpuctl.emulator.service import Emulator

_LARGEST_BODY = 16 << 20
_OLD = ("v1", "v1alpha1")
_IN_OLD = (
    "get_location", "list_locations", "get_accelerator_type", "list_accelerator_types",
    "get_operation", "list_operations", "cancel_operation", "delete_operation",
    "list_quota_infos", "get_quota_info",
)  # fmt: skip


def tpu_api(emulator: Emulator) -> HttpApi:
    """Serve the versions of the API, and version 1 of the Cloud Quotas API.

    Version 1 has no nodes, because it is for the TPU nodes that preceded TPU VMs.
    """
    routes = []
    for version in ("v2", "v2alpha1", *_OLD):
        for method in METHODS.values():
            verb, path = method.http.split()
            is_old, is_quota = version in _OLD, method.service == QUOTAS
            if (is_old and method.name not in _IN_OLD) or (is_quota and version != "v1"):
                continue
            if method.alpha and version != "v2alpha1":
                continue
            answer = partial(_answer, emulator, method, "v2" if is_old else version)
            routes.append(Route(f"{verb} /{version}/{path}", answer))
    for version in _OLD:
        for collection in ("nodes", "tensorflowVersions"):
            rule = f"GET /{version}/{{name=projects/*/locations/*}}/{collection}"
            routes.append(Route(rule, partial(_nothing, emulator)))
    return HttpApi(tuple(f"/{version}/" for version in ("v2", "v2alpha1", *_OLD)), routes)


def _nothing(emulator: Emulator, request: Request) -> Reply:
    _check_token(emulator, request.headers.get("Authorization", ""))
    return Reply(document={})


def _answer(emulator: Emulator, method: Method, version: str, request: Request) -> Reply:
    _check_token(emulator, request.headers.get("Authorization", ""))
    call = to_call(method, _message(method, version, request), version)
    return Reply(document=show(method.reply, emulator.answer(call), version))


def _check_token(emulator: Emulator, authorization: str) -> None:
    """Raise ApiError if the token is invalid or lacks the required scope."""
    scopes = emulator.scopes(authorization)
    if scopes is None:
        raise api_error("unauthenticated")
    if CLOUD_SCOPE not in scopes:
        raise api_error("scope")


def _message(method: Method, version: str, request: Request) -> Document:
    """Build the message of a request from its path, query and body."""
    query = {key: value for key, value in request.query.items() if not is_standard(key)}
    message = read_parameters(query, method.query.split())
    body = _read_body(request)
    if method.body == "*":
        message |= read_message(f"{method.rpc}Request", body, version)
    elif method.body:
        kind = method.body[0].upper() + method.body[1:]
        message[method.body] = read_message(kind, body, version, method.body)
    container, _, key = method.resource_field.rpartition(".")
    (name,) = request.names.values()
    if container:
        message[container] = {**message[container], key: name}
    else:
        message[key] = name
    return message


def _read_body(request: Request) -> Document:
    try:
        document = json.loads(request.body.read(_LARGEST_BODY) or b"{}")
    except (ValueError, RecursionError) as error:
        raise bad_request(f"Invalid JSON payload received. {error}") from error
    if not isinstance(document, dict):
        raise bad_request("Invalid JSON payload received. It must be an object.")
    return document
