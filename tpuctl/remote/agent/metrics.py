"""libtpu's metric service, asked over its gRPC with nothing but a socket.

One unary call is a handful of HTTP/2 frames, and of the answer three numbers for each device are
wanted: that is small enough to travel, where grpcio and protobuf are not. The dynamic table of
header compression is declined, so a status in the trailers can be read as it stands.
"""

from __future__ import annotations

import math
import socket
import struct
import time

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
_NO_TABLE_NO_PUSH = struct.pack(">HIHI", 1, 0, 2, 0)
_LARGEST_FRAME = 1 << 14
_LARGEST_ANSWER = 1 << 16
_UNIMPLEMENTED = 12


class MetricsError(Exception):
    """The service does not answer, or not as libtpu's does."""


def read_metrics(port: int, names: Sequence[str], timeout_s: float) -> list[dict[int, float]]:
    """Ask a process on this machine for some metrics; of each, the values by device.

    A metric that it does not have is empty. Raises MetricsError, also after `timeout_s`.
    """
    try:
        with socket.create_connection(("localhost", port), timeout=timeout_s) as connection:
            call = _Calls(connection, time.monotonic() + timeout_s, port)
            return [_values(call.ask(name)) for name in names]
    except socket.timeout:  # noqa: UP041 - not the same before Python 3.10
        raise MetricsError(f"port {port} did not answer within {timeout_s:g} s") from None
    except (ValueError, IndexError, struct.error, BrokenPipeError, ConnectionResetError):
        raise MetricsError(f"port {port} does not speak libtpu's metric service") from None
    except OSError as error:
        raise MetricsError(f"port {port}: {error.strerror or error}") from None


class _Calls:
    def __init__(self, connection: socket.socket, deadline_s: float, port: int) -> None:
        self._connection, self._deadline_s, self._port = connection, deadline_s, port
        self._stream = -1
        connection.sendall(_PREFACE + _frame(_SETTINGS, 0, 0, _NO_TABLE_NO_PUSH))

    def ask(self, name: str) -> bytes:
        """Make one call; the message that came back, b"" where there is no such metric."""
        self._stream += 2
        question = b"\x0a" + bytes([len(name)]) + name.encode()
        message = b"\0" + struct.pack(">I", len(question)) + question
        self._connection.sendall(
            _frame(_HEADERS, _END_HEADERS, self._stream, _headers(self._port))
            + _frame(_DATA, _END_STREAM, self._stream, message)
        )
        body, trailers = self._answer()
        status, said = _status(trailers)
        if status == _UNIMPLEMENTED or (status and name in said):
            return b""
        if status:
            raise MetricsError(f"libtpu refuses (gRPC status {status}) {said[:120]}".rstrip())
        if len(body) < 5 or body[0] or len(body) != 5 + struct.unpack_from(">I", body, 1)[0]:
            raise ValueError("no message")
        return body[5:]

    def _answer(self) -> tuple[bytes, bytes]:
        """Everything until the stream ends: its data, and all blocks of headers."""
        body, blocks = b"", b""
        while True:
            kind, flags, stream, payload = self._read_frame()
            if kind == _SETTINGS and not flags & _ACK:
                self._connection.sendall(_frame(_SETTINGS, _ACK, 0, b""))
            elif kind == _PING and not flags & _ACK:
                self._connection.sendall(_frame(_PING, _ACK, 0, payload))
            elif kind == _GOAWAY or (kind == _RESET and stream == self._stream):
                raise ValueError("it hangs up")
            elif stream == self._stream and kind in (_DATA, _HEADERS, _CONTINUATION):
                if kind == _DATA:
                    body += payload[1 : len(payload) - payload[0]] if flags & _PADDED else payload
                else:
                    blocks += payload
                if len(body) + len(blocks) > _LARGEST_ANSWER:
                    raise ValueError("too much")
                if kind != _CONTINUATION and flags & _END_STREAM:
                    return body, blocks

    def _read_frame(self) -> tuple[int, int, int, bytes]:
        head = self._read(9)
        size = int.from_bytes(head[:3], "big")
        if size > _LARGEST_FRAME:
            raise ValueError("no frame is so large")
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
                raise ValueError("it hung up")
            data += piece
        return data


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _headers(port: int) -> bytes:
    """The request's headers: methods and schemes from the static table, the rest as literals."""
    return (
        b"\x83\x86"
        + _literal(b"\x04", _PATH)
        + _literal(b"\x01", b"localhost:%d" % port)
        + _literal(b"\x0f\x10", b"application/grpc")
        + _literal(b"\x00\x02te", b"trailers")
    )


def _literal(name: bytes, value: bytes) -> bytes:
    return name + bytes([len(value)]) + value


def _status(trailers: bytes) -> tuple[int, str]:
    """The gRPC status and message among the trailers; 0 where none can be read."""
    number = _header(trailers, b"grpc-status")
    return (int(number) if number.isdigit() else 0), _header(trailers, b"grpc-message")


def _header(block: bytes, name: bytes) -> str:
    start = block.find(name)
    if start < 0:
        return ""
    size = block[start + len(name)]
    if size & 0x80:
        return ""
    value = block[start + len(name) + 1 :][:size]
    return value.decode("ascii", "replace")


def _values(message: bytes) -> dict[int, float]:
    """The numbers of a MetricResponse by device, in the order of devices where none is named."""
    found: dict[int, float] = {}
    for metric in _inside(message, 1):
        for place, one in enumerate(_inside(metric, 3)):
            device = _device(one)
            value = _gauge(one)
            if value is not None and math.isfinite(value):
                found.setdefault(place if device is None else device, value)
    return found


def _device(metric: bytes) -> int | None:
    """Which device a metric is about: a number, or a text that is one."""
    for attribute in _inside(metric, 1):
        for value in _inside(attribute, 2):
            for number, content in _fields(value):
                if number == 3 and isinstance(content, int):
                    return content
                if number == 1 and isinstance(content, bytes) and content.isdigit():
                    return int(content)
    return None


def _gauge(metric: bytes) -> float | None:
    for gauge in _inside(metric, 3):
        for number, content in _fields(gauge):
            if number == 1 and isinstance(content, bytes):
                return float(struct.unpack("<d", content)[0])
            if number == 2 and isinstance(content, int):
                return float(content)
    return None


def _inside(message: bytes, wanted: int) -> Iterator[bytes]:
    for number, content in _fields(message):
        if number == wanted and isinstance(content, bytes):
            yield content


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Take a protobuf message apart; raises ValueError or IndexError for what is none."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield key >> 3, value
            continue
        if kind == 2:
            size, at = _varint(message, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError("no message")
        if at + size > len(message):
            raise ValueError("cut off")
        yield key >> 3, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 64, 7):
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("no number is so long")
