"""Multipart bodies: uploads with their metadata, and batches of requests."""

import io
import json
import re
from collections.abc import Iterator, Sequence
from email.message import Message
from email.parser import BytesHeaderParser
from functools import partial
from http import HTTPStatus
from urllib.parse import urlsplit

from tpuctl.emulator.errors import api_error, storage_error
from tpuctl.emulator.http import Body, Content, Headers, HttpApi, Reply, Request, Route, error_reply

_BOUNDARY = re.compile(r"""boundary=(?:"([^"]+)"|'([^']+)'|([^\s;"']+))""", re.IGNORECASE)
_BLANK_LINE = re.compile(rb"\r?\n\r?\n|\A\r?\n")
_LARGEST_BATCH_BYTES = 10 << 20
_MOST_CALLS = 100
_ANSWER = "batch_of_answers"


def read_parts(body: bytes, content_type: str) -> list[tuple[Message, bytes]]:
    """Return headers and bytes of every part; the first boundary decides how lines end.

    Raises ValueError that says what is wrong.
    """
    found = _BOUNDARY.search(content_type)
    if not found:
        raise ValueError("the boundary is missing")
    boundary = b"--" + next(filter(None, found.groups())).encode("latin-1")
    start = body.find(boundary)
    if start < 0 or body[:start].strip():
        raise ValueError("it does not begin with its boundary")
    # Some clients end lines with \n alone; then a \r before a boundary belongs to the part.
    line_end = b"\n" if body.startswith(b"\n", start + len(boundary)) else b"\r\n"
    pieces = (line_end + body[start:]).split(line_end + boundary)[1:]
    if not pieces or not pieces[-1].startswith(b"--"):
        raise ValueError("it has no end")
    return [_read_part(piece.partition(b"\n")[2]) for piece in pieces[:-1]]


def _read_part(piece: bytes) -> tuple[Message, bytes]:
    blank = _BLANK_LINE.search(piece)
    if not blank:
        raise ValueError("the headers of a part have no end")
    return BytesHeaderParser().parsebytes(piece[: blank.end()]), piece[blank.end() :]


def batch_api(apis: Sequence[HttpApi]) -> HttpApi:
    """Serve batches of requests to these APIs."""
    return HttpApi(
        ("/batch",), [Route("POST /batch{path=**}", partial(_answer, apis))], storage_error
    )


def _answer(apis: Sequence[HttpApi], request: Request) -> Reply:
    body = request.body.read(_LARGEST_BATCH_BYTES)
    try:
        calls = read_parts(body, request.headers.get("Content-Type", ""))
    except ValueError as error:
        raise storage_error("batch", why=error) from None
    if len(calls) > _MOST_CALLS:
        raise storage_error("batch", why=f"it has more than {_MOST_CALLS} requests")
    lines = []
    for headers, call in calls:
        reply = _answer_one(apis, request.headers, call)
        lines += [f"--{_ANSWER}", "Content-Type: application/http"]
        if identity := str(headers.get("Content-ID", "")):
            lines.append(f"Content-ID: <response-{identity.removeprefix('<')}")
        lines += _http_lines(reply)
    data = "\r\n".join([*lines, f"--{_ANSWER}--", ""]).encode()
    kind = {"Content-Type": f"multipart/mixed; boundary={_ANSWER}"}
    return Reply(content=Content(io.BytesIO(data), len(data)), headers=kind)


def _answer_one(apis: Sequence[HttpApi], outer: Headers, call: bytes) -> Reply:
    """Answer one request of a batch; it inherits headers of the batch."""
    line, _, rest = call.lstrip().partition(b"\n")
    verb, address, *_ = [*line.decode("latin-1").split(), "", ""]
    try:
        headers, content = _read_part(rest if rest.strip() else b"\n")
    except ValueError as error:
        raise storage_error("batch", why=error) from None
    for name in ("Host", "Authorization"):
        del headers[name]
        if name in outer:
            headers[name] = outer[name]
    del headers["Content-Length"], headers["Transfer-Encoding"]
    headers["Content-Length"] = str(len(content))
    place = urlsplit(address)
    secret = urlsplit(f"//{outer['Host']}").path
    path = place.path.removeprefix(secret)
    for api in apis:
        if path.startswith(api.prefixes):
            body = Body(io.BytesIO(content), headers, api.error)
            return api.answer(verb, path, place.query, headers, body)
    return error_reply(api_error("unimplemented", what=f"{verb} {path} in a batch"))


def _http_lines(reply: Reply) -> Iterator[str]:
    """Write a reply as HTTP; only documents are allowed in batches."""
    if reply.content:
        reply.content.close()
        why = "requests for media are not allowed"
        reply = error_reply(storage_error("batch", why=why))
    yield from ("", f"HTTP/1.1 {reply.status} {HTTPStatus(reply.status).phrase}")
    text = "" if reply.document is None else json.dumps(reply.document)
    yield from ("Content-Type: application/json; charset=UTF-8", f"Content-Length: {len(text)}")
    yield from (f"{name}: {value}" for name, value in reply.headers.items())
    yield from ("", text)
