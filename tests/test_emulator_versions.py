"""The versions of the Cloud TPU API over HTTP and gRPC, in the forms in which clients ask."""

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

pytest.importorskip("google.cloud.tpu_v2", reason="google-cloud-tpu is not installed")

from google.api_core import exceptions
from google.cloud import tpu_v2alpha1
from google.cloud.tpu_v2alpha1.services.tpu.transports import TpuGrpcTransport

from tests.emulator_world import RUNTIME, SMALL, ZONE

NODE = {"acceleratorType": "v5litepod-8", "runtimeVersion": RUNTIME}
NODES = f"{ZONE}/nodes"
QUEUE = f"{ZONE}/queuedResources"

Ask = Callable[..., tuple[int, Any]]


@pytest.fixture
def world(practice: Any) -> Any:
    return practice()


@pytest.fixture
def ask(world: Any) -> Ask:
    """Ask with the token of the emulator; paths are those below the server."""

    def ask(verb: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        headers.setdefault("Authorization", f"Bearer {world.emulator.secret}")
        status, answer, _ = world.http(verb, path, body, **headers)
        return status, answer

    return ask


def queued(spec: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"tpu": {"nodeSpec": {"parent": ZONE, "node": NODE, **spec}}, **fields}


def ready(world: Any, ask: Ask, name: str = "t1", **fields: Any) -> None:
    assert ask("POST", f"/v2/{NODES}?nodeId={name}", {**NODE, **fields})[0] == 200
    world.clock.sleep(120)


@pytest.mark.parametrize(
    "query",
    [
        "alt=json&prettyPrint=false&key=k&quotaUser=me&uploadType=media&upload_protocol=raw",
        "$alt=json;enum-encoding=int&$.xgafv=2&$prettyPrint=0&access_token=x&oauth_token=y",
        "pageSize=5&callback=f",
        "page_size=5",
    ],
)
@pytest.mark.parametrize("version", ["v1", "v1alpha1", "v2", "v2alpha1"])
def test_standard_parameters_are_understood_in_every_version(
    ask: Ask, version: str, query: str
) -> None:
    assert ask("GET", f"/{version}/{NODES}?{query}") == (200, {})
    query += "&fields=acceleratorTypes/type"
    status, types = ask("GET", f"/{version}/{ZONE}/acceleratorTypes?{query}")
    assert (status, types["acceleratorTypes"][0]) == (200, {"type": "v5litepod-16"})


def test_version_1_has_no_nodes_and_says_so(ask: Ask) -> None:
    status, answer = ask("POST", f"/v1/{NODES}?nodeId=t1", NODE)
    assert status == 400
    assert "The emulator does not support POST /v1/" in answer["error"]["message"]
    assert ask("GET", f"/v1/{ZONE}/tensorflowVersions") == (200, {})
    assert ask("GET", f"/v1/{NODES}", Authorization="")[0] == 401


def test_quotas_are_listed_over_http(ask: Ask) -> None:
    path = "/v1/projects/p/locations/global/services/tpu.googleapis.com/quotaInfos"
    status, answer = ask("GET", f"{path}?pageSize=1&$alt=json")
    assert (status, answer["quotaInfos"][0]["service"]) == (200, "tpu.googleapis.com")
    assert answer["nextPageToken"]


def test_an_operation_that_runs_says_that_it_is_not_done(world: Any, ask: Ask) -> None:
    operation = ask("POST", f"/v2/{NODES}?nodeId=t1", NODE)[1]
    assert operation["done"] is False
    assert ask("GET", f"/v2/{ZONE}/operations")[1]["operations"] == [operation]
    world.clock.sleep(120)
    ended = ask("GET", f"/v2/{operation['name']}")[1]
    assert (ended["done"], ended["response"]["state"]) == (True, "READY")
    assert ended["response"]["@type"].endswith("tpu.v2.Node")


ALPHA_NODE = {
    **NODE,
    "autocheckpointEnabled": True,
    "bootDiskConfig": {"diskSizeGb": "100", "customerEncryptionKey": {"kmsKeyName": "k"}},
    "dataDisks": [{"sourceDisk": "d", "workerIds": "0"}],
    "schedulingConfig": {"provisioningModel": "SPOT"},
}


def test_v2alpha1_has_fields_that_v2_lacks(world: Any, ask: Ask) -> None:
    assert ask("POST", f"/v2/{NODES}?nodeId=t1", ALPHA_NODE)[0] == 400
    status, operation = ask("POST", f"/v2alpha1/{NODES}?nodeId=t1&requestId=r", ALPHA_NODE)
    assert (status, operation["metadata"]["apiVersion"]) == (200, "v2alpha1")
    new, old = (ask("GET", f"/{version}/{NODES}/t1")[1] for version in ("v2alpha1", "v2"))
    assert new["autocheckpointEnabled"] is True
    assert new["bootDiskConfig"]["diskSizeGb"] == "100"
    assert new["dataDisks"][0]["workerIds"] == ["0"]
    assert "autocheckpointEnabled" not in old
    assert old["bootDiskConfig"] == {"customerEncryptionKey": {"kmsKeyName": "k"}}
    assert world.client.get_node(name=f"{NODES}/t1").runtime_version == RUNTIME


def test_the_spot_model_of_v2alpha1_is_spot(practice: Any) -> None:
    world = practice({"zones": {"us-central1-a": {"quota_chips": 0, "spot_quota_chips": 8}}})
    bearer = f"Bearer {world.emulator.secret}"
    path = f"/v2alpha1/{NODES}?nodeId=t1"
    assert world.http("POST", path, NODE, Authorization=bearer)[0] == 429
    assert world.http("POST", path, ALPHA_NODE, Authorization=bearer)[0] == 200


@pytest.mark.parametrize(
    ("version", "params"), [("v2", "multisliceParams"), ("v2alpha1", "multiNodeParams")]
)
def test_each_version_has_its_own_name_for_slices(
    world: Any, ask: Ask, version: str, params: str
) -> None:
    body = queued({params: {"nodeCount": 2, "nodeIdPrefix": "s"}})
    assert ask("POST", f"/{version}/{QUEUE}?queuedResourceId=q", body)[0] == 200
    world.clock.sleep(300)
    assert sorted(node.name[-3:] for node in world.client.list_nodes(parent=ZONE)) == ["s-0", "s-1"]
    for shown, name in (("v2", "multisliceParams"), ("v2alpha1", "multiNodeParams")):
        specs = ask("GET", f"/{shown}/{QUEUE}/q")[1]["tpu"]["nodeSpec"]
        assert [(spec["nodeId"], spec[name]["nodeCount"]) for spec in specs] == [
            ("s-0", 2),
            ("s-1", 2),
        ]
    others = {"v2": "multiNodeParams", "v2alpha1": "multisliceParams"}
    body = queued({others[version]: {"nodeCount": 2}})
    assert ask("POST", f"/{version}/{QUEUE}?queuedResourceId=q2", body)[0] == 400


def test_a_flex_start_ends_when_its_time_is_up(world: Any, ask: Ask) -> None:
    times = {"provisioningModel": "FLEX_START", "runDuration": {"maxRunDuration": "3600s"}}
    body = queued({"nodeId": "n1"}, **times)
    assert ask("POST", f"/v2alpha1/{QUEUE}?queuedResourceId=q", body)[0] == 200
    world.clock.sleep(600)
    assert world.queued_state("q") == "ACTIVE"
    world.clock.sleep(3600)
    assert world.queued_state("q") == "SUSPENDED"
    assert list(world.client.list_nodes(parent=ZONE)) == []


@pytest.mark.parametrize("force", ["true", "True", "1", "yes"])
def test_a_queued_resource_is_deleted_by_force(world: Any, ask: Ask, force: str) -> None:
    ask("POST", f"/v2/{QUEUE}?queuedResourceId=q", queued({"nodeId": "n1"}))
    world.clock.sleep(300)
    assert ask("DELETE", f"/v2/{QUEUE}/q?force=False")[0] == 400
    assert ask("DELETE", f"/v2/{QUEUE}/q?force={force}")[0] == 200


@pytest.mark.parametrize(
    "path", ["networkConfig.enableExternalIps", "network_config.enable_external_ips"]
)
def test_external_addresses_are_taken_and_given_back(world: Any, ask: Ask, path: str) -> None:
    ready(world, ask, networkConfig={"enableExternalIps": True})
    for is_open in (False, True):
        change = {"networkConfig": {"enableExternalIps": is_open}}
        assert ask("PATCH", f"/v2/{NODES}/t1?updateMask={path}", change)[0] == 200
        world.clock.sleep(30)
        (endpoint,) = world.node("t1").network_endpoints
        assert bool(endpoint.access_config.external_ip) == is_open
        assert endpoint.ip_address.startswith("127.")


def test_a_disk_is_attached(world: Any, ask: Ask) -> None:
    ready(world, ask)
    disk = {"sourceDisk": "projects/p/zones/z/disks/d", "mode": 2}
    assert ask("PATCH", f"/v2/{NODES}/t1?updateMask=data_disks", {"dataDisks": [disk]})[0] == 200
    world.clock.sleep(30)
    assert ask("GET", f"/v2/{NODES}/t1")[1]["dataDisks"] == [{**disk, "mode": "READ_ONLY"}]


@pytest.mark.parametrize("workers", [[""], [], "", ["0"]])
def test_guest_attributes_of_all_workers_are_asked_for_as_gcloud_does(
    world: Any, ask: Ask, workers: Any
) -> None:
    ready(world, ask)
    path = f"/v2/{NODES}/t1:getGuestAttributes"
    answer = ask("POST", path, {"workerIds": workers, "queryPath": None})[1]
    assert len(answer["guestAttributes"]) == 1


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"colour": 1}, "Unknown name \"colour\" at 'node': Cannot find field."),
        ({"description": ["a"]}, "Proto field is not repeating, cannot start list."),
        ({"description": {}}, "Starting an object on a scalar field."),
        ({"description": 5}, "Invalid value at 'node.description' (TYPE_STRING), 5"),
        ({"labels": []}, "Proto field is not repeating"),
        ({"labels": {"a": 1}}, "Invalid value at 'node.labels' (TYPE_STRING), 1"),
        ({"schedulingConfig": {"spot": "maybe"}}, "(TYPE_BOOLEAN), \"maybe\""),
        ({"acceleratorConfig": {"type": "V99"}}, "node.accelerator_config.type"),
        ({"dataDisks": [{"colour": 1}]}, "at 'node.data_disks[0]'"),
        ({"networkConfig": {"queueCount": 1.5}}, "(TYPE_INT32), 1.5"),
        ({"description": "\ud800"}, "Invalid value at 'node.description'"),
    ],
)  # fmt: skip
def test_a_body_that_is_not_valid_is_refused_in_googles_words(
    ask: Ask, body: dict[str, Any], text: str
) -> None:
    status, answer = ask("POST", f"/v2/{NODES}?nodeId=t1", {**NODE, **body})
    assert status == 400
    assert text in answer["error"]["message"]
    assert answer["error"]["details"][0]["fieldViolations"][0]["field"].startswith("node")


def test_null_defaults_and_snake_case_are_read_as_google_does(ask: Ask) -> None:
    body: dict[str, Any] = {"accelerator_type": "v5litepod-8", "runtimeVersion": RUNTIME}
    body |= {
        "description": "",
        "schedulingConfig": {"spot": "false"},
        "tags": "one",
        "labels": None,
    }
    assert ask("POST", f"/v2/{NODES}?node_id=t1", body)[0] == 200
    node = ask("GET", f"/v2/{NODES}/t1")[1]
    assert node["tags"] == ["one"]
    assert {"description", "labels", "healthDescription", "symptoms"}.isdisjoint(node)


def test_a_chunked_body_is_read(world: Any, ask: Ask) -> None:
    body = '{"acceleratorType": "v5litepod-8", "runtimeVersion": "' + RUNTIME + '"}'
    chunked = f"{len(body):x}\r\n{body}\r\n0\r\n\r\n"
    path = f"/v2/{NODES}?nodeId=t1"
    assert ask("POST", path, chunked, Transfer_Encoding="chunked")[0] == 200
    assert world.node("t1").accelerator_type == "v5litepod-8"


def test_an_operation_is_cancelled_and_forgotten(world: Any, ask: Ask) -> None:
    name = ask("POST", f"/v2/{NODES}?nodeId=t1", NODE)[1]["name"]
    assert ask("POST", f"/v2/{name}:cancel", {}) == (200, {})
    assert ask("GET", f"/v2/{name}")[1]["error"]["code"] == 1
    with pytest.raises(exceptions.NotFound):
        world.node("t1")
    assert ask("POST", f"/v2/{name}:cancel") == (200, {})
    world.client.delete_operation({"name": name})
    assert ask("GET", f"/v2/{name}")[0] == 404


def test_googles_alpha_client_gets_messages_of_its_own_version(world: Any) -> None:
    client = tpu_v2alpha1.TpuClient(transport=TpuGrpcTransport(channel=world.channel))
    params = tpu_v2alpha1.QueuedResource.Tpu.NodeSpec.MultiNodeParams(node_count=2)
    node = tpu_v2alpha1.Node(accelerator_type="v5litepod-8", runtime_version=RUNTIME)
    spec = {"parent": ZONE, "node": node, "multi_node_params": params}
    operation = client.create_queued_resource(
        parent=ZONE,
        queued_resource_id="q",
        queued_resource=tpu_v2alpha1.QueuedResource(tpu={"node_spec": [spec]}),
    )
    world.clock.sleep(300)
    made = operation.result()
    assert isinstance(made, tpu_v2alpha1.QueuedResource)
    assert made.tpu.node_spec[0].multi_node_params.node_count == 2
    assert list(client.list_reservations({"parent": ZONE})) == []
    client.simulate_maintenance_event({"name": f"{NODES}/q-0"})
    world.clock.sleep(10)
    assert world.node("q-0").state.name == "REPAIRING"
    world.clock.sleep(900)
    client.perform_maintenance_queued_resource({"name": f"{QUEUE}/q", "node_names": ["q-1"]})
    world.clock.sleep(10)
    assert [world.node(f"q-{index}").state.name for index in (0, 1)] == ["READY", "REPAIRING"]


def test_a_time_of_the_clients_own_clock_is_not_over_before_it_began(practice: Any) -> None:
    """gcloud counts --valid-until-duration from the real time, and emulated time runs faster."""
    ahead = datetime.now(timezone.utc) + timedelta(days=2)
    world = practice(SMALL, start=ahead)
    until = (datetime.now(timezone.utc) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    body = queued({"nodeId": "n1"}, queueingPolicy={"validUntilTime": until})
    bearer = f"Bearer {world.emulator.secret}"
    path = f"/v2/{QUEUE}?queuedResourceId=q"
    assert world.http("POST", path, body, Authorization=bearer)[0] == 200
    world.clock.sleep(600)
    assert world.queued_state("q") == "ACTIVE"
    body["queueingPolicy"] = {"validUntilTime": "2020-01-01T00:00:00Z"}
    assert world.http("POST", f"{path}2", body, Authorization=bearer)[0] == 400
