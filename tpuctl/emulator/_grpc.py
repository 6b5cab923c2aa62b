"""Turning documents into messages, at the pace of a list of thousands.

`json_format.ParseDict` takes half a millisecond for a node, ten times what all the rest of a list
costs. Here a kind of message is understood once, and its documents are only translated.
"""

import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import grpc
from google.api import annotations_pb2  # noqa: F401 - registers what the messages refer to
from google.cloud import cloudquotas_v1, tpu_v2
from google.cloud.location import locations_pb2
from google.longrunning import operations_pb2
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc import error_details_pb2, status_pb2  # noqa: F401 - so that Any knows the details

from tpuctl.emulator.methods import LOCATIONS, METHODS, OPERATIONS, QUOTAS, Call, Document, Method
from tpuctl.emulator.refusals import CODES, Refusal, bad_request, refusal

M = TypeVar("M", bound=Message)

_Read = Callable[[Any], Any]

_WELL_KNOWN = "google.protobuf."
_LONG = frozenset({FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64})


def to_message(kind: type[M], document: Document) -> M:
    """Make a message of a document that spells its fields as the API's JSON does.

    What `json_format.ParseDict` makes of it, for documents that are known to be right. Raises
    KeyError for a field that there is not.
    """
    return kind(**_arguments(_fields(kind.DESCRIPTOR), document))


def _arguments(fields: Mapping[str, tuple[str, _Read]], document: Document) -> dict[str, Any]:
    """What the constructor takes, for the messages inside as well."""
    arguments = {}
    for key, value in document.items():
        name, read = fields[key]
        many = isinstance(value, list)
        arguments[name] = [read(each) for each in value] if many else read(value)
    return arguments


@cache
def _fields(descriptor: Descriptor) -> dict[str, tuple[str, _Read]]:
    """For each field by its name in JSON: its name in Python, and how a value of it is read."""
    return {field.json_name: (field.name, _reader(field)) for field in descriptor.fields}


def _reader(field: FieldDescriptor) -> _Read:
    inner = field.message_type
    if inner is None:
        # JSON has no numbers of 64 bits: they are texts there.
        return int if field.cpp_type in _LONG else _as_it_is
    if inner.GetOptions().map_entry:
        return _as_it_is
    if inner.full_name.startswith(_WELL_KNOWN):
        kind = GetMessageClass(inner)
        return lambda value: json_format.ParseDict(value, kind())
    # The fields are looked up only when a value comes: a message may contain its own kind.
    return lambda value: _arguments(_fields(inner), value)


def _as_it_is(value: Any) -> Any:
    return value


_PLACE = re.compile(r"projects/([^/]+)(?:/locations/([^/]+)(?:/(\w+)/([^/]+))?)?")
_QUOTA_PLACE = re.compile(r"projects/([^/]+)/locations/global/services/([^/]+)")
_ID_FIELDS = ("nodeId", "queuedResourceId")
_REPLY_OF_TPU = {
    "GetNode": "Node",
    "GetQueuedResource": "QueuedResource",
    "GetAcceleratorType": "AcceleratorType",
    "GetRuntimeVersion": "RuntimeVersion",
}


@dataclass(frozen=True)
class Wire:
    """The messages of one method."""

    method: Method
    request: type[Message]
    reply: type[Message]

    def read(self, message: Message) -> Call:
        """Turn a request into a call; raises Refusal for a name that names nothing."""
        body = json_format.MessageToDict(message)
        return read_call(self.method, body)

    def write(self, document: Document) -> Message:
        """Turn the answer into the reply."""
        return to_message(self.reply, document)


def read_call(method: Method, body: Document) -> Call:
    """Take apart the resource name in a request; what is left is its body."""
    container, _, key = method.where.rpartition(".")
    holder = body.get(container, {}) if container else body
    full = str(holder.get(key, ""))
    pattern = _QUOTA_PLACE if method.service == QUOTAS else _PLACE
    match = pattern.fullmatch(full.rstrip("/"))
    if match is None:
        raise bad_request(f'Invalid resource name "{full}" in field {method.where}.')
    if method.service == QUOTAS:
        return Call(method.name, match[1], "", match[2], body)
    name = next((str(body[field]) for field in _ID_FIELDS if field in body), match[4] or "")
    return Call(method.name, match[1], match[2] or "", name, body)


def error_status(error: Refusal) -> status_pb2.Status:
    """A refusal as google.rpc.Status, with its details."""
    return json_format.ParseDict(error.document, status_pb2.Status())


@cache
def wires() -> dict[str, Wire]:
    """The messages of every method, by the method's name."""
    return {name: Wire(method, *_messages(method)) for name, method in METHODS.items()}


def _messages(method: Method) -> tuple[type[Message], type[Message]]:
    if method.service == OPERATIONS:
        reply = "Operation" if method.rpc == "GetOperation" else "ListOperationsResponse"
        return _of(operations_pb2, f"{method.rpc}Request"), _of(operations_pb2, reply)
    if method.service == LOCATIONS:
        reply = "Location" if method.rpc == "GetLocation" else "ListLocationsResponse"
        return _of(locations_pb2, f"{method.rpc}Request"), _of(locations_pb2, reply)
    module = cloudquotas_v1 if method.service == QUOTAS else tpu_v2
    request = _of(module, f"{method.rpc}Request").pb()
    if method.starts:
        return request, operations_pb2.Operation
    return request, _of(module, _REPLY_OF_TPU.get(method.rpc, f"{method.rpc}Response")).pb()


_of: Callable[[Any, str], Any] = getattr


_THREADS = 128
_CODES = {code.value[0]: code for code in grpc.StatusCode}
# Without this a second emulator on the same port would get every other request of the first.
_OPTIONS = (("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", 16 << 20))

Answer = Callable[[Call], Document]
Headers = Callable[[], tuple[tuple[str, str], ...]]


class GrpcFace(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """Answers every method that the emulator has, and says UNIMPLEMENTED to all others."""

    def __init__(self, answer: Answer, headers: Headers) -> None:
        self._answer, self._headers = answer, headers
        self._wires = {f"/{w.method.service}/{w.method.rpc}": w for w in wires().values()}

    def service(self, handler_call_details: Any) -> Any:
        """Find the handler of a method."""
        path: str = handler_call_details.method
        wire = self._wires.get(path)
        if wire is None:
            return grpc.unary_unary_rpc_method_handler(self._refuse(path))
        return grpc.unary_unary_rpc_method_handler(
            self._handler(wire),
            request_deserializer=wire.request.FromString,
            response_serializer=wire.reply.SerializeToString,
        )

    def _handler(self, wire: Wire) -> Callable[[Any, grpc.ServicerContext], Any]:
        def handle(request: Any, context: grpc.ServicerContext) -> Any:
            try:
                reply = wire.write(self._answer(wire.read(request)))
            except Refusal as error:
                self._abort(context, error)
            context.send_initial_metadata(self._headers())
            return reply

        return handle

    def _refuse(self, path: str) -> Callable[[Any, grpc.ServicerContext], Any]:
        def handle(_: Any, context: grpc.ServicerContext) -> Any:
            self._abort(context, refusal("unimplemented", what=f"a method {path}"))

        return handle

    def _abort(self, context: grpc.ServicerContext, error: Refusal) -> None:
        context.send_initial_metadata(self._headers())
        status = error_status(error).SerializeToString()
        context.set_trailing_metadata((("grpc-status-details-bin", status),))
        context.abort(_CODES[CODES[error.code][0]], error.message)


def serve_grpc(answer: Answer, headers: Headers, *, port: int) -> tuple[grpc.Server, int]:
    """Start to listen on loopback; gives the server and its port, 0 where that is taken."""
    server = grpc.server(
        ThreadPoolExecutor(_THREADS, thread_name_prefix="tpuctl-emulator"), options=_OPTIONS
    )
    server.add_generic_rpc_handlers((GrpcFace(answer, headers),))
    try:
        bound = server.add_insecure_port(f"127.0.0.1:{port}")
    except RuntimeError:
        return server, 0
    if bound:
        server.start()
    return server, bound
