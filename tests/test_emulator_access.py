"""Who may use an emulator: its owner, with any client; no other user, and no web page."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip("google.cloud.tpu_v2", reason="google-cloud-tpu is not installed")

import grpc
import psutil
from google.api_core.exceptions import Unauthenticated
from google.cloud import tpu_v2
from google.cloud.tpu_v2.services.tpu.transports import TpuGrpcTransport

from tests.attackers import attack, listening_on
from tests.conftest import EMULATOR_TOKEN, Tpuctl
from tests.emulator_world import RUNTIME, ZONE, open_channel
from tpuctl.runtime.metadata_server import MetadataServer

TOKEN = "/computeMetadata/v1/instance/service-accounts/default/token"
FACES = [
    ("GET", TOKEN), ("GET", "/emulator/status"), ("GET", f"/v2/{ZONE}/nodes"),
    ("GET", "/storage/v1/b"), ("POST", "/storage/v1/b"), ("GET", "/download/storage/v1/b/x/o/y"),
    ("POST", "/upload/storage/v1/b/x/o?uploadType=media&name=y"), ("GET", "/"),
    ("GET", "/compute/v1/projects/p/zones"), ("GET", "/emulator/bill"),
    ("GET", f"/vm/p/us-central1-a/t1/0{TOKEN}"), ("PUT", "/vm/p/us-central1-a/t1/0/x"),
]  # fmt: skip


@pytest.mark.parametrize(("verb", "path"), FACES)
def test_every_http_face_wants_the_secret(practice: Any, verb: str, path: str) -> None:
    world = practice()
    world.create("t1")
    with_secret = world.http(verb, path, Metadata_Flavor="Google")[0]
    # Of these, the API itself wants a token in a header, as Google's does.
    assert (with_secret == 401) == path.startswith("/v2")
    address, secret = world.emulator.http.rsplit("/", 1)
    assert secret == EMULATOR_TOKEN
    for prefix, authorization in [
        ("", ""), ("", "Bearer "), ("", "Bearer ya29.emulated-"), ("", f"Basic {secret}"),
        ("/x", ""), (f"/{secret[:-1]}", ""), (f"/x/{secret}", ""),
        ("", f"Bearer {secret}x"), ("", f"Bearer {secret[:-1]}é"),
    ]:  # fmt: skip
        world.emulator.http = address + prefix
        headers = {"Metadata_Flavor": "Google", "Authorization": authorization.encode("latin-1")}
        assert world.http(verb, path, **headers)[0] == 401, prefix or authorization
    world.emulator.http = address
    headers = {"Metadata_Flavor": "Google", "Authorization": f"Bearer {secret}"}
    assert world.http(verb, path, **headers)[0] == (200 if "v2" in path else with_secret)


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"}, {"Host": "evil.example"}, {"Host": "127.0.0.1.evil.io:80"},
        {"Origin": "http://127.0.0.1", "Content-Type": "application/x-www-form-urlencoded"},
    ],
)  # fmt: skip
def test_web_pages_are_refused_even_with_the_secret(practice: Any, headers: dict[str, str]) -> None:
    world = practice()
    for verb, path in FACES:
        assert world.http(verb, path, "a=b", Metadata_Flavor="Google", **headers)[0] == 403, path
        assert world.http(verb, path, "a=b", Metadata_Flavor="Google")[0] != 403, path


def test_the_api_over_grpc_wants_the_secret(practice: Any) -> None:
    world = practice()
    list_nodes = "/google.cloud.tpu.v2.Tpu/ListNodes"
    for channel in (
        grpc.insecure_channel(world.emulator.endpoint),
        open_channel(world.emulator.endpoint, "not it"),
    ):
        with channel:
            client = tpu_v2.TpuClient(transport=TpuGrpcTransport(channel=channel))
            with pytest.raises(Unauthenticated, match="requires the token"):
                client.create_node(parent=ZONE, node_id="t1", node=tpu_v2.Node())
            raw: Any = (None, None)
            for method in (list_nodes, "/any.Service/Method"):
                with pytest.raises(grpc.RpcError) as caught:
                    channel.unary_unary(method, *raw)(b"")
                assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert world.emulator.requests == []
    # A client that opens its channel as it likes sends it with each call.
    with grpc.insecure_channel(world.emulator.endpoint) as channel:
        client = tpu_v2.TpuClient(transport=TpuGrpcTransport(channel=channel))
        bearer = [("authorization", f"Bearer {EMULATOR_TOKEN}")]
        assert list(client.list_nodes(parent=ZONE, metadata=bearer)) == []


def test_a_shell_without_the_secret_is_told_where_to_get_it(
    practice: Any, tpuctl: Tpuctl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TPUCTL_TPU_ENDPOINT", practice().emulator.endpoint)
    listing = ("list", "--zone", "us-central1-a")
    assert tpuctl(*listing).exit_code == 0
    (tmp_path / "emulator").mkdir()
    (tmp_path / "emulator" / "token").write_text(EMULATOR_TOKEN)
    monkeypatch.delenv("TPUCTL_TPU_TOKEN_FILE")
    monkeypatch.setenv("TPUCTL_STATE_DIR", str(tmp_path))
    assert tpuctl(*listing).exit_code == 0
    monkeypatch.setenv("TPUCTL_STATE_DIR", str(tmp_path / "other"))
    refused = tpuctl(*listing)
    assert refused.exit_code == 1
    assert "tpuctl emulator status" in refused.stderr


GOOGLE_AUTH = """
import google.auth.compute_engine, google.auth.transport.requests
credentials = google.auth.compute_engine.Credentials()
credentials.refresh(google.auth.transport.requests.Request())
from google.cloud import storage
client = storage.Client(project="p", credentials=credentials)
client.bucket("bbb").blob("x").upload_from_string("by its header")
print(client.bucket("bbb").blob("x").download_as_text())
"""


def test_googles_clients_send_it_unmodified(practice: Any) -> None:
    """From a path in GCE_METADATA_HOST to a token, and with that to storage without any path."""
    place = urlsplit(practice({"buckets": {"bbb": {}}}).emulator.http)
    env = {
        **os.environ,
        "GCE_METADATA_HOST": place.netloc + place.path,
        "STORAGE_EMULATOR_HOST": f"http://{place.netloc}",
    }
    program = [sys.executable, "-W", "ignore", "-c", GOOGLE_AUTH]
    assert subprocess.check_output(program, env=env, text=True) == "by its header\n"
    machine = MetadataServer(env, budget_s=30)
    assert machine.get("project/project-id") == "practice"
    assert MetadataServer({**env, "GCE_METADATA_HOST": place.netloc}, budget_s=30).get("x") is None


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tpuctl: Tpuctl) -> Iterator[Path]:
    monkeypatch.setenv("TPUCTL_STATE_DIR", str(tmp_path / "state"))
    yield tmp_path / "state" / "emulator"
    tpuctl("emulator", "stop")


INTRUDER = """
import asyncio, sys, time
import asyncssh, grpc
from google.cloud import tpu_v2
from google.cloud.tpu_v2.services.tpu.transports import TpuGrpcTransport
zone, runtime, endpoint = sys.argv[1:]
key = asyncssh.generate_private_key("ssh-ed25519")
public = key.export_public_key().decode().strip()
client = tpu_v2.TpuClient(transport=TpuGrpcTransport(channel=grpc.insecure_channel(endpoint)))
node = tpu_v2.Node(accelerator_type="v5litepod-8", runtime_version=runtime,
                   metadata={"ssh-keys": f"me:{public}"})
client.create_node(parent=zone, node_id="t1", node=node)
async def run(address, port):
    async with asyncssh.connect(address, port, username="me", client_keys=[key], known_hosts=None,
                                config=[]) as connection:
        print("as", (await connection.run("id -u")).stdout.strip())
for _ in range(6000):
    found = client.get_node(name=f"{zone}/nodes/t1")
    if found.state.name == "READY" and "tpuctl-emulator-ssh-port" in found.metadata:
        break
    time.sleep(0.05)
asyncio.run(run(found.network_endpoints[0].ip_address,
                int(found.metadata["tpuctl-emulator-ssh-port"])))
"""


@pytest.mark.slow
def test_another_user_gets_nowhere_whatever_the_umask(state: Path, tmp_path: Path) -> None:
    scenario = tmp_path / "fast.json"
    scenario.write_text('{"provision_s": 1}')
    start = f'umask 000; exec "$0" -m tpuctl emulator start --detach --json --scenario {scenario}'
    options = ["", " --fresh --allow-unauthenticated"]
    stories = []
    for option in options:
        words = ["sh", "-c", start + option, sys.executable]
        document = json.loads(subprocess.check_output(words, text=True))
        stories.append((document, attack(INTRUDER, ZONE, RUNTIME, document["data"]["endpoint"])))
        pid = document["data"]["pid"]
        if not option:
            secret = (state / "token").read_text()
            assert secret in document["data"]["exports"]["STORAGE_EMULATOR_HOST"]
            _create_a_node(document["data"]["endpoint"], secret)
        open_to = {address for address, _ in listening_on([psutil.Process(pid)])}
        assert open_to
        assert all(address.endswith("7F") for address in open_to), open_to
        for path in [state, *state.rglob("*")]:
            # A worker's home is as on a TPU VM; nobody else comes past the emulator's folder.
            if "home" not in path.parts:
                assert path.lstat().st_mode & 0o077 == 0, path
        if not option:
            assert secret not in (state / "log.txt").read_text()
            assert not any(secret in words for words in _all_arguments())
            subprocess.run([sys.executable, "-m", "tpuctl", "emulator", "stop"], check=True)
    (closed, refused), (opened, allowed) = stories
    assert (closed["warnings"], refused.stdout) == ([], "")
    assert "requires the token" in refused.stderr
    assert "run commands as you" in opened["warnings"][0]
    assert allowed.stdout == f"as {os.getuid()}\n", allowed.stderr


def _create_a_node(endpoint: str, secret: str) -> None:
    """Create a node and wait until its workers run."""
    with open_channel(endpoint, secret) as channel:
        client = tpu_v2.TpuClient(transport=TpuGrpcTransport(channel=channel))
        node = tpu_v2.Node(accelerator_type="v5litepod-8", runtime_version=RUNTIME)
        client.create_node(parent=ZONE, node_id="t9", node=node).result(timeout=60)
        client.delete_node(name=f"{ZONE}/nodes/t9")


def _all_arguments() -> Iterator[str]:
    for process in psutil.process_iter():
        try:
            yield " ".join(process.cmdline())
        except psutil.Error:
            continue
