"""Records: `tf.train.Example` without TensorFlow, and what a reader sees of a record.

Messages: tensorflow/core/example/*.proto. An image comes last in its record, so that it need be
neither copied to be written nor read to know its label.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from tpuctl.errors import InvalidInputError
from tpuctl.protobuf_wire import (
    LENGTH,
    VARINT,
    Damaged,
    field_at,
    fields,
    signed,
    varint,
    varint_bytes,
)

Feature = int | bytes

# The features of a record that are numbers.
NUMBERS = ("label", "height", "width", "orig_height", "orig_width", "flags")

_FIRST, _SECOND = bytes((1 << 3 | LENGTH,)), bytes((2 << 3 | LENGTH,))
_64_BITS = (1 << 64) - 1


class DamagedRecordError(Exception):
    """A damaged record; never raised outside the package."""

    def __init__(self, offset: int, what: str, unit: str = "byte") -> None:
        super().__init__(f"{what} at {unit} {offset}")


@dataclass(frozen=True)
class Digest:
    """The size and the checksums of a file."""

    bytes: int
    crc32c: str
    sha256: str


@dataclass(frozen=True)
class Preview:
    """The beginning of a record: its features without the image; `whole` reads all of it."""

    length: int
    head: bytes
    whole: Callable[[], bytes]


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
    size = sum(map(len, entries)) + len(last)
    return b"".join((_FIRST, _varint(size), *entries)), last


def decode_example(data: bytes) -> dict[str, Feature]:
    """Read the first value of every int64 and bytes feature; raises InvalidInputError."""
    try:
        return dict(_decode(data))
    except (Damaged, ValueError) as error:
        raise InvalidInputError(
            f"Could not read a record as a tf.train.Example: {error}"
        ) from error


def decode_leading_features(data: bytes) -> dict[str, Feature]:
    """Read the features that are complete at the beginning of a record cut short."""
    found: dict[str, Feature] = {}
    with contextlib.suppress(Damaged, ValueError):
        for name, value in _decode(data):
            found[name] = value
    return found


@lru_cache(maxsize=1 << 16)
def _varint(value: int) -> bytes:
    return varint_bytes(value & _64_BITS)


def _field(number: int, payload: bytes) -> bytes:
    return bytes((number << 3 | LENGTH,)) + _varint(len(payload)) + payload


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


def _decode(data: bytes) -> Iterator[tuple[str, Feature]]:
    for number, wire, start, stop in fields(data, 0, len(data)):
        if number == 1 and wire == LENGTH:
            for _, kind, begin, end in fields(data, start, stop):
                if kind == LENGTH:
                    yield from _decode_entry(data, begin, end)


def _decode_entry(data: bytes, start: int, stop: int) -> Iterator[tuple[str, Feature]]:
    parts = {n: (at, end) for n, wire, at, end in fields(data, start, stop) if wire == LENGTH}
    if 2 in parts and (value := _decode_feature(data, *parts[2])) is not None:
        begin, end = parts.get(1, (0, 0))
        yield str(data[begin:end], "utf-8"), value


def _decode_feature(data: bytes, start: int, stop: int) -> Feature | None:
    """Read the first value of a bytes_list (field 1) or an int64_list (field 3)."""
    for kind, wire, at, end in fields(data, start, stop):
        if wire != LENGTH or kind not in (1, 3):
            continue
        if at < end:
            _, how, value, last = field_at(data, at, end)
            if last > end:
                raise Damaged(end, "a value is cut short")
            if kind == 1 and how == LENGTH:
                return data[value:last]
            if kind == 3 and how in (VARINT, LENGTH):
                return signed(value if how == VARINT else varint(data, value, last)[0])
    return None
