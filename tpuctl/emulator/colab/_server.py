"""The server of an emulated Colab: control planes, runtime proxy, and HTTPS for its tools."""

import hmac
import json
import re
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tpuctl.clock import Clock
from tpuctl.emulator.colab._machines import Machine, Machines, read_contents, write_contents
from tpuctl.emulator.colab.account import Account, Cut, Plan, Refusal, Runtime
from tpuctl.emulator.colab.control_planes import ControlPlanes
from tpuctl.emulator.colab.websocket import TEXT, WebSocket, accept_key
from tpuctl.emulator.http_server import HttpServer
from tpuctl.emulator.machines import ticking
from tpuctl.emulator.resources import timestamp
from tpuctl.emulator.service import SCALE_HEADER, TIME_HEADER
from tpuctl.storage.local import ensure_folder, write_atomically

DOMAIN = "colab.research.google.com"
_TOKEN_HEADER = "X-Colab-Runtime-Proxy-Token"  # noqa: S105 (a name) (a header's name)
_TOKEN_QUERY = "colab-runtime-proxy-token"  # noqa: S105 (a name)
_PROXY = re.compile(r"^/rt/[^/]+")
_MOST_BYTES = 200 << 20
_SSH_KINDS = ("ssh-ed25519", "ecdsa-sha2-")


class Colab:
    """A running emulated Colab; `scale` is the speed of emulated time."""

    def __init__(
        self, plan: Plan, clock: Clock, folder: Path, secret: str | None, scale: float
    ) -> None:
        self.account = Account(plan, clock, folder)
        self.planes = ControlPlanes(
            self.account, lambda runtime: f"{self.url}/rt/{runtime.endpoint}"
        )
        self.machines = Machines(folder / "colab-machines", self.account)
        self.secret, self.scale, self.url = secret, scale, ""
        self.ca_file = folder / "colab-ca.pem"
        self.tls = _make_tls(self.ca_file, folder / "colab-key.pem")

    def is_authorized(self, authorization: str) -> bool:
        """Whether a client of the control planes has sent the secret."""
        shown = authorization.partition(" ")[2]
        return self.secret is None or hmac.compare_digest(shown.encode(), self.secret.encode())


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "tpuctl-emulator", ""
    disable_nagle_algorithm = True
    # A connection without a request occupies a thread and a file descriptor.
    timeout = 60

    def __init__(self, colab: Colab, *arguments: Any) -> None:
        self._colab = colab
        super().__init__(*arguments)

    def do_CONNECT(self) -> None:
        """Act as the one server that Colab's own tools call, with a certificate for its name."""
        if self.path != f"{DOMAIN}:443":
            self.close_connection = True
            self._send(403, {"error": f"only {DOMAIN} is emulated"})
            return
        self.send_response(200)
        self.end_headers()
        self.rfile.close()
        self.connection = self._colab.tls.wrap_socket(self.connection, server_side=True)
        self.rfile = self.connection.makefile("rb")
        self.wfile = self.connection.makefile("wb", buffering=0)
        self.close_connection = False

    def finish(self) -> None:
        """Close the encrypted connection, which the server does not know about."""
        super().finish()
        if isinstance(self.connection, ssl.SSLSocket):
            self.connection.close()

    def _handle(self) -> None:
        path, _, text = self.path.partition("?")
        query = dict(parse_qsl(text, keep_blank_values=True))
        # WebSocket clients send an Origin too: the server's own.
        origin = urlsplit(self.headers.get("Origin", f"//{DOMAIN}")).netloc
        if "Sec-Fetch-Site" in self.headers or origin not in (DOMAIN, self.headers.get("Host")):
            self._send(403, {"error": "not for web pages"})
            return
        size = self.headers.get("Content-Length") or "0"
        if not (size.isascii() and size.isdigit()) or len(size) > 12 or int(size) > _MOST_BYTES:
            self.close_connection = True
            self._send(413, {"error": "the body is too large"})
            return
        body = self.rfile.read(int(size))
        try:
            if path.startswith(("/tun/m/", "/v1beta/", "/v1/")):
                self._control_plane(path, query, body)
            else:
                self._proxy(_PROXY.sub("", unquote(path)), query, body)
        except Refusal as refusal:
            self._send(refusal.status, {"error": str(refusal)})
        except Cut:
            self.close_connection = True

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = _handle

    def _control_plane(self, path: str, query: dict[str, str], body: bytes) -> None:
        if not self._colab.is_authorized(self.headers.get("Authorization", "")):
            raise Refusal(401, message="the access token is not valid")
        answer = self._colab.planes.answer(self.command, path, query, dict(self.headers), body)
        self._send(answer.status, answer.document)

    def _proxy(self, path: str, query: dict[str, str], body: bytes) -> None:
        account = self._colab.account
        shown = self.headers.get(_TOKEN_HEADER) or query.get(_TOKEN_QUERY) or query.get("token", "")
        shown = shown or self.headers.get("Authorization", "").partition(" ")[2]
        with account.lock:
            account.advance()
            kind = path.strip("/").split("/")[1] if path.count("/") > 1 else path
            fault = account.take_fault(kind)
            if fault and fault.cut:
                raise Cut
            if fault:
                raise Refusal(fault.status, fault.reason)
            runtime = account.runtime_of_token(shown)
            account.touch(runtime)
        machine = self._colab.machines.of(runtime)
        if path == "/colab/ssh":
            self._ssh(runtime, machine)
        elif path == "/colab/tty":
            web = self._upgrade()
            machine.tty(
                web,
                lambda data: str(json.loads(data).get("data", "")).encode(),
                lambda data: json.dumps({"data": data.decode(errors="replace")}).encode(),
            )
        elif path.startswith("/api/contents"):
            self._contents(machine, path.removeprefix("/api/contents"), query, body)
        elif path.startswith("/api/kernels"):
            self._kernels(machine, path.removeprefix("/api/kernels").strip("/"))
        elif path == "/api/colab/resources":
            memory = {"totalBytes": 48 << 30, "freeBytes": 40 << 30}
            self._send(200, {"memory": memory, "disks": [], "gpus": []})
        else:
            raise Refusal(404, message=f"no {path}")

    def _ssh(self, runtime: Runtime, machine: Machine) -> None:
        key = self.headers.get("X-Colab-Ssh-Pubkey", "").strip()
        if not key:
            raise Refusal(400, message="public key missing")
        if not key.startswith(_SSH_KINDS):
            raise Refusal(400, message="unsupported key type")
        if not runtime.has_ssh:
            raise Refusal(404, message="no ssh on this runtime")
        if not machine.ssh_open.acquire(blocking=False):
            raise Refusal(429, message="another ssh connection is open")
        try:
            machine.ssh(self._upgrade(), key)
        finally:
            machine.ssh_open.release()

    def _contents(self, machine: Machine, path: str, query: dict[str, str], body: bytes) -> None:
        if self.command == "GET":
            found = read_contents(machine, path, with_content=query.get("content") != "0")
            self._send(200, found)
        elif self.command == "PUT":
            self._send(201, write_contents(machine, path, json.loads(body)))
        else:
            read_contents(machine, path, with_content=False)
            (machine.home / path.strip("/")).unlink()
            self._send(204, None)

    def _kernels(self, machine: Machine, rest: str) -> None:
        name, _, what = rest.partition("/")
        model = {"id": name, "name": "python3", "execution_state": "idle", "connections": 1,
                 "last_activity": timestamp(self._colab.account.now())}  # fmt: skip
        if not name and self.command == "POST":
            self._send(201, {**model, "id": machine.new_kernel()})
        elif not name:
            self._send(200, [{**model, "id": each} for each in machine.kernels])
        elif name not in machine.kernels:
            raise Refusal(404, message="no such kernel")
        elif what == "channels":
            self._channels(machine, name)
        elif what == "restart":
            machine.kernels.pop(name).close()
            machine.kernels[name] = machine.kernels.pop(machine.new_kernel())
            self._send(200, model)
        elif self.command == "DELETE":
            machine.kernels.pop(name).close()
            self._send(204, None)
        else:
            self._send(200, model)

    def _channels(self, machine: Machine, name: str) -> None:
        web = self._upgrade()
        while message := web.receive():
            request = json.loads(message[1])
            parent, kind = request["header"], request["header"]["msg_type"]

            def send(channel: str, kind: str, content: object, parent: Any = parent) -> None:
                header = {**parent, "msg_id": f"{parent['msg_id']}-{kind}", "msg_type": kind}
                reply = {"header": header, "msg_id": header["msg_id"], "msg_type": kind,
                         "parent_header": parent, "metadata": {},
                         "content": content, "channel": channel, "buffers": []}  # fmt: skip
                web.send(json.dumps(reply).encode(), TEXT)

            send("iopub", "status", {"execution_state": "busy"})
            if kind == "kernel_info_request":
                language = {"name": "python", "version": "3"}
                info = {"status": "ok", "protocol_version": "5.3", "implementation": "emulated",
                        "language_info": language, "banner": ""}  # fmt: skip
                send("shell", "kernel_info_reply", info)
            elif kind == "execute_request":
                self._execute(machine, name, request["content"]["code"], send)
            send("iopub", "status", {"execution_state": "idle"})

    def _execute(self, machine: Machine, name: str, code: str, send: Any) -> None:
        send("iopub", "execute_input", {"code": code, "execution_count": 1})

        def emit(event: dict[str, Any]) -> None:
            if event["kind"] == "stream":
                send("iopub", "stream", {"name": event["name"], "text": event["text"]})
            elif error := event["error"]:
                content = dict(zip(("ename", "evalue", "traceback"), error, strict=True))
                send("iopub", "error", content)
                send("shell", "execute_reply", {"status": "error", "execution_count": 1, **content})
            else:
                send("shell", "execute_reply", {"status": "ok", "execution_count": 1})

        machine.kernels[name].execute(code, emit)

    def _upgrade(self) -> WebSocket:
        self.close_connection = True
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", accept_key(self.headers["Sec-WebSocket-Key"]))
        self.end_headers()
        # A notebook may be idle for any length of time.
        self.connection.settimeout(None)
        return WebSocket(self.rfile, self.connection)

    def _send(self, status: int, document: Any) -> None:
        data = b"" if document is None else json.dumps(document).encode()
        self.send_response(status)
        if status != 204:
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
        self.send_header(TIME_HEADER, timestamp(self._colab.account.now()))
        self.send_header(SCALE_HEADER, str(self._colab.scale))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: `Account.requests` has all requests."""


@contextmanager
def serve_colab(
    plan: Plan, *, clock: Clock, folder: Path, secret: str | None, scale: float
) -> Iterator[Colab]:
    """Serve an emulated Colab on loopback while the block runs."""
    ensure_folder(folder, private=True)
    colab = Colab(plan, clock, folder, secret, scale)
    server = _listen(folder / "port", partial(_Handler, colab))
    colab.url = f"http://127.0.0.1:{server.server_address[1]}"
    write_cli_files(colab, folder / "cli")
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        with ticking(colab.machines.sync):
            yield colab
    finally:
        server.shutdown()
        server.server_close()
        colab.machines.close()


def _listen(kept: Path, handler: Any) -> HttpServer:
    """Listen on the port of the last run if possible, so that exported variables stay valid."""
    last = kept.read_text(encoding="ascii") if kept.exists() else ""
    try:
        server = HttpServer(("127.0.0.1", int(last or 0)), handler)
    except (OSError, ValueError):
        server = HttpServer(("127.0.0.1", 0), handler)
    write_atomically(kept, str(server.server_address[1]), private=True)
    return server


def write_cli_files(colab: Colab, home: Path) -> None:
    """Write a home folder and an `env` file that point the official CLI to this server."""
    folder = home / ".config" / "colab-cli"
    known = dict.fromkeys(("refresh_token", "client_id", "client_secret"), "emulated")
    login = {**known, "token": colab.secret or "any", "expiry": "2099-01-01T00:00:00Z"}
    write_atomically(folder / "token.json", json.dumps(login), private=True)
    no_update = json.dumps({"enable_update_check": False})
    write_atomically(folder / "settings.json", no_update, private=True)
    lines = {
        "HOME": str(home),
        "HTTPS_PROXY": colab.url,
        "https_proxy": colab.url,
        "REQUESTS_CA_BUNDLE": str(colab.ca_file),
        "no_proxy": "127.0.0.1,localhost",
        "NO_PROXY": "127.0.0.1,localhost",
    }
    text = "".join(f"{name}={value}\n" for name, value in lines.items())
    write_atomically(home / "env", text, private=True)


def _make_tls(ca_file: Path, key_file: Path) -> ssl.SSLContext:
    """Make a certificate for Colab's name; only clients that are given it trust it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, DOMAIN)])
    now = datetime.now(timezone.utc)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=365))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(DOMAIN)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    public = certificate.public_bytes(serialization.Encoding.PEM)
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    write_atomically(ca_file, public, private=True)
    write_atomically(key_file, key.private_bytes(serialization.Encoding.PEM, *plain), private=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(ca_file, key_file)
    key_file.unlink()
    return context
