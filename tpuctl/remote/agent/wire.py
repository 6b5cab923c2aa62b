"""Frames: how both ends of a connection to a worker talk, after the worker's own noise.

A frame is one byte of kind, four of length, and the payload. A note is a JSON object.
"""

from __future__ import annotations

import json
import os
import struct
import zlib

TYPE_CHECKING = False  # typing itself would be a quarter of the program's start
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, BinaryIO

MARK = b"\x00tpuctl-agent-1\n"
"""What the worker says first: anything before it came from the shell's start-up files."""

HEADER = struct.Struct(">cI")
STDOUT, STDERR, NOTE, RAW, ZIPPED = b"o", b"e", b"n", b"r", b"z"
HEARTBEAT = b"."
BLOCK_BYTES = 1 << 17
MAX_FRAME_BYTES = 1 << 28


class WireError(Exception):
    """The other end said something that is no frame."""


class Refusal(Exception):
    """The worker cannot do what it was asked; `code` says which kind of reason that is."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def frame(kind: bytes, payload: bytes) -> bytes:
    """Wrap a payload."""
    return HEADER.pack(kind, len(payload)) + payload


def note(**content: Any) -> bytes:
    """Wrap a JSON object, small if it is large."""
    text = json.dumps(content).encode("ascii")
    if len(text) < 4096:
        return frame(NOTE, text)
    return frame(NOTE, b"z" + zlib.compress(text, 1))


def read_note(payload: bytes) -> dict[str, Any]:
    """Unwrap a JSON object."""
    try:
        text = zlib.decompress(payload[1:]) if payload[:1] == b"z" else payload
        content = json.loads(text)
    except (ValueError, zlib.error) as error:
        raise WireError("a note is not readable") from error
    if not isinstance(content, dict):
        raise WireError("a note is no object")
    return content


def block(data: bytes) -> bytes:
    """Wrap bytes of a stream, compressed where that pays."""
    # A sample tells: checkpoints and photographs do not shrink, and trying costs a core.
    if len(data) > 512 and len(zlib.compress(data[:4096], 1)) < 0.8 * min(len(data), 4096):
        return frame(ZIPPED, zlib.compress(data, 1))
    return frame(RAW, data)


def read_block(kind: bytes, payload: bytes) -> bytes:
    """Unwrap bytes of a stream."""
    if kind == RAW:
        return payload
    unpack = zlib.decompressobj()
    try:
        data = unpack.decompress(payload, 64 * BLOCK_BYTES)
    except zlib.error as error:
        raise WireError("a block does not unpack") from error
    if unpack.unconsumed_tail or not unpack.eof:
        raise WireError("a block is larger than any of ours")
    return data


def split_frames(buffer: bytearray) -> Iterator[tuple[bytes, bytes]]:
    """Take every whole frame off the front of a buffer."""
    start = 0
    try:
        while len(buffer) - start >= HEADER.size:
            kind, length = HEADER.unpack_from(buffer, start)
            if length > MAX_FRAME_BYTES:
                raise WireError("a frame is longer than any of ours")
            end = start + HEADER.size + length
            if len(buffer) < end:
                break
            payload = bytes(memoryview(buffer)[start + HEADER.size : end])
            start = end
            yield kind, payload
    finally:
        del buffer[:start]


def read_frame(stream: BinaryIO) -> tuple[bytes, bytes]:
    """Read one frame; raises EOFError when the other end is gone."""
    kind, length = HEADER.unpack(_read_exactly(stream, HEADER.size))
    if length > MAX_FRAME_BYTES:
        raise WireError("a frame is longer than any of ours")
    return kind, _read_exactly(stream, length)


def _read_exactly(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return data


def send(data: bytes, descriptor: int = 1) -> None:
    """Write it all; raises BrokenPipeError when nobody listens any more."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
