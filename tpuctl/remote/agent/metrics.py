"""A client of libtpu's metric service: its gRPC calls, over a plain socket.

A worker's Python may lack grpcio, and libtpu's own client (libtpu.sdk.tpumonitoring) costs 135 MB
per process, ignores TPU_RUNTIME_METRICS_PORTS and reports a hanging service like an idle one. One
unary call is a handful of HTTP/2 frames (RFC 9113).
"""

from __future__ import annotations

import math
import socket
import struct
import time

from tpuctl.protobuf_wire import FIXED64, LENGTH, VARINT, Damaged, double, fields

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

DUTY_CYCLE = "tpu.runtime.tensorcore.dutycycle.percent"
HBM_USED = "tpu.runtime.hbm.memory.usage.bytes"
HBM_TOTAL = "tpu.runtime.hbm.memory.total.bytes"

_PATH = b"/tpu.monitoring.runtime.RuntimeMetricService/GetRuntimeMetric"
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _CONTINUATION = 0, 1, 3, 4, 6, 7, 9
_END_STREAM, _ACK, _END_HEADERS, _PADDED = 1, 1, 4, 8
# SETTINGS_HEADER_TABLE_SIZE = 0 and SETTINGS_ENABLE_PUSH = 0: without the dynamic table of header
# compression, the status in the trailers is plain text.
_SETTINGS_PAYLOAD = struct.pack(">HIHI", 1, 0, 2, 0)
_MAX_FRAME_BYTES = 1 << 14
_MAX_ANSWER_BYTES = 1 << 16
_UNIMPLEMENTED = 12


class MetricsError(Exception):
    """The service does not answer, or is not libtpu's."""


def read_metrics(port: int, names: Sequence[str], timeout_s: float) -> list[dict[int, float]]:
    """Read metrics from a process on this machine; returns the values of each by device.

    A metric that it does not have is empty. Raises MetricsError, also after `timeout_s`.
    """
    try:
        with socket.create_connection(("localhost", port), timeout=timeout_s) as connection:
            client = _Client(connection, time.monotonic() + timeout_s, port)
            return [_values(client.call(name)) for name in names]
    except socket.timeout:  # noqa: UP041 - not TimeoutError before Python 3.10
        raise MetricsError(f"port {port} did not answer within {timeout_s:g} s") from None
    except (Damaged, ValueError, IndexError, BrokenPipeError, ConnectionResetError):
        raise MetricsError(f"port {port} does not speak libtpu's metric service") from None
    except OSError as error:
        raise MetricsError(f"port {port}: {error.strerror or error}") from None


class _Client:
    def __init__(self, connection: socket.socket, deadline_s: float, port: int) -> None:
        self._connection, self._deadline_s, self._port = connection, deadline_s, port
        self._stream = -1
        connection.sendall(_PREFACE + _frame(_SETTINGS, 0, 0, _SETTINGS_PAYLOAD))

    def call(self, name: str) -> bytes:
        """Make one call; returns the message, or b"" if there is no such metric."""
        self._stream += 2
        request = b"\x0a" + bytes([len(name)]) + name.encode()
        message = b"\0" + struct.pack(">I", len(request)) + request
        self._connection.sendall(
            _frame(_HEADERS, _END_HEADERS, self._stream, _headers(self._port))
            + _frame(_DATA, _END_STREAM, self._stream, message)
        )
        body, trailers = self._read_stream()
        number, reason = _header(trailers, b"grpc-status"), _header(trailers, b"grpc-message")
        status = int(number) if number.isdigit() else 0
        if status == _UNIMPLEMENTED or (status and name in reason):
            return b""
        if status:
            raise MetricsError(f"libtpu returned gRPC status {status} {reason[:120]}".rstrip())
        if len(body) < 5 or body[0] or len(body) != 5 + struct.unpack_from(">I", body, 1)[0]:
            raise ValueError("not a gRPC message")
        return body[5:]

    def _read_stream(self) -> tuple[bytes, bytes]:
        """Read until the stream ends; returns its data and its header blocks."""
        body, blocks = b"", b""
        while True:
            kind, flags, stream, payload = self._read_frame()
            if kind == _SETTINGS and not flags & _ACK:
                self._connection.sendall(_frame(_SETTINGS, _ACK, 0, b""))
            elif kind == _PING and not flags & _ACK:
                self._connection.sendall(_frame(_PING, _ACK, 0, payload))
            elif kind == _GOAWAY or (kind == _RESET and stream == self._stream):
                raise ValueError("the call was reset")
            elif stream == self._stream and kind in (_DATA, _HEADERS, _CONTINUATION):
                if kind == _DATA:
                    body += payload[1 : len(payload) - payload[0]] if flags & _PADDED else payload
                else:
                    blocks += payload
                if len(body) + len(blocks) > _MAX_ANSWER_BYTES:
                    raise ValueError("the answer is too large")
                if kind != _CONTINUATION and flags & _END_STREAM:
                    return body, blocks

    def _read_frame(self) -> tuple[int, int, int, bytes]:
        head = self._read(9)
        size = int.from_bytes(head[:3], "big")
        if size > _MAX_FRAME_BYTES:
            raise ValueError("the frame is too large")
        stream = int.from_bytes(head[5:], "big") & 0x7FFFFFFF
        return head[3], head[4], stream, self._read(size)

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            left_s = self._deadline_s - time.monotonic()
            if left_s <= 0:
                raise socket.timeout  # noqa: UP041
            self._connection.settimeout(left_s)
            piece = self._connection.recv(size - len(data))
            if not piece:
                raise ValueError("the connection was closed")
            data += piece
        return data


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _headers(port: int) -> bytes:
    """Encode the request headers (HPACK, RFC 7541): two from the static table, then literals."""
    return (
        b"\x83\x86"
        + _literal(b"\x04", _PATH)
        + _literal(b"\x01", b"localhost:%d" % port)
        + _literal(b"\x0f\x10", b"application/grpc")
        + _literal(b"\x00\x02te", b"trailers")
    )


def _literal(name: bytes, value: bytes) -> bytes:
    return name + bytes([len(value)]) + value


def _header(block: bytes, name: bytes) -> str:
    """Read a header; empty where there is none, or where it is Huffman-coded."""
    start = block.find(name)
    if start < 0:
        return ""
    size = block[start + len(name)]
    # The highest bit means Huffman coding.
    if size & 0x80:
        return ""
    value = block[start + len(name) + 1 :][:size]
    return value.decode("ascii", "replace")


def _values(message: bytes) -> dict[int, float]:
    """Read a MetricResponse: the values by device, or by position where no device is given."""
    found: dict[int, float] = {}
    for metric in _messages(message, 1):
        for position, one in enumerate(_messages(metric, 3)):
            device, value = _device(one), _gauge(one)
            if value is not None and math.isfinite(value):
                found.setdefault(position if device is None else device, value)
    return found


def _device(metric: bytes) -> int | None:
    """Read which device a metric is about: a number, or a text that is one."""
    for attribute in _messages(metric, 1):
        for value in _messages(attribute, 2):
            for number, wire, start, stop in fields(value, 0, len(value)):
                if number == 3 and wire == VARINT:
                    return start
                if number == 1 and wire == LENGTH and value[start:stop].isdigit():
                    return int(value[start:stop])
    return None


def _gauge(metric: bytes) -> float | None:
    for gauge in _messages(metric, 3):
        for number, wire, start, _ in fields(gauge, 0, len(gauge)):
            if number == 1 and wire == FIXED64:
                return double(gauge, start)
            if number == 2 and wire == VARINT:
                return float(start)
    return None


def _messages(message: bytes, wanted: int) -> Iterator[bytes]:
    """Yield the messages inside a message that have this field number."""
    for number, wire, start, stop in fields(message, 0, len(message)):
        if number == wanted and wire == LENGTH:
            yield message[start:stop]
