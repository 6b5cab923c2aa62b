"""Clients of the Cloud TPU API, unmodified, with the emulator (make test-clients)."""

import asyncio
import io
import json
import re
import time
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("google.cloud.tpu_v2", reason="google-cloud-tpu is not installed")

import grpc
from google.cloud import tpu_v2, tpu_v2alpha1

from tests.clients import VERSION, Target, emulator_for_clients, need, service

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("default")]

PLACE = "projects/practice/locations/us-central1-a"
TYPE = ("--accelerator-type=v5litepod-8", f"--version={VERSION}")
QUEUED = ("--accelerator-type=v5litepod-8", f"--runtime-version={VERSION}")

Gcloud = Callable[..., str]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with emulator_for_clients(tmp_path_factory.mktemp("clients")) as found:
        yield found


@pytest.fixture
def gcloud(target: Target) -> Gcloud:
    need("gcloud")

    def run(group: str, *arguments: str, ok: bool = True) -> str:
        track, _, rest = group.rpartition("/")
        zone = () if rest == "locations" else ("--zone=us-central1-a",)
        head = ["gcloud", *([track] if track else []), "compute", "tpus"]
        return target.run(*head, *([rest] if rest else []), *arguments, *zone, ok=ok)

    return run


def test_gcloud_creates_changes_and_deletes_tpu_vms(gcloud: Gcloud) -> None:
    options = ("--labels=a=b", "--metadata=x=y", "--tags=web", "--description=hi", "--spot")
    disk = "--data-disk=source=projects/p/zones/z/disks/d,mode=read-only"
    assert "Created tpu [t1]" in gcloud("tpu-vm", "create", "t1", *TYPE, *options, disk)
    gcloud("tpu-vm", "create", "t2", "--type=v4", "--topology=2x2x1", f"--version={VERSION}",
           "--internal-ips", "--network=default", "--async")  # fmt: skip
    failed = gcloud("tpu-vm", "create", "t3", *TYPE, "--reserved", ok=False)
    assert "Insufficient reserved capacity" in failed
    assert re.search("t1 .* READY", gcloud("tpu-vm", "list"))
    assert "mode: READ_ONLY" in gcloud("tpu-vm", "describe", "t1")
    assert "hostkeys" in gcloud("tpu-vm", "get-guest-attributes", "t1")
    gcloud("tpu-vm", "update", "t1", "--update-labels=c=d", "--add-tags=x", "--internal-ips")
    fields = "--format=value(networkEndpoints,labels,tags)"
    shown = gcloud("tpu-vm", "describe", "t1", fields)
    assert "externalIp" not in shown
    assert all(text in shown for text in ("a=b", "c=d", "web", "x"))
    assert "STOPPED" in gcloud("tpu-vm", "stop", "t1")
    assert "READY" in gcloud("tpu-vm", "start", "t1")
    gcloud("alpha/tpu-vm", "attach-disk", "t1", "--disk=projects/p/zones/us-central1-a/disks/d2")
    assert "disks/d2" in gcloud("alpha/tpu-vm", "describe", "t1")
    gcloud("alpha/tpu-vm", "simulate-maintenance-event", "t1")
    gcloud("tpu-vm", "delete", "t1", "--quiet")
    assert "NOT_FOUND" in gcloud("tpu-vm", "describe", "t1", ok=False)


def test_gcloud_lists_what_there_is(gcloud: Gcloud) -> None:
    assert VERSION in gcloud("tpu-vm", "versions", "list")
    assert "V5LITE_POD" in gcloud("tpu-vm", "accelerator-types", "describe", "v5litepod-8")
    assert "v5litepod-16" in gcloud("accelerator-types", "list")
    assert "us-central1-a" in gcloud("locations", "list")
    assert "Listed 0 items" in gcloud("", "list")
    assert "gserviceaccount" in gcloud("tpu-vm", "service-identity", "create")


def test_gcloud_queues_and_deletes_by_force(gcloud: Gcloud) -> None:
    group = "queued-resources"
    until = "--valid-until-duration=1h"
    gcloud(group, "create", "q1", "--node-id=n1", *QUEUED, until, "--spot")
    gcloud(group, "create", "q2", "--node-count=2", "--node-prefix=s", *QUEUED)
    best = ("--best-effort", "--autocheckpoint-enabled")
    gcloud(f"alpha/{group}", "create", "q3", "--node-id=n3", *QUEUED, *best)
    assert all(name in gcloud(group, "list") for name in ("q1", "q2", "q3"))
    assert "nodeIdPrefix: s" in gcloud(f"alpha/{group}", "describe", "q2")
    for name in ("q1", "q2", "q3"):
        gcloud(group, "delete", name, "--force", "--quiet")
    assert "Listed 0 items" in gcloud(group, "list")


def test_gcloud_reaches_the_workers(gcloud: Gcloud, target: Target, tmp_path: Path) -> None:
    need("ssh")
    gcloud("tpu-vm", "create", "pod", "--accelerator-type=v5litepod-16", f"--version={VERSION}")
    assert "127." in gcloud("tpu-vm", "ssh", "pod", "--dry-run", "--command=ls", "--worker=all")
    assert "127." in gcloud("tpu-vm", "scp", str(tmp_path), "pod:", "--dry-run")
    key = "--format=value(metadata.tpuctl-emulator-ssh-port)"
    port = gcloud("tpu-vm", "describe", "pod", key).strip()
    (tmp_path / "code.py").write_text("print(6 * 7)")
    to_scp = ("--worker=all", f"--scp-flag=-P {port}")
    gcloud("tpu-vm", "scp", str(tmp_path / "code.py"), "pod:code.py", *to_scp)
    command = "--command=python3 code.py"
    to_ssh = ("--worker=all", f"--ssh-flag=-p {port}")
    assert gcloud("tpu-vm", "ssh", "pod", command, *to_ssh).count("42") == 4
    gcloud("tpu-vm", "delete", "pod", "--quiet")


def channel(target: Target, *, is_async: bool = False) -> Any:
    secret = grpc.access_token_call_credentials(target.token)
    made = grpc.composite_channel_credentials(grpc.local_channel_credentials(), secret)
    module: Any = grpc.aio if is_async else grpc
    return module.secure_channel(target.env["TPUCTL_TPU_ENDPOINT"], made)


@pytest.mark.parametrize("module", [tpu_v2, tpu_v2alpha1], ids=lambda module: module.__name__[-8:])
@pytest.mark.parametrize("transport", ["grpc", "rest"])
def test_google_cloud_tpu(target: Target, module: Any, transport: str) -> None:
    from google.oauth2.credentials import Credentials

    try:
        kind = module.TpuClient.get_transport_class(transport)
    except KeyError:
        pytest.skip(f"{module.__name__} has no transport {transport}")
    if transport == "grpc":
        client = module.TpuClient(transport=kind(channel=channel(target)))
    else:
        place: dict[str, Any] = {"host": target.place, "url_scheme": "http"}
        client = module.TpuClient(transport=kind(**place, credentials=Credentials(target.token)))
    name = f"lib-{transport}-{module.__name__.rpartition('_')[2]}"
    node = module.Node(accelerator_type="v5litepod-8", runtime_version=VERSION)
    made = client.create_node(parent=PLACE, node_id=name, node=node).result(timeout=60)
    assert isinstance(made, module.Node)
    assert made.accelerator_config.type_.name == "V5LITE_POD"
    assert name in [found.name.rpartition("/")[2] for found in client.list_nodes(parent=PLACE)]
    attributes = {"name": made.name, "worker_ids": [""]}
    assert len(client.get_guest_attributes(attributes).guest_attributes) == 1
    client.delete_node(name=made.name).result(timeout=60)


def test_google_cloud_tpu_with_asyncio(target: Target) -> None:
    from google.cloud.tpu_v2.services.tpu.transports import TpuGrpcAsyncIOTransport

    async def live() -> None:
        transport = TpuGrpcAsyncIOTransport(channel=channel(target, is_async=True))
        client = tpu_v2.TpuAsyncClient(transport=transport)
        node = tpu_v2.Node(accelerator_type="v5litepod-8", runtime_version=VERSION)
        operation = await client.create_node(parent=PLACE, node_id="async", node=node)
        assert (await operation.result()).state.name == "READY"
        await client.delete_node(name=f"{PLACE}/nodes/async")

    asyncio.run(live())


def test_google_api_python_client(target: Target) -> None:
    zone = service(target, "tpu", "v2").projects().locations()
    body = {"acceleratorType": "v5litepod-8", "runtimeVersion": VERSION}
    operation = zone.nodes().create(parent=PLACE, nodeId="api", body=body).execute()
    while not operation["done"]:
        time.sleep(0.05)
        operation = zone.operations().get(name=operation["name"]).execute()
    fields = "nodes(name,state),nextPageToken"
    found = zone.nodes().list(parent=PLACE, fields=fields).execute()["nodes"]
    assert {"name": f"{PLACE}/nodes/api", "state": "READY"} in found
    zone.nodes().delete(name=f"{PLACE}/nodes/api").execute()
    for version in ("v1", "v1alpha1", "v2alpha1"):
        zone = service(target, "tpu", version).projects().locations()
        assert zone.acceleratorTypes().list(parent=PLACE).execute()["acceleratorTypes"]
        assert zone.list(name="projects/practice").execute()["locations"]


def test_google_api_python_client_with_storage(target: Target) -> None:
    storage = service(target, "storage", "v1")
    http = pytest.importorskip("googleapiclient.http")
    for is_resumable in (False, True):
        media = http.MediaIoBaseUpload(io.BytesIO(b"abc"), "text/plain", resumable=is_resumable)
        storage.objects().insert(bucket="photos", name="gapi", media_body=media).execute()
    assert storage.objects().get_media(bucket="photos", object="gapi").execute() == b"abc"
    answers: list[Any] = []
    batch = service(target, "storage", "v1").new_batch_http_request()
    for _ in range(2):
        request = storage.objects().get(bucket="photos", object="gapi", fields="size")
        batch.add(request, callback=lambda _id, answer, _error: answers.append(answer))
    batch.execute()
    assert answers == [{"size": "3"}] * 2


def methods_of(level: Any) -> Iterator[Any]:
    yield from level.get("methods", {}).values()
    for below in level.get("resources", {}).values():
        yield from methods_of(below)


@pytest.mark.parametrize(
    ("name", "version"),
    [("tpu", "v1"), ("tpu", "v1alpha1"), ("tpu", "v2"), ("tpu", "v2alpha1"), ("storage", "v1")],
)
def test_no_method_of_a_discovery_document_makes_a_client_wait(
    target: Target, name: str, version: str
) -> None:
    """What is missing is refused with a 4xx: clients repeat what fails with a 5xx."""
    requests = pytest.importorskip("requests")
    service(target, name, version)
    folder = resources.files("googleapiclient.discovery_cache") / "documents"
    document = json.loads((folder / f"{name}.{version}.json").read_text())
    statuses = {}
    for method in methods_of(document):
        path = method.get("flatPath") or method["path"]
        path = re.sub(r"\{[^}]*\}", "none", path).replace("projectsId", "practice")
        url = f"{target.place}/{document['servicePath']}{path}"
        login = {"Authorization": f"Bearer {target.token}"}
        kind = method["httpMethod"]
        answer = requests.request(kind, url, headers=login, timeout=120)
        statuses[method["id"]] = answer.status_code
    assert len(statuses) > 10
    assert {key: status for key, status in statuses.items() if not 200 <= status < 500} == {}


def test_google_auth_finds_the_account_of_a_worker(gcloud: Gcloud, target: Target) -> None:
    need("ssh")
    gcloud("tpu-vm", "create", "auth", *TYPE)
    key = "--format=value(metadata.tpuctl-emulator-ssh-port)"
    port = gcloud("tpu-vm", "describe", "auth", key).strip()
    code = "import google.auth; print('found', google.auth.default()[1])"
    command = f'--command=python3 -c "{code}"'
    shown = gcloud("tpu-vm", "ssh", "auth", command, f"--ssh-flag=-p {port}")
    assert "found practice" in shown
    gcloud("tpu-vm", "delete", "auth", "--quiet")


def test_tpuz(target: Target) -> None:
    """It runs gcloud for everything."""
    need("gcloud")
    tpuz = pytest.importorskip("tpuz")
    tpu = tpuz.TPU("z", "v5litepod-8", zone="us-central1-a", project="practice")
    tpu.up(wait=False)
    info = tpu.info()
    assert (info.accelerator, info.preemptible) == ("v5litepod-8", True)
    listed = tpuz.TPU.list(zone="us-central1-a", project="practice")
    assert any(item["name"].endswith("/z") for item in listed)
    tpu.down()


def test_tpunicorn(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its address of the API is compiled in."""
    api = pytest.importorskip("tpunicorn.api")
    from google.oauth2.credentials import Credentials

    monkeypatch.setattr(api, "API_ROOT", f"{target.place}/v2")
    client = api.Client(project="practice", credentials=Credentials(target.token))
    assert "us-central1-a" in client.list_locations()
    assert "v5litepod-8" in client.list_accelerator_types("us-central1-a")
    body = {"acceleratorType": "v5litepod-8", "runtimeVersion": VERSION}
    client.wait_operation(client.create_node("us-central1-a", "uni", body))
    assert any(node["name"].endswith("/uni") for node in client.list_nodes("us-central1-a"))
    client.delete_node("us-central1-a", "uni")
