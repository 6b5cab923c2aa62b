"""The protocol between tpuctl and the agent on a worker, and the agent's main function.

Both sides send frames: one byte of kind, four of length, and the payload. A note is a frame with a
JSON object.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import struct
import sys
import zlib

# Importing typing would take a quarter of the agent's start-up time.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, BinaryIO

MARK = b"\x00tpuctl-agent-1\n"
"""The agent's first output: anything before it came from the shell's start-up files."""

HEADER = struct.Struct(">cI")
STDOUT, STDERR, NOTE, RAW, ZIPPED = b"o", b"e", b"n", b"r", b"z"
HEARTBEAT = b"."
BLOCK_BYTES = 1 << 17
# Every reply but one is far smaller: a list of files. This allows a few million of them.
SMALL_FRAME_BYTES, MAX_FRAME_BYTES = 1 << 22, 1 << 28
# Two bytes of JSON can become an object of 64, so values are counted before they are made.
_MAX_VALUES = 1 << 24
_LONGEST_NUMBER = 20

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


class WireError(Exception):
    """The other end sent something malformed."""


class Refusal(Exception):
    """The worker cannot do what was requested; `code` is the kind of reason."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def frame(kind: bytes, payload: bytes) -> bytes:
    """Make a frame."""
    return HEADER.pack(kind, len(payload)) + payload


def note(**content: Any) -> bytes:
    """Make a frame of a JSON object, compressed if it is large."""
    text = json.dumps(content).encode("ascii")
    if len(text) < 4096:
        return frame(NOTE, text)
    return frame(NOTE, b"z" + zlib.compress(text, 1))


def read_note(payload: bytes, most_bytes: int = MAX_FRAME_BYTES) -> dict[str, Any]:
    """Read a note's JSON object; numbers that are not finite become None."""
    text = _decompress(payload[1:], most_bytes) if payload[:1] == b"z" else payload
    if sum(map(text.count, (b",", b"[", b"{"))) > _MAX_VALUES:
        raise WireError("a note has too many values")
    try:
        content = json.loads(text, parse_int=_int, parse_float=_float, parse_constant=_float)
        if b"\\u" in text:
            # Bytes of a file name that are not UTF-8 are halves of surrogates; others are not text.
            json.dumps(content, ensure_ascii=False).encode("utf-8", "surrogateescape")
    except (ValueError, RecursionError) as error:
        raise WireError("a note is not valid JSON") from error
    if not isinstance(content, dict):
        raise WireError("a note is not a JSON object")
    return content


def _int(text: str) -> int:
    if len(text) > _LONGEST_NUMBER or abs(int(text)) >> 63:
        raise WireError("a number is too large")
    return int(text)


def _float(text: str) -> float | None:
    number = float(text)
    return number if abs(number) < float("inf") else None


def block(data: bytes) -> bytes:
    """Make a frame of bytes of a stream, compressed if that makes it smaller."""
    # Only a sample is tried: checkpoints and photos do not shrink, and compressing costs a core.
    if len(data) > 512 and len(zlib.compress(data[:4096], 1)) < 0.8 * min(len(data), 4096):
        return frame(ZIPPED, zlib.compress(data, 1))
    return frame(RAW, data)


def read_block(kind: bytes, payload: bytes) -> bytes:
    """Read the bytes of a stream's frame."""
    if kind == RAW:
        return payload
    return _decompress(payload, 64 * BLOCK_BYTES)


def _decompress(payload: bytes, most_bytes: int) -> bytes:
    # A few bytes can decompress to gigabytes, so the size of the result is limited.
    unpack = zlib.decompressobj()
    try:
        data = unpack.decompress(payload, most_bytes)
    except zlib.error as error:
        raise WireError("compressed data is damaged") from error
    if unpack.unconsumed_tail or not unpack.eof:
        raise WireError("compressed data is too large")
    return data


def split_frames(
    buffer: bytearray, most_bytes: int = MAX_FRAME_BYTES
) -> Iterator[tuple[bytes, bytes]]:
    """Remove every complete frame from the front of a buffer."""
    start = 0
    try:
        while len(buffer) - start >= HEADER.size:
            kind, length = HEADER.unpack_from(buffer, start)
            if length > most_bytes:
                raise WireError("a frame is too large")
            end = start + HEADER.size + length
            if len(buffer) < end:
                break
            payload = bytes(memoryview(buffer)[start + HEADER.size : end])
            start = end
            yield kind, payload
    finally:
        del buffer[:start]


def read_frame(stream: BinaryIO) -> tuple[bytes, bytes]:
    """Read one frame; raises EOFError when the other end has closed."""
    kind, length = HEADER.unpack(_read_exactly(stream, HEADER.size))
    if length > MAX_FRAME_BYTES:
        raise WireError("a frame is too large")
    return kind, _read_exactly(stream, length)


def _read_exactly(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return data


def send(data: bytes, descriptor: int = 1) -> None:
    """Write all of it; raises BrokenPipeError when the other end has closed."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def main(module: str, stdin: BinaryIO) -> None:
    """Read a request and answer it with a function of that module; never returns.

    Errors are sent as a note `refused`.
    """
    for number in (signal.SIGPIPE, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    code = 0
    try:
        send(MARK)
        request = read_note(read_frame(stdin)[1])
        getattr(sys.modules[module], request["do"])(request, stdin)
    except (BrokenPipeError, EOFError):
        code = 1
    except Refusal as refusal:
        send(note(refused={"code": refusal.code, "message": str(refusal)}))
    except WireError as error:
        send(note(refused={"code": "worker_failed", "message": str(error)}))
    except OSError as error:
        where = f" ({os.fsdecode(error.filename)})" if error.filename else ""
        kind = "disk_full" if error.errno in _DISK_FULL else "worker_failed"
        send(note(refused={"code": kind, "message": f"{error.strerror}{where}"}))
    sys.stderr.flush()
    os._exit(code)
