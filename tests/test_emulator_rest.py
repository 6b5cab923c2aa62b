"""The HTTP APIs: the API as REST, metadata servers, buckets."""

from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any

import pytest

pytest.importorskip("google.cloud.tpu_v2", reason="google-cloud-tpu is not installed")

from google.api_core import exceptions
from google.cloud import tpu_v2
from google.cloud.tpu_v2.services.tpu.transports import TpuRestTransport
from google.oauth2.credentials import Credentials

from tests.emulator_world import RUNTIME, SMALL, ZONE
from tpuctl.emulator.http import Reply, Route

VM = "/vm/p/us-central1-a/t1/0"
NODE = {"acceleratorType": "v5litepod-8", "runtimeVersion": RUNTIME}


def test_googles_rest_client_creates_lists_and_deletes(practice: Any) -> None:
    world = practice()
    client = tpu_v2.TpuClient(
        transport=TpuRestTransport(
            host=world.emulator.http, url_scheme="http", credentials=Credentials(world.token())
        )
    )
    node = tpu_v2.Node(accelerator_type="v5litepod-8", runtime_version=RUNTIME)
    client.create_node(parent=ZONE, node_id="t1", node=node)
    world.clock.sleep(120)
    assert [item.state.name for item in client.list_nodes(parent=ZONE)] == ["READY"]
    client.delete_node(name=f"{ZONE}/nodes/t1")
    world.clock.sleep(30)
    with pytest.raises(exceptions.NotFound):
        client.get_node(name=f"{ZONE}/nodes/t1")


def test_a_worker_deletes_its_own_node_with_the_token_of_its_metadata_server(
    practice: Any,
) -> None:
    world = practice()
    world.create("t1")
    world.clock.sleep(120)
    bearer = f"Bearer {world.token(VM)}"
    status, operation, _ = world.http("DELETE", f"/v2/{ZONE}/nodes/t1", Authorization=bearer)
    assert (status, operation["metadata"]["verb"]) == (200, "delete")


@pytest.mark.parametrize("authorization", ["", "Bearer made-up", "Basic Zm9v"])
def test_the_api_over_http_needs_a_token_of_the_emulator(practice: Any, authorization: str) -> None:
    status, answer, _ = practice().http("GET", f"/v2/{ZONE}/nodes", Authorization=authorization)
    assert (status, answer["error"]["status"]) == (401, "UNAUTHENTICATED")


def test_a_token_without_the_scope_may_not_delete(practice: Any) -> None:
    world = practice()
    scope = ["https://www.googleapis.com/auth/devstorage.read_only"]
    world.create("t1", service_account={"scope": scope})
    bearer = f"Bearer {world.token(VM)}"
    status, answer, _ = world.http("DELETE", f"/v2/{ZONE}/nodes/t1", Authorization=bearer)
    assert status == 403
    assert answer["error"]["details"][0]["reason"] == "ACCESS_TOKEN_SCOPE_INSUFFICIENT"


def test_the_metadata_server_identifies_a_worker(practice: Any) -> None:
    world = practice()
    world.create("t1", "v5litepod-16", metadata={"startup-script": "echo 'hi'\n"})
    world.clock.sleep(120)

    def ask(path: str) -> Any:
        machine = "/vm/p/us-central1-a/t1/3/computeMetadata/v1"
        return world.http("GET", f"{machine}{path}", Metadata_Flavor="Google")[1]

    assert ask("/instance/attributes/agent-worker-number") == "3"
    assert ask("/instance/attributes/startup-script") == "echo 'hi'\n"
    assert "NODE_ID: 't1'\n" in ask("/instance/attributes/tpu-env")
    assert ask("/instance/zone").endswith("/zones/us-central1-a")
    assert "attributes/\n" in ask("/instance/")
    assert ask("/project/?recursive=true")["projectId"] == "p"
    whole = ask("/instance/?recursive=true")
    assert whole["serviceAccounts"]["default"]["aliases"] == ["default"]
    assert whole["networkInterfaces"][0]["ip"].startswith("127.")
    assert whole["attributes"]["agent-worker-number"] == "3"
    assert isinstance(whole["id"], int)


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        (f"{VM}/computeMetadata/v1/instance/id", {}, 403),
        (f"{VM}/computeMetadata/v1/instance/id", {"X_Forwarded_For": "a"}, 403),
        (f"{VM}/computeMetadata/v1/instance/nothing", {"Metadata_Flavor": "Google"}, 404),
        ("/vm/p/us-central1-a/t9/0/computeMetadata/v1/", {"Metadata_Flavor": "Google"}, 404),
        ("/vm/p/us-central1-a/t1/7/computeMetadata/v1/", {"Metadata_Flavor": "Google"}, 404),
        (f"{VM}/computeMetadata/v1/instance/id", {"Metadata_Flavor": "Google"}, 200),
    ],
)
def test_the_metadata_server_refuses_as_the_real_one(
    practice: Any, path: str, headers: dict[str, str], status: int
) -> None:
    world = practice()
    world.create("t1")
    assert world.http("GET", path, **headers)[0] == status


@pytest.mark.parametrize("path", ["/", VM, f"{VM}/"])
def test_google_auth_finds_the_metadata_server(practice: Any, path: str) -> None:
    status, _, headers = practice().http("GET", path, Metadata_Flavor="Google")
    assert (status, headers["Metadata-Flavor"]) == (200, "Google")


def test_guest_attributes_that_a_worker_publishes_are_read_through_the_api(practice: Any) -> None:
    world = practice()
    world.create("t1", metadata={"enable-guest-attributes": "TRUE"})
    path = f"{VM}/computeMetadata/v1/instance/guest-attributes/job/exit-code"
    assert world.http("PUT", path, "17", Metadata_Flavor="Google")[0] == 200
    answer = world.client.get_guest_attributes({"name": f"{ZONE}/nodes/t1", "query_path": "job/"})
    assert [item.value for item in answer.guest_attributes[0].query_value.items] == ["17"]


def test_guest_attributes_are_refused_where_they_are_not_enabled(practice: Any) -> None:
    world = practice()
    world.create("t1")
    path = f"{VM}/computeMetadata/v1/instance/guest-attributes/job/exit-code"
    assert world.http("PUT", path, "17", Metadata_Flavor="Google")[0] == 403


def test_every_reply_is_dated_in_emulated_time(practice: Any) -> None:
    world = practice()
    world.clock.sleep(3600)
    headers = world.http("GET", "/emulator/status")[2]
    assert parsedate_to_datetime(headers["Date"]) == datetime(2026, 11, 20, 10, tzinfo=timezone.utc)
    assert headers["tpuctl-emulator-time"] == "2026-11-20T10:00:00.000000Z"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", ""])
def test_a_name_that_was_rebound_to_loopback_is_refused(practice: Any, host: str) -> None:
    assert practice().http("GET", "/emulator/status", Host=host)[0] == 403


@pytest.mark.parametrize(
    ("verb", "path", "body", "status"),
    [
        ("POST", f"/v2/{ZONE}/nodes?nodeId=t1", "{", 400),
        ("POST", f"/v2/{ZONE}/nodes?nodeId=t1", "[]", 400),
        ("POST", f"/v2/{ZONE}/nodes?nodeId=t1", '{"a":' * 100_000, 400),
        ("POST", f"/v2/{ZONE}/nodes?nodeId=t1", {**NODE, "colour": "red"}, 400),
        ("POST", f"/v2/{ZONE}/nodes?nodeId=t1&colour=red", NODE, 400),
        ("POST", f"/v2/{ZONE}/nodes?nodeId=t1", NODE, 200),
        ("GET", f"/v2/{ZONE}/nodes?pageSize=-1", None, 400),
        ("GET", f"/v2/{ZONE}/nodes?pageToken=%FF", None, 400),
        ("PUT", f"/v2/{ZONE}/nodes/t1", None, 400),
        ("GET", "/v2/nonsense", None, 400),
        ("GET", f"/v2/{ZONE}/nodes/t1", None, 404),
    ],
)
def test_the_api_over_http_answers_as_the_real_one(
    practice: Any, verb: str, path: str, body: Any, status: int
) -> None:
    world = practice()
    bearer = f"Bearer {world.token()}"
    assert world.http(verb, path, body, Authorization=bearer)[0] == status


def test_googles_storage_client_learns_where_a_bucket_is(
    practice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = pytest.importorskip("google.cloud.storage")
    world = practice({**SMALL, "buckets": {"photos": {"location": "us-central1"}}})
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", world.emulator.http)
    client = storage.Client.create_anonymous_client()
    assert client.get_bucket("photos").location == "US-CENTRAL1"
    with pytest.raises(exceptions.NotFound):
        client.get_bucket("others")


@pytest.mark.parametrize(
    ("rule", "path", "names"),
    [
        ("GET /b/{bucket}/o/{object}", "/b/x/o/a%2Fb", {"bucket": "x", "object": "a/b"}),
        ("GET /b/{bucket}/o/{object}", "/b/x/o/a/b", None),
        ("GET /b/{bucket}", "/b/", None),
        ("GET /{name=p/*/n/*}:stop", "/p/a:b/n/c:stop", {"name": "p/a:b/n/c"}),
        ("GET /{node.name=p/*}", "/p/a", {"node_name": "p/a"}),
        ("GET /v1{path=**}", "/v1", {"path": ""}),
        ("GET /v1{path=**}", "/v1/a/b", {"path": "/a/b"}),
        ("POST /v1{path=**}", "/v1/a", None),
    ],
)
def test_a_route_matches_paths_as_googles_reference_writes_them(
    rule: str, path: str, names: dict[str, str] | None
) -> None:
    assert Route(rule, lambda _: Reply()).match("GET", path) == names
