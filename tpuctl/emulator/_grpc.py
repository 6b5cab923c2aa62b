"""The emulated APIs over gRPC, and the translation between documents and their messages."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NoReturn, TypeVar

import grpc
from google.api import annotations_pb2  # noqa: F401 - registers what the messages refer to
from google.cloud import cloudquotas_v1, tpu_v2, tpu_v2alpha1
from google.cloud.location import locations_pb2
from google.longrunning import operations_pb2
from google.protobuf import empty_pb2, json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc import error_details_pb2, status_pb2  # noqa: F401 - so that Any knows the details

from tpuctl.emulator._json_messages import is_known, show
from tpuctl.emulator.errors import CODES, ApiError, api_error, bad_request
from tpuctl.emulator.http import path_pattern
from tpuctl.emulator.methods import (
    LOCATIONS,
    METHODS,
    OPERATIONS,
    QUOTAS,
    TPU,
    Call,
    Document,
    Method,
)
from tpuctl.emulator.service import Emulator

M = TypeVar("M", bound=Message)

_Read = Callable[[Any], Any]

_LONG = frozenset({FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64})


def to_message(kind: type[M], document: Document) -> M:
    """Convert a valid document to a message, like `json_format.ParseDict`.

    Raises KeyError for an unknown field. ParseDict takes half a millisecond per node, ten times
    as long as the rest of a list; this looks up the fields of each message type only once.
    """
    descriptor: Any = kind.DESCRIPTOR
    return kind(**_arguments(descriptor, document))


def _arguments(descriptor: Descriptor, document: Document) -> dict[str, Any]:
    """Return the arguments of the constructor of a message, nested ones included."""
    arguments, fields = {}, _fields(descriptor)
    for key, value in document.items():
        # The API has newer fields than its libraries, and one version newer ones than another.
        if key not in fields and is_known(descriptor.name, key):
            continue
        name, read = fields[key]
        many = isinstance(value, list)
        arguments[name] = [read(each) for each in value] if many else read(value)
    return arguments


@cache
def _fields(descriptor: Descriptor) -> dict[str, tuple[str, _Read]]:
    """Map the name of each field in JSON to its name in Python and the reader of its values."""
    return {field.json_name: (field.name, _reader(field)) for field in descriptor.fields}


def _reader(field: FieldDescriptor) -> _Read:
    inner = field.message_type
    if inner is None:
        # In JSON, 64-bit integers are strings.
        return int if field.cpp_type in _LONG else _unchanged
    if inner.GetOptions().map_entry:
        return _unchanged
    if inner.full_name.startswith("google.protobuf."):
        kind = GetMessageClass(inner)
        # The types in an operation have newer fields, too.
        return lambda value: json_format.ParseDict(value, kind(), ignore_unknown_fields=True)
    # The fields are looked up only for a value: a message type may contain itself.
    return lambda value: _arguments(inner, value)


def _unchanged(value: Any) -> Any:
    return value


_MODULES: dict[str, Any] = {
    TPU: tpu_v2,
    OPERATIONS: operations_pb2,
    LOCATIONS: locations_pb2,
    QUOTAS: cloudquotas_v1,
}


@dataclass(frozen=True)
class MessageTypes:
    """The messages of one method."""

    method: Method
    request: type[Message]
    reply: type[Message]

    version: str

    @property
    def path(self) -> str:
        """The name of the method in gRPC."""
        return f"/{self.method.service.replace('.v2.', f'.{self.version}.')}/{self.method.rpc}"

    def read(self, message: Message) -> Call:
        """Convert a request to a call; raises ApiError for an invalid resource name."""
        body = json_format.MessageToDict(message)
        for spec in body.get("queuedResource", {}).get("tpu", {}).get("nodeSpec", ()):
            if "multiNodeParams" in spec:
                spec["multisliceParams"] = spec.pop("multiNodeParams")
        return to_call(self.method, body, self.version)

    def write(self, document: Document) -> Message:
        """Convert a reply to a message."""
        if self.version != "v2" or "Operation" in self.method.reply:
            document = show(self.method.reply, document, self.version)
        return to_message(self.reply, document)


def to_call(method: Method, body: Document, version: str) -> Call:
    """Find out where a request acts; raises ApiError for an invalid resource name."""
    container, _, key = method.resource_field.rpartition(".")
    full = str((body.get(container, {}) if container else body).get(key, ""))
    template = f"{{resource={method.resource_template}}}"
    if not path_pattern(template).fullmatch(full.rstrip("/")):
        raise bad_request(f'Invalid resource name "{full}" in field {method.resource_field}.')
    # projects/PROJECT, then locations/ZONE, then COLLECTION/NAME
    _, project, _, zone, _, name, *_ = [*full.rstrip("/").split("/"), *[""] * 5]
    if method.service == QUOTAS:
        return Call(method.name, project, "", name, body)
    new = body.get("nodeId") or body.get("queuedResourceId")
    return Call(method.name, project, zone, str(new or name), body, version)


@cache
def message_types() -> list[MessageTypes]:
    """Return the messages of every method, in every version that has it."""
    return [
        MessageTypes(method, *_messages(method, version), version)
        for version in ("v2", "v2alpha1")
        for method in METHODS.values()
        if (not method.alpha if version == "v2" else method.service == TPU)
    ]


def _messages(method: Method, version: str) -> tuple[type[Message], type[Message]]:
    """Return the request and reply types of a method, which Google's libraries name alike."""
    module = tpu_v2alpha1 if version == "v2alpha1" else _MODULES[method.service]
    request: Any = getattr(module, f"{method.rpc}Request")
    reply: Any = operations_pb2.Operation
    if not method.starts_operation:
        response = getattr(module, f"{method.rpc}Response", None)
        reply = response or getattr(module, method.rpc.removeprefix("Get"), empty_pb2.Empty)
    # The classes of proto-plus wrap the messages of protobuf.
    request, reply = (each.pb() if hasattr(each, "pb") else each for each in (request, reply))
    return request, reply


# A call occupies its thread while it waits for the emulated latency.
_THREADS = 128
_CODES = {code.value[0]: code for code in grpc.StatusCode}
# With a shared port, a second emulator would get half of the first one's requests.
_OPTIONS = (("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", 16 << 20))


class _Service(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """Answers the emulated methods, and all others with UNIMPLEMENTED."""

    def __init__(self, emulator: Emulator) -> None:
        self._emulator = emulator
        self._types = {each.path: each for each in message_types()}

    def service(self, handler_call_details: Any) -> Any:
        path: str = handler_call_details.method
        types = self._types.get(path)
        headers = dict(handler_call_details.invocation_metadata)
        known = self._emulator.secret is None or self._emulator.scopes(
            headers.get("authorization", "")
        )
        if types is None or not known:
            error = api_error("unimplemented", what=f"a method {path}")
            if not known:
                error = api_error("no_secret")
            return grpc.unary_unary_rpc_method_handler(
                lambda _, context: self._abort(context, error)
            )
        return grpc.unary_unary_rpc_method_handler(
            partial(self._answer, types),
            request_deserializer=types.request.FromString,
            response_serializer=types.reply.SerializeToString,
        )

    def _answer(self, types: MessageTypes, request: Any, context: grpc.ServicerContext) -> Any:
        try:
            reply = types.write(self._emulator.answer(types.read(request)))
        except ApiError as error:
            self._abort(context, error)
        context.send_initial_metadata(self._emulator.headers())
        return reply

    def _abort(self, context: grpc.ServicerContext, error: ApiError) -> NoReturn:
        context.send_initial_metadata(self._emulator.headers())
        status = json_format.ParseDict(error.document, status_pb2.Status()).SerializeToString()
        context.set_trailing_metadata((("grpc-status-details-bin", status),))
        context.abort(_CODES[CODES[error.code][0]], error.message)


def serve_grpc(emulator: Emulator, *, port: int) -> tuple[grpc.Server, int]:
    """Listen on loopback; returns the server and its port, which is 0 if the port is taken."""
    server = grpc.server(
        ThreadPoolExecutor(_THREADS, thread_name_prefix="tpuctl-emulator"), options=_OPTIONS
    )
    server.add_generic_rpc_handlers((_Service(emulator),))
    try:
        # No handshake, so that clients without credentials can connect too. A client with these
        # credentials sends a token, which Google's library does not do over an insecure channel.
        bound = server.add_secure_port(f"127.0.0.1:{port}", grpc.local_server_credentials())
    except RuntimeError:
        return server, 0
    if bound:
        server.start()
    return server, bound
