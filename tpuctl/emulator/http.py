"""Shared parts of the HTTP APIs: routes, parameters, requests, replies and byte-level faults."""

import io
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from email.message import Message
from functools import cache
from io import BufferedIOBase
from typing import Any, BinaryIO, Protocol
from urllib.parse import parse_qsl, unquote

from tpuctl.emulator.errors import ServiceError, api_error
from tpuctl.emulator.methods import Document

_STANDARD = (
    "access_token", "alt", "bearer_token", "callback", "fields", "key", "oauth_token", "pp",
    "prettyPrint", "quotaUser", "trace", "uploadType", "upload_protocol", "userIp", "userProject",
)  # fmt: skip
_FORM = "application/x-www-form-urlencoded"
_LARGEST_QUERY_BYTES = 1 << 20

Mask = dict[str, "Mask"]
"""Selected fields, each with the mask of its subfields; an empty mask selects everything."""


class _Lookup(Protocol):
    def get(self, key: str, /) -> Any: ...


class _Body(Protocol):
    def read(self, most: int) -> bytes: ...


def is_standard(name: str) -> bool:
    """Whether every method has a parameter, also in a form such as `$alt`."""
    return name in _STANDARD or name.startswith("$")


def actual_request(
    verb: str, query: str, headers: _Lookup, body: _Body
) -> tuple[str, dict[str, str]]:
    """Return verb and parameters; a client sends a query that is too long for a URL as a form."""
    if verb == "POST" and (wanted := headers.get("X-HTTP-Method-Override")):
        verb = wanted.upper()
        if str(headers.get("Content-Type")).startswith(_FORM):
            query = body.read(_LARGEST_QUERY_BYTES).decode("ascii", "replace")
    return verb, dict(parse_qsl(query, keep_blank_values=True, errors="surrogateescape"))


def read_mask(query: _Lookup, headers: _Lookup) -> Mask:
    """Read the requested fields of a reply, such as `a,b/c,d(e,f)`; raises ValueError."""
    text = query.get("fields") or query.get("$fields") or headers.get("X-Goog-FieldMask") or ""
    tokens = re.findall(r"[^(),/.]+|[(),/.]", "".join(text.split()))
    if not tokens:
        return {}
    mask = _read_fields(tokens)
    if tokens:
        raise ValueError(text)
    return mask


def _read_fields(tokens: list[str]) -> Mask:
    """Read fields up to the end or a closing parenthesis."""
    mask: Mask = {}
    while True:
        below = mask
        while True:
            if not tokens or tokens[0] in "(),/.":
                raise ValueError("".join(tokens))
            below = below.setdefault(tokens.pop(0), {})
            if not tokens or tokens[0] not in "/.":
                break
            tokens.pop(0)
        if tokens and tokens[0] == "(":
            tokens.pop(0)
            below.update(_read_fields(tokens))
            if not tokens or tokens.pop(0) != ")":
                raise ValueError("(")
        if not tokens or tokens[0] != ",":
            return mask
        tokens.pop(0)


def select_fields(value: Any, mask: Mask) -> Any:
    """Return the selected part of a reply, or of each item of a list."""
    if isinstance(value, list):
        return [select_fields(item, mask) for item in value]
    if not mask or not isinstance(value, dict):
        return value
    found: Document = {}
    for key, item in value.items():
        below = mask.get(key, mask.get("*"))
        if below is not None:
            found[key] = select_fields(item, below)
    return found


PIECE_BYTES = 256 << 10
_LONGEST_LINE = 1024

Headers = Message
"""Headers by case-insensitive name."""


class ConnectionCut(Exception):
    """Raised to close the connection without another byte."""


@dataclass(frozen=True)
class ByteFault:
    """What happens to a stream of bytes after the first `after_bytes`: cut, stall or corrupt."""

    kind: str
    after_bytes: int
    for_s: float

    def apply(self, piece: bytes, position: int) -> Iterator[bytes]:
        """Pass on a piece that starts at `position`, damaged or late; may raise ConnectionCut."""
        here = self.after_bytes - position
        if not 0 <= here < len(piece):
            yield piece
        elif self.kind == "corrupt":
            yield piece[:here] + bytes([piece[here] ^ 0xFF]) + piece[here + 1 :]
        else:
            if here:  # A chunk of nothing would be the end of a stream.
                yield piece[:here]
            if self.kind == "cut":
                raise ConnectionCut
            time.sleep(self.for_s)
            yield piece[here:]


class Body:
    """The body of a request, read from the connection on demand.

    `fault` applies to the bytes as they arrive. `error` creates errors in the API's format.
    """

    def __init__(
        self, file: BufferedIOBase, headers: Headers, error: Callable[..., ServiceError]
    ) -> None:
        self._file, self._error = file, error
        self.fault: ByteFault | None = None
        self._chunked = headers.get("Transfer-Encoding", "").lower() == "chunked"
        length = headers.get("Content-Length", "0")
        if not (length.isascii() and length.isdigit()):
            raise error("body")
        self._left = 0 if self._chunked else int(length)
        self._ended = False
        self._peeked: bytes | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the whole body has been read."""
        return not self._peeked and not self._left and (not self._chunked or self._ended)

    def pieces(self) -> Iterator[bytes]:
        """Read the rest; raises ConnectionCut if the connection ends too early."""
        position = 0
        for piece in self._arriving():
            if self.fault:
                yield from (part for part in self.fault.apply(piece, position) if part)
            else:
                yield piece
            position += len(piece)

    def peek(self) -> bytes:
        """Return the first piece without consuming it."""
        if self._peeked is None:
            self._peeked = next(self._arriving(), b"")
        return self._peeked

    def read(self, most: int) -> bytes:
        """Read all of it into memory; raises the API's error for more than `most` bytes."""
        found = bytearray()
        for piece in self.pieces():
            found += piece
            if len(found) > most:
                raise self._error("too_large", most=most)
        return bytes(found)

    def drain(self) -> None:
        """Discard the rest, because the next request on this connection begins after it."""
        for _ in self._arriving():
            pass

    def _arriving(self) -> Iterator[bytes]:
        if self._peeked is not None:
            peeked, self._peeked = self._peeked, None
            yield peeked
        while self._left or (self._chunked and not self._ended):
            if not self._left and not self._next_chunk():
                return
            piece = self._file.read(min(self._left, PIECE_BYTES))
            # The client has closed the connection before the end of its body.
            if not piece:
                raise ConnectionCut
            self._left -= len(piece)
            # A line break ends each chunk; it is read first, because `peek` takes only one piece.
            if self._chunked and not self._left:
                self._file.readline(_LONGEST_LINE)
            yield piece

    def _next_chunk(self) -> bool:
        size = self._file.readline(_LONGEST_LINE).partition(b";")[0].strip()
        try:
            self._left = int(size, 16)
        except ValueError:
            raise ConnectionCut from None
        if not self._left:
            self._ended = True
            # After the last chunk come trailers, up to an empty line.
            while self._file.readline(_LONGEST_LINE).strip():
                pass
        return bool(self._left)


@dataclass(frozen=True)
class Request:
    """One request; `names` are the variables of its route, unquoted.

    `query` has the last value of each parameter, `query_text` all of them.
    """

    names: Mapping[str, str]
    query: Mapping[str, str]
    headers: Headers
    body: Body
    query_text: str = ""

    @property
    def base_url(self) -> str:
        """The server's address as this client sees it, including the secret if it used one."""
        return f"http://{self.headers['Host']}"


@dataclass(frozen=True)
class Content:
    """A part of an open file, or of bytes in memory."""

    file: BinaryIO
    size_bytes: int

    def close(self) -> None:
        """Close the file of content that is not sent."""
        self.file.close()

    def pieces(self) -> Iterator[bytes]:
        """Read it to its end, then close it."""
        left = self.size_bytes
        with self.file:
            while left and (piece := self.file.read(min(left, PIECE_BYTES))):
                left -= len(piece)
                yield piece


class Stream:
    """Bytes that are produced while the reply is sent, so their number is unknown."""

    size_bytes = None

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self.pieces = lambda: pieces

    def close(self) -> None:
        """Do nothing: bytes that were not requested have not been produced."""


@dataclass(frozen=True)
class Reply:
    """One reply: a JSON document, or bytes, to which a `fault` may apply."""

    status: int = 200
    document: Document | list[Document] | None = None
    content: Content | Stream | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    fault: ByteFault | None = None


def text_reply(
    text: str, content_type: str, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Reply:
    """Make a reply of plain text."""
    data = text.encode()
    headers = {"Content-Type": content_type, **(headers or {})}
    return Reply(status, content=Content(io.BytesIO(data), len(data)), headers=headers)


@dataclass(frozen=True)
class Route:
    """A verb and a path, and the function that answers them.

    `rule` has the notation of Google's reference: `{name}` is one segment,
    `{name=projects/*/nodes/*}` several, `{name=**}` any number.
    """

    rule: str
    answer: Callable[[Request], Reply]

    def match(self, verb: str, path: str) -> dict[str, str] | None:
        """Return the unquoted variables of a path, or None if it does not match.

        The path is matched before unquoting, so that a quoted slash is part of a name.
        """
        wanted, _, template = self.rule.partition(" ")
        found = path_pattern(template).fullmatch(path) if verb == wanted else None
        if found is None:
            return None
        names = found.groupdict(default="")
        return {name: unquote(text, errors="surrogateescape") for name, text in names.items()}


@cache
def path_pattern(template: str) -> re.Pattern[str]:
    """Compile a path template to a regular expression with a named group for each variable."""
    pattern = ""
    for part in re.split(r"(\{[^}]*\})", template):
        if part.startswith("{"):
            name, _, form = part[1:-1].partition("=")
            inner = re.escape(form or "*").replace(r"\*\*", ".*").replace(r"\*", "[^/]+")
            pattern += f"(?P<{name.replace('.', '_')}>{inner})"
        else:
            pattern += re.escape(part)
    return re.compile(pattern)


@dataclass(frozen=True)
class HttpApi:
    """One HTTP API: its path prefixes, its routes, and the function that creates its errors."""

    prefixes: tuple[str, ...]
    routes: Sequence[Route]
    error: Callable[..., ServiceError] = api_error

    def answer(self, verb: str, path: str, query: str, headers: Headers, body: Body) -> Reply:
        """Answer one request, if necessary with an error of this API."""
        try:
            verb, parameters = actual_request(verb, query, headers, body)
            try:
                mask = read_mask(parameters, headers)
            except ValueError as error:
                raise self.error("field_selection", fields=str(error)) from None
            for route in self.routes:
                if (names := route.match(verb, path)) is not None:
                    reply = route.answer(Request(names, parameters, headers, body, query))
                    if mask and reply.document:
                        reply = replace(reply, document=select_fields(reply.document, mask))
                    return reply
            raise self.error("unimplemented", what=f"{verb} {path}")
        except ServiceError as error:
            return error_reply(error)


def error_reply(error: ServiceError) -> Reply:
    """Make the reply for an error; "not modified" has no body."""
    document = None if error.http_status == 304 else error.http_document
    return Reply(error.http_status, document, headers=error.http_headers)
