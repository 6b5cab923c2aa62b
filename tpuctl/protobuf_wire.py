"""Read the wire format of protocol buffers without their library; the bytes are not trusted.

https://protobuf.dev/programming-guides/encoding. It is sent to workers (`remote.payload`), so it
needs nothing but Python 3.8.
"""

from __future__ import annotations

import functools
import struct
from array import array

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
LONGEST_VARINT = 10
# A varint of up to eight bytes as a regular expression, each but the last followed by another.
SHORT_VARINT = rb"[\x80-\xff]{0,7}[\x00-\x7f]"
LANE_BYTES = 8
# The bits of a varint that fills a lane.
LANE_BITS = 56


class Damaged(Exception):
    """The bytes at `position` are not a valid message, or the message is cut off."""

    def __init__(self, position: int, what: str) -> None:
        super().__init__(f"{what} at byte {position:,}")
        self.position = position


if TYPE_CHECKING:
    # Field number, wire type, then the value or the start of its bytes, and the end of the field.
    Field = tuple[int, int, int, int]


def fields(data: bytes, start: int, stop: int) -> Iterator[Field]:
    """Walk the fields of a message.

    A field that ends after `stop` is yielded up to there; then, as for any other invalid bytes,
    Damaged is raised.
    """
    position = start
    while position < stop:
        number, wire, value, position = field_at(data, position, stop)
        if position <= stop or wire == LENGTH:
            yield number, wire, value, min(position, stop)
    if position > stop:
        raise Damaged(stop, f"{position - stop:,} bytes are missing")


def field_at(data: bytes, position: int, stop: int) -> Field:
    """Read one field, whose end may be after `stop`; raises Damaged."""
    tag, at = varint(data, position, stop)
    number, wire = tag >> 3, tag & 7
    if not number:
        raise Damaged(position, "field number 0 is not valid")
    if wire == VARINT:
        return number, wire, *varint(data, at, stop)
    if wire == LENGTH:
        size, at = varint(data, at, stop)
        return number, wire, at, at + size
    if wire in (FIXED32, FIXED64):
        return number, wire, at, at + (4 if wire == FIXED32 else 8)
    raise Damaged(position, f"wire type {wire} is not valid")


def varint(data: bytes, position: int, stop: int) -> tuple[int, int]:
    """Read an unsigned number and return it with the position after it; raises Damaged."""
    if position < stop and (byte := data[position]) < 0x80:
        return byte, position + 1
    value = shift = 0
    for at in range(position, min(stop, position + LONGEST_VARINT)):
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at + 1
        shift += 7
    raise Damaged(position, "a number has no end")


def varint_bytes(value: int) -> bytes:
    """Encode an unsigned number."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*encoded, value))


def signed(value: int) -> int:
    """Convert an unsigned 64-bit number to the int64 that was encoded."""
    return value - (1 << 64) if value >> 63 else value


def double(data: bytes, start: int) -> float:
    """Read eight bytes as a floating-point number."""
    number: float = struct.unpack_from("<d", data, start)[0]
    return number


def text(data: bytes, start: int, stop: int) -> str:
    """Read bytes as text; invalid UTF-8 is replaced."""
    return bytes(data[start:stop]).decode("utf-8", "replace")


def decode_lanes(lanes: bytes) -> array[int]:
    """Decode many varints at once, each in a lane of eight bytes padded with zeros.

    Together they are one huge integer, and three masked shifts join the 7-bit groups of all lanes:
    8 x 7 bits, 4 x 14, 2 x 28, 1 x 56. Ten times as fast as one by one.
    """
    payload, *lows = _masks(len(lanes))
    wide = int.from_bytes(lanes, "little") & payload
    for step, low in enumerate(lows):
        kept = wide & low
        wide = kept | ((wide ^ kept) >> (1 << step))
    return array("Q", wide.to_bytes(len(lanes), "little"))


@functools.lru_cache(maxsize=8)
def _masks(size_bytes: int) -> tuple[int, ...]:
    """The bits of every lane that are kept at first, and by each shift."""
    patterns = (
        0x7F7F_7F7F_7F7F_7F7F,
        0x007F_007F_007F_007F,
        0x0000_3FFF_0000_3FFF,
        0x0000_0000_0FFF_FFFF,
    )
    lanes = size_bytes // LANE_BYTES
    return tuple(
        int.from_bytes(each.to_bytes(LANE_BYTES, "little") * lanes, "little") for each in patterns
    )


def add_lanes(a: array[int], b: array[int]) -> array[int]:
    """Add two columns of numbers, as two huge integers; no sum may reach the 63rd bit."""
    total = int.from_bytes(a.tobytes(), "little") + int.from_bytes(b.tobytes(), "little")
    return array("q", total.to_bytes(len(a) * LANE_BYTES, "little"))
