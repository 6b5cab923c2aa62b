"""`tf.train.Example` by hand: the few protobuf bytes it takes, written and read without TensorFlow.

Wire format: protobuf.dev/programming-guides/encoding; messages: tensorflow/core/example/*.proto.
"""

import contextlib
from collections.abc import Iterator, Mapping
from functools import lru_cache

from tpuctl.errors import InvalidInputError

Feature = int | bytes

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_FIRST, _SECOND = bytes((1 << 3 | _LENGTH,)), bytes((2 << 3 | _LENGTH,))


def encode_example(features: Mapping[str, Feature]) -> bytes:
    """Write features in the order given; an int becomes an int64_list, bytes a bytes_list."""
    return b"".join(encode_pieces(features))


def encode_pieces(features: Mapping[str, Feature]) -> tuple[bytes, bytes]:
    """Do the same in two pieces: a large value that comes last is not copied."""
    entries: list[bytes] = []
    last = b""
    for name, value in features.items():
        entries.append(last)
        if isinstance(value, bytes):
            entries.append(_head_of_bytes(name, len(value)))
            last = value
        else:
            entries.append(_number(name, value))
            last = b""
    return b"".join((_head(1, sum(map(len, entries)) + len(last)), *entries)), last


def decode_example(data: bytes) -> dict[str, Feature]:
    """Read the first value of every int64 and bytes feature; raises InvalidInputError."""
    try:
        return dict(_decode_entries(memoryview(data)))
    except (IndexError, ValueError) as error:
        raise InvalidInputError(
            f"Could not read a record as a tf.train.Example: {error}"
        ) from error


def decode_leading_features(data: bytes) -> dict[str, Feature]:
    """Read the features that are complete at the beginning of a record cut short."""
    found: dict[str, Feature] = {}
    view = memoryview(data)
    with contextlib.suppress(IndexError, ValueError):
        tag, position = _read_varint(view, 0)
        _, position = _read_varint(view, position)
        if tag == 1 << 3 | _LENGTH:
            found.update(_until_cut(view[position:]))
    return found


def _until_cut(features: memoryview) -> Iterator[tuple[str, Feature]]:
    with contextlib.suppress(IndexError, ValueError):
        for _, entry in _fields(features):
            yield from _decode_entry(entry)


@lru_cache(maxsize=1 << 16)
def _varint(value: int) -> bytes:
    value &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _head(number: int, size: int) -> bytes:
    return bytes((number << 3 | _LENGTH,)) + _varint(size)


def _field(number: int, payload: bytes) -> bytes:
    return _head(number, len(payload)) + payload


def _head_of_bytes(name: str, size: int) -> bytes:
    """Write all of a bytes feature that comes before its value, which is thus copied once only."""
    value = _FIRST + _varint(size)
    values = _FIRST + _varint(len(value) + size) + value
    feature = _name(name) + _SECOND + _varint(len(values) + size) + values
    return _FIRST + _varint(len(feature) + size) + feature


@lru_cache(maxsize=4096)
def _name(name: str) -> bytes:
    return _field(1, name.encode())


@lru_cache(maxsize=4096)
def _number(name: str, value: int) -> bytes:
    """Write an int64 feature; nearly every record has the same few."""
    values = _field(3, _field(1, _varint(value)))
    return _field(1, _field(1, name.encode()) + _field(2, values))


def _decode_entries(data: memoryview) -> Iterator[tuple[str, Feature]]:
    for number, features in _fields(data):
        if number == 1 and not isinstance(features, int):
            for _, entry in _fields(features):
                yield from _decode_entry(entry)


def _decode_entry(entry: "memoryview | int") -> Iterator[tuple[str, Feature]]:
    if isinstance(entry, int):
        return
    parts = dict(_fields(entry))
    name, value = parts.get(1, b""), _decode_feature(parts.get(2, b""))
    if value is not None and not isinstance(name, int):
        yield str(bytes(name), "utf-8"), value


def _decode_feature(feature: "memoryview | bytes | int") -> Feature | None:
    if isinstance(feature, int):
        raise ValueError("a feature that is a number")
    for kind, values in _fields(memoryview(feature)):
        if kind == 1 and not isinstance(values, int):
            for _, value in _fields(values):
                if not isinstance(value, int):
                    return bytes(value)
        if kind == 3 and not isinstance(values, int):
            for _, value in _fields(values):
                number = value if isinstance(value, int) else _read_varint(value, 0)[0]
                return number - (1 << 64) if number >> 63 else number
    return None


def _fields(data: memoryview) -> Iterator[tuple[int, "memoryview | int"]]:
    position = 0
    while position < len(data):
        tag, position = _read_varint(data, position)
        wire = tag & 7
        if wire == _VARINT:
            value, position = _read_varint(data, position)
            yield tag >> 3, value
            continue
        if wire == _LENGTH:
            size, position = _read_varint(data, position)
        elif wire in (_FIXED64, _FIXED32):
            size = 8 if wire == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {wire}")
        if position + size > len(data):
            raise ValueError("a field reaches beyond the end")
        yield tag >> 3, data[position : position + size]
        position += size


def _read_varint(data: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")
