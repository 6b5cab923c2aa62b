"""The HTTP server: reads requests, passes them to their API, sends the replies."""

import io
import json
import re
import sys
import threading
from collections.abc import Sequence
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tpuctl.emulator.errors import ServiceError, api_error
from tpuctl.emulator.http import (
    Body,
    ConnectionCut,
    Content,
    HttpApi,
    Reply,
    Stream,
    error_reply,
)
from tpuctl.emulator.service import Emulator

_HOSTS = ("127.0.0.1", "localhost", "metadata.google.internal")
_SENT_BY_BROWSERS = ("Origin", "Sec-Fetch-Site")
_NO_BODY = (204, 304)


class HttpServer(ThreadingHTTPServer):
    """Serves each connection in a thread, many at a time."""

    daemon_threads = True
    request_queue_size = 128
    # With a shared port, a second emulator would get every other request of the first.
    allow_reuse_port = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print the traceback of an error that the client did not cause."""
        if not isinstance(sys.exc_info()[1], ConnectionError):  # Clients hang up when they like.
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "tpuctl-emulator"
    sys_version = ""
    timeout = 60
    # Head and body are two writes: with Nagle's algorithm, the second one waits 44 ms for the
    # client's delayed ACK in every reply.
    disable_nagle_algorithm = True

    def __init__(self, emulator: Emulator, apis: Sequence[HttpApi], *arguments: Any) -> None:
        self._emulator, self._apis = emulator, apis
        super().__init__(*arguments)

    def _handle(self) -> None:
        # A client that uses this server as its proxy sends whole URLs.
        path, _, query = re.sub("^http://[^/]+", "", self.path).partition("?")
        first, _, rest = path.removeprefix("/").partition("/")
        if has_secret := self._emulator.is_secret(first):
            path = f"/{rest}"
        # Google's client for Node appends its paths to STORAGE_EMULATOR_HOST itself; no bucket
        # of the XML API has so short a name.
        if path == "/b" or path.startswith("/b/"):
            path = f"/storage/v1{path}"
        known = (api for api in self._apis if path.startswith(api.prefixes))
        api = next(known, HttpApi((), ()))
        try:
            # A web page could reach this server through a name that was rebound to loopback.
            is_page = any(name in self.headers for name in _SENT_BY_BROWSERS)
            if is_page or self.headers.get("Host", "").partition(":")[0] not in _HOSTS:
                raise api_error("permission", permission="loopback", resource="this emulator")
            if has_secret:
                # For the links in replies, to which the client sends its next requests.
                self.headers.replace_header("Host", f"{self.headers['Host']}/{first}")
            elif self._emulator.secret is not None and not self._emulator.scopes(
                self.headers.get("Authorization", "")
            ):
                raise api.error("unauthenticated")
            body = Body(self.rfile, self.headers, api.error)
        except ServiceError as error:
            # Its body was not read, so the start of the next request is unknown.
            self.close_connection = True
            self._send(error_reply(error))
            return
        try:
            self._send(api.answer(self.command, path, query, self.headers, body))
            body.drain()
        except (ConnectionCut, ConnectionError):
            self.close_connection = True

    do_GET = do_HEAD = do_POST = do_PATCH = do_PUT = do_DELETE = _handle

    def _send(self, reply: Reply) -> None:
        content: Content | Stream | None = reply.content
        headers = reply.headers
        if content is None:
            text = b"" if reply.document is None else json.dumps(reply.document).encode()
            kind = "application/json" if text else "text/html"
            headers = {"Content-Type": f"{kind}; charset=UTF-8", **headers}
            content = Content(io.BytesIO(text), len(text))
        self.send_response(reply.status)
        is_chunked = content.size_bytes is None
        if is_chunked:
            self.send_header("Transfer-Encoding", "chunked")
        elif reply.status not in _NO_BODY:
            self.send_header("Content-Length", str(content.size_bytes))
        if self.close_connection:
            self.send_header("Connection", "close")
        for name, value in (*headers.items(), *self._emulator.headers()):
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            content.close()
            return
        position = 0
        for piece in content.pieces():
            for part in reply.fault.apply(piece, position) if reply.fault else (piece,):
                self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part) if is_chunked else part)
            position += len(piece)
        if is_chunked:
            self.wfile.write(b"0\r\n\r\n")

    def date_time_string(self, timestamp: float | None = None) -> str:
        """Date replies in emulated time, which a TTL guard on a worker relies on."""
        now = self._emulator.now().timestamp() if timestamp is None else timestamp
        return super().date_time_string(now)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: `Emulator.requests` has all requests."""


def serve_http(emulator: Emulator, apis: Sequence[HttpApi], *, port: int) -> ThreadingHTTPServer:
    """Listen on loopback; raises OSError if the port is taken."""
    server = HttpServer(("127.0.0.1", port), partial(_Handler, emulator, apis))
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    return server
