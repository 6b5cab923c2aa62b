"""Reading a kubeconfig: files, certificates, tokens and login plugins, against a TLS server."""

import base64
import json
import os
import ssl
import stat
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("yaml", reason="PyYAML is not installed")
pytest.importorskip("cryptography", reason="cryptography is not installed")

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tpuctl.errors import (
    InvalidInputError,
    NotLoggedInError,
    TpuctlError,
    UnavailableError,
    UnsupportedError,
)
from tpuctl.providers.gke import _kubeconfig
from tpuctl.providers.gke.client import Cluster, find_context

Pem = tuple[bytes, bytes]


def certificate(name: str, issuer: "Pem | None" = None, *names: Any) -> Pem:
    """A certificate and its key; without an issuer, an authority of its own."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    signer: Any = key
    parent = subject
    if issuer:
        signer = serialization.load_pem_private_key(issuer[1], None)
        parent = x509.load_pem_x509_certificate(issuer[0]).subject
    now = datetime.now(timezone.utc)
    made = (
        x509.CertificateBuilder().subject_name(subject).issuer_name(parent)
        .public_key(key.public_key()).serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
    )  # fmt: skip
    if names:
        made = made.add_extension(x509.SubjectAlternativeName(names), critical=False)
    plain = serialization.NoEncryption()
    kind = serialization.PrivateFormat.PKCS8
    pem = key.private_bytes(serialization.Encoding.PEM, kind, plain)
    return made.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM), pem


class Server:
    """A server with TLS that notes what it is sent, and wants a certificate or a token."""

    def __init__(self, folder: Path) -> None:
        self.authority = certificate("authority")
        server = certificate("server", self.authority, x509.IPAddress(ip_address("127.0.0.1")))
        self.named = certificate("named", self.authority, x509.DNSName("cluster.internal"))
        self.client = certificate("client", self.authority)
        self.wanted = ["Bearer good"]
        self.seen: list[tuple[str | None, bool]] = []
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        (folder / "ca.pem").write_bytes(self.authority[0])
        self._context.load_verify_locations(folder / "ca.pem")
        self._context.verify_mode = ssl.CERT_OPTIONAL
        self._folder = folder
        self.present(server)
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._http.socket = self._context.wrap_socket(self._http.socket, server_side=True)
        self.address = f"https://127.0.0.1:{self._http.server_address[1]}"
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()

    def present(self, pair: Pem) -> None:
        (self._folder / "server.pem").write_bytes(pair[0] + pair[1])
        self._context.load_cert_chain(self._folder / "server.pem")

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        here = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                login = self.headers.get("Authorization")
                proven = bool(self.connection.getpeercert())
                here.seen.append((login, proven))
                status = 200 if login in here.wanted or proven else 401
                if self.path.endswith("/away"):
                    status = 302
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", f"{here.address}/else")
                self.send_header("Content-Length", "13")
                self.end_headers()
                self.wfile.write(b'{"kind": "X"}')

            def log_message(self, format: str, *args: Any) -> None:
                """Keep quiet."""

        return Handler


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path)
    yield made
    made.close()


Configs = Callable[..., Cluster]


@pytest.fixture
def config(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Configs:
    """Write a kubeconfig for the server, whose parts may be replaced, and open it."""

    def write(user: dict[str, Any], **cluster: Any) -> Cluster:
        usual = {
            "server": server.address,
            "certificate-authority-data": base64.b64encode(server.authority[0]).decode(),
        }
        document = {
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "k", "cluster": usual | cluster}],
            "users": [{"name": "u", "user": user}],
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        }  # fmt: skip
        path = tmp_path / "config"
        path.write_text(json.dumps(document))
        monkeypatch.setenv("KUBECONFIG", str(path))
        return Cluster(find_context())

    return write


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def plugin(folder: Path, *answers: str) -> Path:
    """A login plugin that says one answer after the other, and counts how often it was run."""
    path = folder / "plugin"
    said = "\n".join(
        f"if [ $n = {n} ]; then echo '{each}'; fi" for n, each in enumerate(answers, 1)
    )
    path.write_text(f"#!/bin/sh\necho x >> {folder}/runs\nn=$(wc -l < {folder}/runs)\n{said}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def credential(**status: str) -> str:
    version = "client.authentication.k8s.io/v1beta1"
    return json.dumps({"apiVersion": version, "kind": "ExecCredential", "status": status})


def run_plugin(path: Path | str) -> dict[str, Any]:
    return {"exec": {"command": str(path), "apiVersion": "client.authentication.k8s.io/v1beta1"}}


def test_a_token_is_sent_to_a_server_that_its_authority_vouches_for(
    server: Server, config: Configs
) -> None:
    assert config({"token": "good"}).get("x") == {"kind": "X"}
    assert server.seen == [("Bearer good", False)]


def test_a_token_file_is_read_beside_the_kubeconfig(
    server: Server, config: Configs, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("good\n")
    assert config({"tokenFile": "token"}).get("x") == {"kind": "X"}


def test_a_client_certificate_is_presented(server: Server, config: Configs, tmp_path: Path) -> None:
    data = {
        "client-certificate-data": b64(server.client[0]),
        "client-key-data": b64(server.client[1]),
    }
    assert config(data).get("x") == {"kind": "X"}
    (tmp_path / "c.pem").write_bytes(server.client[0])
    (tmp_path / "k.pem").write_bytes(server.client[1])
    assert config({"client-certificate": "c.pem", "client-key": "k.pem"}).get("x") == {"kind": "X"}
    assert server.seen == [(None, True)] * 2


def test_a_server_of_another_authority_is_sent_nothing(server: Server, config: Configs) -> None:
    other = b64(certificate("other")[0])
    with pytest.raises(NotLoggedInError, match=r"c \(127.* has no valid"):
        _once(config({"token": "good"}, **{"certificate-authority-data": other}))
    assert server.seen == []


def _once(cluster: Cluster) -> None:
    """Send one request without repeating it."""
    with cluster._sent("GET", "x", None, {}, 10):
        pass


def test_a_server_of_another_name_is_sent_nothing_unless_that_is_the_name(
    server: Server, config: Configs
) -> None:
    server.present(server.named)
    with pytest.raises(NotLoggedInError, match=r"127\.0\.0\.1"):
        _once(config({"token": "good"}))
    assert server.seen == []
    _once(config({"token": "good"}, **{"tls-server-name": "cluster.internal"}))
    assert len(server.seen) == 1


def test_a_login_is_not_sent_to_where_a_server_points(server: Server, config: Configs) -> None:
    with pytest.raises(TpuctlError):
        config({"token": "good"}).get("away")
    assert len(server.seen) == 1


def test_a_plugin_is_asked_once_and_again_when_its_token_expires_or_is_revoked(
    server: Server, config: Configs, tmp_path: Path
) -> None:
    later = (datetime.now(timezone.utc) + timedelta(hours=1)).isoformat()
    path = plugin(tmp_path, credential(token="good", expirationTimestamp=later),
                  credential(token="better", expirationTimestamp=later),
                  credential(token="worse"))  # fmt: skip
    cluster = config(run_plugin(path))
    for _ in range(3):
        cluster.get("x")
    assert (tmp_path / "runs").read_text().count("x") == 1
    server.wanted = ["Bearer better"]
    cluster.get("x")
    assert (tmp_path / "runs").read_text().count("x") == 2
    server.wanted = []
    with pytest.raises(NotLoggedInError, match="does not accept"):
        cluster.get("x")


def test_a_plugin_may_give_a_certificate(server: Server, config: Configs, tmp_path: Path) -> None:
    cert, key = (each.decode() for each in server.client)
    answer = credential(clientCertificateData=cert, clientKeyData=key).replace("\\n", "\\\\n")
    assert config(run_plugin(plugin(tmp_path, answer))).get("x") == {"kind": "X"}
    assert server.seen == [(None, True)]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("", "failed"),
        ("{}", "failed"),
        ("[]", "failed"),
        ('{"apiVersion": "v9", "status": {}}', "speaks v9"),
        (credential(token="a", expirationTimestamp="soon"), "not a time"),
        (credential(token="a", expirationTimestamp="2026-01-01T00:00:00"), "not a time"),
    ],
)
def test_a_plugin_that_says_nonsense_is_named(
    server: Server, config: Configs, tmp_path: Path, answer: str, said: str
) -> None:
    with pytest.raises(NotLoggedInError, match=said):
        config(run_plugin(plugin(tmp_path, answer))).get("x")
    assert server.seen == []


def test_a_plugin_that_fails_tells_why(server: Server, config: Configs, tmp_path: Path) -> None:
    path = tmp_path / "plugin"
    path.write_text("#!/bin/sh\necho 'your login has expired' >&2\nexit 1\n")
    path.chmod(0o700)
    with pytest.raises(NotLoggedInError, match="your login has expired"):
        config(run_plugin(path)).get("x")


def test_a_plugin_that_hangs_is_told_with_its_context_and_what_to_do(
    config: Configs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "plugin"
    path.write_text("#!/bin/sh\nexec sleep 600\n")
    path.chmod(0o700)
    monkeypatch.setattr(_kubeconfig, "_PLUGIN_S", 0.1)
    with pytest.raises(UnavailableError, match="of the context c did not answer") as failed:
        _once(config(run_plugin(path)))
    assert "gcloud auth login" in str(failed.value.hint)


def test_a_plugin_in_the_current_folder_is_not_run(
    server: Server, config: Configs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plugin(tmp_path, credential(token="good"))
    monkeypatch.setenv("PATH", f".{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(NotLoggedInError, match="not installed"):
        config(run_plugin("plugin")).get("x")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("key", ["as", "as-groups", "auth-provider", "as-user-extra"])
def test_a_login_as_somebody_else_is_refused(config: Configs, key: str) -> None:
    with pytest.raises(UnsupportedError, match=key):
        config({"token": "good", key: ["x"]})


@pytest.mark.parametrize(
    "text",
    ["", "[]", "a: [", "contexts: 1\ncurrent-context: c", "\x00",
     "!!python/object/apply:os.abort []",
     "current-context: c\ncontexts: [{name: c, context: {cluster: k}}]",
     "current-context: c\ncontexts: [{name: c, context: {cluster: k}}]\n"
     "clusters: [{name: k, cluster: {server: 'http://example.com'}}]"],
)  # fmt: skip
def test_a_damaged_or_unsafe_kubeconfig_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    monkeypatch.setenv("KUBECONFIG", str(path))
    with pytest.raises((InvalidInputError, NotLoggedInError)):
        find_context()


@pytest.mark.parametrize("name", ["missing", os.devnull])
def test_a_context_that_is_missing_is_told_with_what_makes_it(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("KUBECONFIG", name)
    for wanted, hint in ((None, "get-credentials"), ("tpuctl-emulator", "tpuctl emulator start")):
        with pytest.raises(NotLoggedInError) as caught:
            find_context(wanted)
        assert hint in str(caught.value.hint)


def test_several_files_are_merged_and_the_first_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_text("current-context: one\nusers: [{name: u, user: {token: first}}]\n")
    (tmp_path / "b").write_text(
        "current-context: two\n"
        "contexts: [{name: one, context: {cluster: k, user: u, namespace: n}}]\n"
        "clusters: [{name: k, cluster: {server: 'https://k'}}]\n"
        "users: [{name: u, user: {token: b}}]\n"
    )
    monkeypatch.setenv(
        "KUBECONFIG", f"{tmp_path}/a{os.pathsep}{tmp_path}/none{os.pathsep}{tmp_path}/b"
    )
    found = find_context()
    assert (found.name, found.namespace, found.user["token"]) == ("one", "n", "first")
    with pytest.raises(NotLoggedInError, match="no context two"):
        find_context("two")
