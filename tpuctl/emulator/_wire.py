"""Between the messages of Google's clients and the documents of the state machine."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from google.api import annotations_pb2  # noqa: F401 - registers what the messages refer to
from google.cloud import cloudquotas_v1, tpu_v2
from google.cloud.location import locations_pb2
from google.longrunning import operations_pb2
from google.protobuf import json_format
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2  # noqa: F401 - so that Any knows the details

from tpuctl.emulator._messages import to_message
from tpuctl.emulator.methods import LOCATIONS, METHODS, OPERATIONS, QUOTAS, Call, Document, Method
from tpuctl.emulator.refusals import Refusal, bad_request

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
