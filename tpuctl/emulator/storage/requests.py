"""What Cloud Storage says when it refuses: dated texts, statuses and reasons."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from email.message import Message
from io import BufferedIOBase
from typing import BinaryIO

from tpuctl.emulator.methods import Document
from tpuctl.emulator.refusals import load_data


class StorageRefusal(Exception):
    """An error as the JSON API sends it."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message
        self.headers: dict[str, str] = {}

    @property
    def document(self) -> Document:
        """The body of the reply."""
        entry = {"message": self.message, "domain": "global", "reason": self.reason}
        return {"error": {"code": self.status, "message": self.message, "errors": [entry]}}


def refuse(kind: str, **facts: object) -> StorageRefusal:
    """Write an error of the table with these facts."""
    entry = load_data("storage_errors")["errors"][kind]
    return StorageRefusal(entry["status"], entry["reason"], entry["text"].format_map(facts))


PIECE_BYTES = 256 << 10
_LONGEST_LINE = 1024

Headers = Message
"""Headers by their names, in whatever case these are."""


class Cut(Exception):
    """The connection is to be closed without another word."""


@dataclass(frozen=True)
class Disturbance:
    """What goes wrong with bytes on their way: after `after_bytes` of them."""

    kind: str
    after_bytes: int
    for_s: float

    def strike(self, piece: bytes, position: int) -> Iterator[bytes]:
        """Pass on a piece that begins at `position`, or what is left of it; may raise Cut."""
        here = self.after_bytes - position
        if not 0 <= here < len(piece):
            yield piece
        elif self.kind == "corrupt":
            yield piece[:here] + bytes([piece[here] ^ 0xFF]) + piece[here + 1 :]
        else:
            yield piece[:here]
            if self.kind == "cut":
                raise Cut
            time.sleep(self.for_s)
            yield piece[here:]


class Body:
    """The body of a request, read from the connection as far as anybody wants it."""

    def __init__(self, file: BufferedIOBase, headers: Headers) -> None:
        self._file = file
        self.disturbance: Disturbance | None = None
        self._chunked = headers.get("Transfer-Encoding", "").lower() == "chunked"
        length = headers.get("Content-Length", "0")
        if not (length.isascii() and length.isdigit()):
            raise refuse("body")
        self._left = 0 if self._chunked else int(length)
        self._ended = False
        self._held: bytes | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing of it is left to read."""
        return not self._held and not self._left and not self._chunked

    def pieces(self) -> Iterator[bytes]:
        """Read what has not been read yet; raises Cut where the connection ends too early."""
        position = 0
        for piece in self._arriving():
            if self.disturbance:
                yield from (part for part in self.disturbance.strike(piece, position) if part)
            else:
                yield piece
            position += len(piece)

    def begin(self) -> bytes:
        """Look at its first piece, which stays to be read."""
        if self._held is None:
            self._held = next(self._arriving(), b"")
        return self._held

    def read(self, most: int) -> bytes:
        """Read all of it into memory; refuses more than `most` bytes."""
        found = bytearray()
        for piece in self.pieces():
            found += piece
            if len(found) > most:
                raise refuse("too_large", most=most)
        return bytes(found)

    def drain(self) -> None:
        """Read the rest and forget it, so that the next request begins where it should."""
        for _ in self._arriving():
            pass

    def _arriving(self) -> Iterator[bytes]:
        if self._held is not None:
            held, self._held = self._held, None
            yield held
        while self._left or (self._chunked and not self._ended):
            if not self._left and not self._next_chunk():
                return
            piece = self._file.read(min(self._left, PIECE_BYTES))
            if not piece:
                raise Cut
            self._left -= len(piece)
            yield piece
            if self._chunked and not self._left:
                self._file.readline(_LONGEST_LINE)

    def _next_chunk(self) -> bool:
        size = self._file.readline(_LONGEST_LINE).partition(b";")[0].strip()
        try:
            self._left = int(size, 16)
        except ValueError:
            raise Cut from None
        if not self._left:
            self._ended = True
            while self._file.readline(_LONGEST_LINE).strip():
                pass
        return bool(self._left)


@dataclass(frozen=True)
class Request:
    """One request. `names` are the parts of its path that are names, unquoted."""

    names: tuple[str, ...]
    query: Mapping[str, str]
    headers: Headers
    body: Body


@dataclass(frozen=True)
class Content:
    """A part of an open file, or of bytes in memory."""

    file: BinaryIO
    size_bytes: int

    def pieces(self) -> Iterator[bytes]:
        """Read it to its end, then close it."""
        left = self.size_bytes
        with self.file:
            while left and (piece := self.file.read(min(left, PIECE_BYTES))):
                left -= len(piece)
                yield piece


@dataclass(frozen=True)
class Reply:
    """One reply: a document as JSON, or bytes."""

    status: int = 200
    document: Document | None = None
    content: Content | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def forget(self) -> None:
        """Let go of what will not be sent."""
        if self.content:
            self.content.file.close()
