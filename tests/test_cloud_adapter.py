"""The adapter over real gRPC, with Google's own client and a service that says what it is told."""

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone

import pytest
from google.cloud import tpu_v2
from google.longrunning import operations_pb2

from tests.tpu_service import TpuService
from tpuctl.clock import ManualClock
from tpuctl.cloud._google import connect_google
from tpuctl.cloud.api import TpuApi
from tpuctl.cloud.labels import CREATE_ID
from tpuctl.cloud.models import Endpoint, NodeRequest

NOON = datetime(2026, 11, 20, 12, 0, tzinfo=timezone.utc)
ZONE = "projects/practice/locations/us-central1-a"
REQUEST = NodeRequest(
    "t1", "us-central1-a", "v5litepod-8", "v2-alpha-tpuv5-lite", "0a1b" * 8, labels={"team": "a"}
)


@pytest.fixture
def service() -> TpuService:
    return TpuService()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOON)


@pytest.fixture
def api(service: TpuService, clock: ManualClock) -> Iterator[TpuApi]:
    with service.serve() as address:
        yield connect_google(None, endpoint=address, clock=clock)


def operation(verb: str = "create", **fields) -> operations_pb2.Operation:
    made = operations_pb2.Operation(name=f"{ZONE}/operations/op-1", **fields)
    metadata = tpu_v2.OperationMetadata(verb=verb, target=f"{ZONE}/nodes/t1")
    made.metadata.Pack(tpu_v2.OperationMetadata.pb(metadata))
    return made


def test_a_node_is_read_with_all_that_we_know_of_it(service: TpuService, api: TpuApi) -> None:
    service.answer(
        "GetNode",
        tpu_v2.Node(
            name=f"{ZONE}/nodes/t1",
            id=2**63 - 1,
            state="READY",
            health="HEALTHY",
            accelerator_type="v5litepod-8",
            create_time=NOON,
            scheduling_config={"spot": True},
            network_endpoints=[
                {"ip_address": "10.0.0.2", "access_config": {"external_ip": "34.1.2.3"}},
                {},
            ],
            queued_resource=f"{ZONE}/queuedResources/q1",
            labels={"team": "a"},
            symptoms=[{"symptom_type": "HBM_OUT_OF_MEMORY", "worker_id": "3", "details": "full"}],
        ),
    )
    node = api.get_node("t1", zone="us-central1-a")
    assert (node.name, node.zone, node.id) == ("t1", "us-central1-a", str(2**63 - 1))
    assert (node.state, node.health, node.created) == ("READY", "HEALTHY", NOON)
    assert node.endpoints == (Endpoint("10.0.0.2", "34.1.2.3"), Endpoint(None, None))
    assert (node.spot, node.queued_resource, node.labels) == (True, "q1", {"team": "a"})
    assert node.symptoms == ("HBM_OUT_OF_MEMORY on worker 3: full",)


def test_a_create_sends_everything_once_with_our_label(service: TpuService, api: TpuApi) -> None:
    service.answer("CreateNode", operation())
    started = api.create_node(REQUEST)
    assert (started.name, started.verb, started.done) == (
        f"{ZONE}/operations/op-1",
        "create",
        False,
    )
    [(_, body)] = service.requests
    sent = tpu_v2.CreateNodeRequest.deserialize(body)
    assert (sent.parent, sent.node_id) == (ZONE, "t1")
    assert dict(sent.node.labels) == {"team": "a", CREATE_ID: REQUEST.create_id}
    assert sent.node.accelerator_type == "v5litepod-8"
    assert sent.node.network_config.enable_external_ips


def test_time_is_what_the_service_says(
    service: TpuService, api: TpuApi, clock: ManualClock
) -> None:
    service.answer("GetNode", tpu_v2.Node(name=f"{ZONE}/nodes/t1"))
    service.headers = (("tpuctl-emulator-time", "2026-11-21T12:00:00.250000Z"),)
    assert api.clock.now() == NOON
    api.get_node("t1", zone="us-central1-a")
    assert api.clock.now() == NOON + timedelta(days=1, seconds=0.25)
    clock.sleep(5)
    assert api.clock.now() == NOON + timedelta(days=1, seconds=5.25)
