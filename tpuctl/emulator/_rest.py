"""The Cloud TPU API over HTTP: its methods as Google's reference maps them to paths."""

import json
from functools import partial

from google.protobuf import json_format

from tpuctl.emulator._grpc import message_types
from tpuctl.emulator.documents import CLOUD_SCOPE
from tpuctl.emulator.errors import api_error, bad_request
from tpuctl.emulator.http import HttpApi, Reply, Request, Route
from tpuctl.emulator.methods import METHODS, QUOTAS, Document, Method
from tpuctl.emulator.service import Emulator

_LARGEST_BODY = 16 << 20


def tpu_api(emulator: Emulator) -> HttpApi:
    """Serve version 2 of the API; the Cloud Quotas API is another host, and gRPC only."""
    routes = []
    for method in METHODS.values():
        verb, path = method.http.split()
        if method.service != QUOTAS:
            routes.append(Route(f"{verb} /v2/{path}", partial(_answer, emulator, method)))
    return HttpApi(("/v2/",), routes)


def _answer(emulator: Emulator, method: Method, request: Request) -> Reply:
    _check_token(emulator, request.headers.get("Authorization", ""))
    types = message_types()[method.name]
    try:
        message = json_format.ParseDict(_message(method, request), types.request())
    except (json_format.ParseError, UnicodeError) as error:
        raise bad_request(f"Invalid JSON payload received. {error}") from error
    return Reply(document=emulator.answer(types.read(message)))


def _check_token(emulator: Emulator, authorization: str) -> None:
    """Raise ApiError without a valid token, or without the scope it needs."""
    scopes = emulator.scopes(authorization)
    if scopes is None:
        raise api_error("unauthenticated")
    if CLOUD_SCOPE not in scopes:
        raise api_error("scope")


def _message(method: Method, request: Request) -> Document:
    """Put together the message of a request from its path, its query and its body."""
    body = _read_body(request)
    # Parameters that start with $, such as `$alt`, are about the form of the reply.
    message: Document = {
        key: value == "true" if value in ("true", "false") else value
        for key, value in request.query.items()
        if value and not key.startswith("$")
    }
    if method.body == "*":
        message |= body
    elif method.body:
        message[method.body] = body
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
