"""The HTTP face: the API as REST, the metadata server of every worker, and Cloud Storage."""

import json
import re
import threading
from collections.abc import Mapping
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote

from google.protobuf import json_format

from tpuctl.emulator._grpc import wires
from tpuctl.emulator.metadata import FrontDesk, find, listing
from tpuctl.emulator.methods import Document, match_route
from tpuctl.emulator.refusals import CODES, Refusal, bad_request, not_found, refusal
from tpuctl.emulator.storage.face import StorageFace
from tpuctl.emulator.storage.requests import Body, Cut, Disturbance, Reply, StorageRefusal

_LARGEST_BODY = 16 << 20
_HOSTS = ("127.0.0.1", "localhost", "metadata.google.internal")
_METADATA = re.compile(
    r"(?:/vm/(?P<project>[^/]+)/(?P<zone>[^/]+)/(?P<node>[^/]+)/(?P<worker>\d+))?"
    r"/computeMetadata/v1(?P<path>/.*)?"
)
_WITHOUT_BODY = (204, 304)
_GUEST = "/instance/guest-attributes/"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    # Unlike a listening socket of its own, a second emulator must not share the port.
    allow_reuse_port = False


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "tpuctl-emulator"
    sys_version = ""
    timeout = 60

    def __init__(self, desk: FrontDesk, storage: StorageFace, *arguments: Any) -> None:
        self._desk, self._storage = desk, storage
        super().__init__(*arguments)

    def _handle(self) -> None:
        path, _, query = self.path.partition("?")
        try:
            self._check_host()
            if self._storage.serves(path):
                self._store(path, query)
            else:
                self._dispatch(unquote(path), dict(parse_qsl(query)), self._body())
        except Refusal as error:
            # What is left of a body that was not read would be taken for the next request.
            self.close_connection = True
            self._refuse(error)

    do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _handle

    def _dispatch(self, path: str, query: dict[str, str], body: bytes) -> None:
        if path.startswith("/v2/"):
            self._api(path.removeprefix("/v2/"), query, body)
        elif match := _METADATA.fullmatch(path):
            self._metadata(match, query, body)
        elif self.command == "GET" and path == "/emulator/status":
            self._reply_json(self._desk.status())
        else:
            raise refusal("unimplemented", what=f"{self.command} {path}")

    def _api(self, path: str, query: dict[str, str], body: bytes) -> None:
        self._desk.check_token(self.headers.get("Authorization", ""))
        found = match_route(self.command, path, query, _document(body))
        if found is None:
            raise refusal("unimplemented", what=f"{self.command} /v2/{path}")
        method, message = found
        wire = wires()[method.name]
        try:
            request = json_format.ParseDict(message, wire.request())
        except json_format.ParseError as error:
            raise bad_request(f"Invalid JSON payload received. {error}") from error
        self._reply_json(self._desk.answer(wire.read(request)))

    def _metadata(self, match: re.Match[str], query: dict[str, str], body: bytes) -> None:
        if self.headers.get("Metadata-Flavor") != "Google" or "X-Forwarded-For" in self.headers:
            self._reply(403, b"Missing required header: Metadata-Flavor", "text/plain")
            return
        path = match["path"] or "/"
        if self.command == "PUT" and path.startswith(_GUEST) and match["node"]:
            self._desk.publish(
                match["project"],
                match["zone"],
                match["node"],
                int(match["worker"]),
                path.removeprefix(_GUEST),
                body.decode("utf-8", "replace"),
            )
            self._reply(200, b"", "text/plain")
        elif self.command == "GET":
            self._show(match, path, recursive=query.get("recursive") == "true")
        else:
            raise refusal("unimplemented", what=f"{self.command} {path}")

    def _show(self, match: re.Match[str], path: str, *, recursive: bool) -> None:
        machine = match["project"], match["zone"], match["node"], int(match["worker"] or 0)
        if path.startswith("/instance/service-accounts/") and path.endswith("/token"):
            self._reply_json(self._desk.token(*machine))
            return
        value = find(self._desk.metadata(*machine), path)
        if value is None:
            raise not_found(path)
        if isinstance(value, dict) and recursive:
            self._reply_json(value)
            return
        text = listing(value) if isinstance(value, dict) else str(value)
        self._reply(200, text.encode(), "application/text")

    def _store(self, path: str, query: str) -> None:
        """Pass a request on to Cloud Storage, and its reply back, or cut the connection."""
        try:
            body = Body(self.rfile, self.headers)
            prepared = self._storage.answer(self.command, path, query, self.headers, body)
            if prepared.reply is None:
                raise Cut
            body.drain()
            self._send(prepared.reply, prepared.disturbance)
        except StorageRefusal as error:
            self.close_connection = True
            self._reply_json(error.document, error.status)
        except Cut:
            self.close_connection = True

    def _send(self, reply: Reply, disturbance: Disturbance | None) -> None:
        if reply.content is None:
            text = json.dumps(reply.document).encode() if reply.document is not None else b""
            kind = "application/json; charset=UTF-8" if text else "text/html; charset=UTF-8"
            self._head(reply.status, len(text), kind, reply.headers)
            self.wfile.write(text)
            return
        content = reply.content
        self._head(reply.status, content.size_bytes, "", reply.headers)
        position = 0
        for piece in content.pieces():
            for part in disturbance.strike(piece, position) if disturbance else (piece,):
                self.wfile.write(part)
            position += len(piece)

    def _check_host(self) -> None:
        """Refuse requests that a web page made through a name that was rebound to loopback."""
        if self.headers.get("Host", "").partition(":")[0] not in _HOSTS:
            raise refusal("permission", permission="loopback", resource="this emulator")

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "0")
        if not length.isdecimal() or int(length) > _LARGEST_BODY:
            raise bad_request("The length of the request is missing or too large.")
        return self.rfile.read(int(length))

    def _refuse(self, error: Refusal) -> None:
        status = CODES[error.code][1]
        answer = {"code": status, "message": error.message, "status": error.code}
        if error.details:
            answer["details"] = error.details
        self._reply_json({"error": answer}, status)

    def _reply_json(self, document: Document, status: int = 200) -> None:
        data = json.dumps(document, indent=2).encode()
        self._reply(status, data, "application/json; charset=UTF-8")

    def _reply(self, status: int, data: bytes, kind: str) -> None:
        self._head(status, len(data), kind, {"Metadata-Flavor": "Google"})
        self.wfile.write(data)

    def _head(self, status: int, size_bytes: int, kind: str, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        if kind:
            self.send_header("Content-Type", kind)
        if status not in _WITHOUT_BODY:
            self.send_header("Content-Length", str(size_bytes))
        if self.close_connection:
            self.send_header("Connection", "close")
        for name, value in (*headers.items(), *self._desk.headers()):
            self.send_header(name, value)
        self.end_headers()

    def date_time_string(self, timestamp: float | None = None) -> str:
        """The Date header tells emulated time: by it a guard on a VM knows when it is due."""
        return super().date_time_string(
            self._desk.now().timestamp() if timestamp is None else timestamp
        )

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: what was asked is in the emulator's own list."""


def serve_rest(desk: FrontDesk, storage: StorageFace, *, port: int) -> ThreadingHTTPServer:
    """Start to listen on loopback; raises OSError where the port is taken."""
    server = _Server(("127.0.0.1", port), partial(_Handler, desk, storage))
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    return server


def _document(body: bytes) -> Document:
    try:
        document = json.loads(body or b"{}")
    except (ValueError, RecursionError) as error:
        raise bad_request(f"Invalid JSON payload received. {error}") from error
    if not isinstance(document, dict):
        raise bad_request("Invalid JSON payload received. It must be an object.")
    return document
