"""libtpu's metrics service: real gRPC and protobuf, made-up numbers.

Has the messages of `tpu_metric_service.proto` that gauges need
(AI-Hypercomputer/cloud-accelerator-diagnostics, 2026-08-14).
"""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

SERVICE = "tpu.monitoring.runtime.RuntimeMetricService"
_PACKAGE = "tpu.monitoring.runtime"
_F = FieldDescriptorProto
# Field: number and type, messages by name; "*" marks a repeated field, "/" one of a oneof.
_MESSAGES: dict[str, dict[str, tuple[int, int | str]]] = {
    "Gauge": {"/as_double": (1, _F.TYPE_DOUBLE), "/as_int": (2, _F.TYPE_INT64)},
    "AttrValue": {"/string_attr": (1, _F.TYPE_STRING), "/int_attr": (3, _F.TYPE_INT64)},
    "Attribute": {"key": (1, _F.TYPE_STRING), "value": (2, "AttrValue")},
    "Metric": {"attribute": (1, "Attribute"), "/gauge": (3, "Gauge")},
    "TPUMetric": {
        "name": (1, _F.TYPE_STRING),
        "description": (2, _F.TYPE_STRING),
        "*metrics": (3, "Metric"),
    },
    "MetricRequest": {
        "metric_name": (1, _F.TYPE_STRING),
        "skip_node_aggregation": (2, _F.TYPE_BOOL),
    },
    "MetricResponse": {"metric": (1, "TPUMetric")},
}

Metrics = Mapping[str, list[float | int]]
"""The values of each metric, one per device."""


def _messages() -> dict[str, Any]:
    file = FileDescriptorProto(name="tpu_metric_service.proto", package=_PACKAGE, syntax="proto3")
    file.message_type.extend(_message(name, fields) for name, fields in _MESSAGES.items())
    pool = DescriptorPool()
    pool.Add(file)
    find = pool.FindMessageTypeByName
    return {name: GetMessageClass(find(f"{_PACKAGE}.{name}")) for name in _MESSAGES}


def _message(name: str, fields: Mapping[str, tuple[int, int | str]]) -> DescriptorProto:
    message = DescriptorProto(name=name)
    for label, (number, kind) in fields.items():
        field = message.field.add(name=label.lstrip("*/"), number=number, label=_F.LABEL_OPTIONAL)
        if label.startswith("*"):
            field.label = _F.LABEL_REPEATED
        elif label.startswith("/"):
            field.oneof_index = 0
        if isinstance(kind, str):
            field.type, field.type_name = _F.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
        else:
            field.type = kind  # type: ignore[assignment]
    if any(label.startswith("/") for label in fields):
        message.oneof_decl.add(name="measure")
    return message


class _Service(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    def __init__(self, read: Callable[[], Metrics]) -> None:
        self._read, self._messages = read, _messages()

    def service(self, handler_call_details: Any) -> Any:
        if handler_call_details.method != f"/{SERVICE}/GetRuntimeMetric":
            return None
        return grpc.unary_unary_rpc_method_handler(
            self._answer,
            request_deserializer=self._messages["MetricRequest"].FromString,
            response_serializer=self._messages["MetricResponse"].SerializeToString,
        )

    def _answer(self, request: Any, context: grpc.ServicerContext) -> Any:
        values = self._read().get(request.metric_name)
        if values is None:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"unknown metric {request.metric_name}")
        response = self._messages["MetricResponse"]()
        response.metric.name = request.metric_name
        for device, value in enumerate(values or ()):
            metric = response.metric.metrics.add()
            metric.attribute.key = "device-id"
            metric.attribute.value.int_attr = device
            setattr(metric.gauge, "as_int" if isinstance(value, int) else "as_double", value)
        return response


def serve_metrics(read: Callable[[], Metrics], port: int) -> grpc.Server:
    """Serve metrics on a localhost port; raises RuntimeError if it is taken."""
    server = grpc.server(ThreadPoolExecutor(2), options=(("grpc.so_reuseport", 0),))
    server.add_generic_rpc_handlers((_Service(read),))
    server.add_secure_port(f"localhost:{port}", grpc.local_server_credentials())
    server.start()
    return server
