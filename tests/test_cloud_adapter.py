"""The adapter over real gRPC, with Google's own client and a service that says what it is told."""

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import grpc
import pytest
from google.cloud import cloudquotas_v1, tpu_v2
from google.cloud.location import locations_pb2
from google.longrunning import operations_pb2
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2 as details

from tests.tpu_service import Refusal, TpuService
from tpuctl.clock import ManualClock, RetryPolicy
from tpuctl.cloud import models
from tpuctl.cloud._google_api import GoogleTpuApi
from tpuctl.cloud.api import TpuApi
from tpuctl.cloud.connect import connect
from tpuctl.cloud.models import ALL_ZONES, LABEL_CREATE_ID, DataDisk, Endpoint, NodeRequest
from tpuctl.errors import (
    InvalidInputError,
    NoCapacityError,
    NotFoundError,
    QuotaExceededError,
    RateLimitedError,
    TpuctlError,
    UnavailableError,
)

DISK = "projects/p/zones/z/disks/d1"
NOON = datetime(2026, 11, 20, 12, 0, tzinfo=timezone.utc)
ZONE = "projects/practice/locations/us-central1-a"
REQUEST = NodeRequest(
    "t1", "us-central1-a", "v5litepod-8", "v2-alpha-tpuv5-lite", "0a1b" * 8, labels={"team": "a"}
)
NODE = models.Node("t1", "us-central1-a", "7", "v5litepod-8", "r", "READY", "HEALTHY", NOON)
CALLS: dict[str, Callable[[TpuApi], Any]] = {
    "CreateNode": lambda api: api.create_node(REQUEST),
    "GetNode": lambda api: api.get_node("t1", zone="us-central1-a"),
    "ListNodes": lambda api: api.list_nodes(ALL_ZONES),
    "DeleteNode": lambda api: api.delete_node("t1", zone="us-central1-a"),
    "UpdateNode": lambda api: api.set_metadata(NODE, {"a": "b"}),
    "GetGuestAttributes": lambda api: api.guest_attributes(NODE, "hostkeys/"),
    "CreateQueuedResource": lambda api: api.create_queued_resource(REQUEST),
    "GetQueuedResource": lambda api: api.get_queued_resource("t1", zone="us-central1-a"),
    "ListQueuedResources": lambda api: api.list_queued_resources("us-central1-a"),
    "DeleteQueuedResource": lambda api: api.delete_queued_resource(
        "t1", zone="us-central1-a", force=True
    ),
    "GetOperation": lambda api: api.get_operation(f"{ZONE}/operations/t1"),
    "ListLocations": lambda api: api.list_zones(),
    "ListAcceleratorTypes": lambda api: api.list_accelerator_types("us-central1-a"),
    "ListQuotaInfos": lambda api: api.list_quotas(),
}
REPEATED = set(CALLS) - {"CreateNode", "DeleteNode", "DeleteQueuedResource"}


@pytest.fixture
def service() -> TpuService:
    return TpuService()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOON)


@pytest.fixture
def api(service: TpuService, clock: ManualClock) -> Iterator[TpuApi]:
    with service.serve() as address:
        yield connect(None, endpoint=address, clock=clock)


def operation(verb: str = "create", **fields) -> operations_pb2.Operation:
    made = operations_pb2.Operation(name=f"{ZONE}/operations/op-1", **fields)
    metadata = tpu_v2.OperationMetadata(verb=verb, target=f"{ZONE}/nodes/t1")
    made.metadata.Pack(tpu_v2.OperationMetadata.pb(metadata))
    return made


def node(name: str = "t1", **fields) -> tpu_v2.Node:
    return tpu_v2.Node(name=f"{ZONE}/nodes/{name}", **fields)


def test_every_call_of_the_port_is_tried_here() -> None:
    calls = [name for name in vars(TpuApi) if not name.startswith("_")]
    assert len(CALLS) == len(calls) - 2, "and a bucket, and why_gone, which sends nothing"


def test_a_node_is_read_with_all_that_we_know_of_it(service: TpuService, api: TpuApi) -> None:
    service.answer(
        "GetNode",
        node(
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
            data_disks=[{"source_disk": DISK}, {"source_disk": DISK, "mode": "READ_ONLY"}],
            symptoms=[{"symptom_type": "HBM_OUT_OF_MEMORY", "worker_id": "3", "details": "full"}],
        ),
    )
    read = api.get_node("t1", zone="us-central1-a")
    assert (read.name, read.zone, read.id) == ("t1", "us-central1-a", str(2**63 - 1))
    assert (read.state, read.health, read.created) == ("READY", "HEALTHY", NOON)
    assert read.endpoints == (Endpoint("10.0.0.2", "34.1.2.3"), Endpoint(None, None))
    assert (read.spot, read.queued_resource, read.labels) == (True, "q1", {"team": "a"})
    assert read.data_disks == (DataDisk(DISK), DataDisk(DISK, read_only=True))
    assert read.symptoms == ("HBM_OUT_OF_MEMORY on worker 3: full",)


def test_a_state_that_is_newer_than_we_are_is_unknown(service: TpuService, api: TpuApi) -> None:
    message = tpu_v2.Node.pb(node())
    message.state = 77
    service.answer("GetNode", message)
    assert api.get_node("t1", zone="us-central1-a").state == "UNKNOWN"


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
    assert dict(sent.node.labels) == {"team": "a", LABEL_CREATE_ID: REQUEST.create_id}
    assert sent.node.accelerator_type == "v5litepod-8"
    assert sent.node.network_config.enable_external_ips


def test_a_finished_create_carries_its_node(service: TpuService, api: TpuApi) -> None:
    finished = operation(done=True)
    finished.response.Pack(tpu_v2.Node.pb(node(state="READY", id=7)))
    service.answer("GetOperation", finished)
    ended = api.get_operation(finished.name)
    assert ended.node is not None
    assert (ended.done, ended.node.name, ended.node.id) == (True, "t1", "7")


def test_a_stockout_arrives_in_the_operation(service: TpuService, api: TpuApi) -> None:
    text = 'There is no more capacity in the zone "us-central1-a"; you can try in another zone'
    service.answer("GetOperation", operation(done=True, error=Refusal(8, text).status()))
    error = api.get_operation(f"{ZONE}/operations/op-1").error
    assert isinstance(error, NoCapacityError)
    assert str(error) == f"Could not create t1 in us-central1-a: {text}"


def test_a_queued_resource_waits_for_a_node_of_the_same_name(
    service: TpuService, api: TpuApi
) -> None:
    service.answer("CreateQueuedResource", operation())
    api.create_queued_resource(
        NodeRequest("t1", "us-central1-a", "v6e-4", "v2-alpha-tpuv6e", "0a1b" * 8, spot=True),
        valid_for_s=3600,
    )
    sent = tpu_v2.CreateQueuedResourceRequest.deserialize(service.requests[0][1])
    queued = sent.queued_resource
    [spec] = queued.tpu.node_spec
    assert (sent.queued_resource_id, spec.node_id, spec.parent) == ("t1", "t1", ZONE)
    assert sent.request_id.replace("-", "") == "0a1b" * 8
    assert "spot" in queued
    assert spec.node.labels[LABEL_CREATE_ID] == "0a1b" * 8
    assert queued.queueing_policy.valid_until_duration.total_seconds() == 3600


def test_a_failed_queued_resource_says_why(service: TpuService, api: TpuApi) -> None:
    queued = tpu_v2.QueuedResource(
        name=f"{ZONE}/queuedResources/q1",
        tpu={
            "node_spec": [
                {"node_id": "t1", "node": {"accelerator_type": "v6e-4"}},
                {"multislice_params": {"node_count": 2}},
                {"multislice_params": {"node_count": 1, "node_id_prefix": "s"}},
            ]
        },
        spot={},
        state={"state": "FAILED", "state_initiator": "SERVICE"},
    )
    message = tpu_v2.QueuedResource.pb(queued)
    quota = details.QuotaFailure(violations=[{"description": "Limit 0 in zone us-central1-a"}])
    message.state.failed_data.error.CopyFrom(Refusal(8, "Exhausted.", quota).status())
    service.answer("GetQueuedResource", message)
    read = api.get_queued_resource("q1", zone="us-central1-a")
    assert (read.state, read.stopped_by, read.spot) == ("FAILED", "service", True)
    assert read.nodes == ("t1", "q1-0", "q1-1", "s-0")
    assert isinstance(read.error, QuotaExceededError)


def test_a_list_has_every_page_and_the_zones_that_were_away(
    service: TpuService, api: TpuApi
) -> None:
    service.answer(
        "ListNodes",
        tpu_v2.ListNodesResponse(nodes=[node("a")], next_page_token="2", unreachable=["us-x"]),
        tpu_v2.ListNodesResponse(
            nodes=[node("b")], unreachable=["projects/practice/locations/us-y", "us-x"]
        ),
    )
    listing = api.list_nodes(ALL_ZONES)
    assert [item.name for item in listing.items] == ["a", "b"]
    assert listing.unreachable_zones == ("us-x", "us-y")
    second = tpu_v2.ListNodesRequest.deserialize(service.requests[1][1])
    assert (second.page_token, second.parent) == ("2", "projects/practice/locations/-")


def test_zones_and_types_are_listed(service: TpuService, api: TpuApi) -> None:
    service.answer(
        "ListLocations",
        locations_pb2.ListLocationsResponse(
            locations=[{"location_id": "us-x"}], next_page_token="2"
        ),
        locations_pb2.ListLocationsResponse(locations=[{"location_id": "us-y"}]),
    )
    service.answer(
        "ListAcceleratorTypes",
        tpu_v2.ListAcceleratorTypesResponse(accelerator_types=[{"type_": "v6e-4"}]),
    )
    assert api.list_zones() == ("us-x", "us-y")
    assert api.list_accelerator_types("us-x") == ("v6e-4",)


def test_no_zones_at_all_is_no_endless_loop(service: TpuService, api: TpuApi) -> None:
    service.answer("ListLocations", locations_pb2.ListLocationsResponse())
    assert api.list_zones() == ()


def test_a_quota_is_one_line_for_each_place(service: TpuService, api: TpuApi) -> None:
    def info(quota_id: str, *entries: dict[str, Any]) -> dict[str, Any]:
        return {"quota_id": quota_id, "dimensions_infos": entries}

    default = {"details": {"value": 4}, "applicable_locations": ["us-x", "us-y"]}
    service.answer(
        "ListQuotaInfos",
        cloudquotas_v1.ListQuotaInfosResponse(
            quota_infos=[
                info(
                    "TPUV6EPreemptiblePerProjectPerZoneForTPUAPI",
                    {"dimensions": {"zone": "us-x"}, "details": {"value": 16}},
                    default,
                ),
                info(
                    "TPUV5PPerProjectPerRegionForTPUAPI",
                    {"dimensions": {"region": "us"}, "details": {}},
                ),
                info("CreateNodePerMinutePerProject", default),
            ]
        ),
    )
    quotas = api.list_quotas()
    assert [(q.generation, q.spot, q.place, q.limit, q.counts) for q in quotas] == [
        ("v6e", True, "us-x", 16, "chips"),
        ("v6e", True, "us-y", 4, "chips"),
        ("v5p", False, "us", 0, "cores"),
    ]
    assert quotas[0].pool == "TPUV6EPreemptible"


@pytest.mark.slow
@pytest.mark.parametrize("method", CALLS)
def test_every_code_of_every_call_is_an_error_that_names_its_object(
    service: TpuService, api: TpuApi, method: str
) -> None:
    for code in [code for code in grpc.StatusCode if code.value[0]]:
        service.answer(method, Refusal(code.value[0], f"Because {code.name}."))
        with pytest.raises(TpuctlError, match=rf"^Could not .*: Because {code.name}\.$") as caught:
            CALLS[method](api)
        assert "t1" in str(caught.value) or "List" in method
        assert caught.value.__suppress_context__, "the cause would repeat unredacted words"


@pytest.mark.parametrize("method", CALLS)
def test_only_what_may_be_repeated_is_repeated(
    service: TpuService, api: TpuApi, method: str
) -> None:
    service.answer(method, Refusal(14, "Away."))
    with pytest.raises(UnavailableError):
        CALLS[method](api)
    assert (service.count(method) > 1) == (method in REPEATED)


def test_a_read_gets_over_a_service_that_was_away(service: TpuService, api: TpuApi) -> None:
    service.answer("GetNode", Refusal(14, "Away."), Refusal(13, "Again."), node(state="READY"))
    assert api.get_node("t1", zone="us-central1-a").state == "READY"


def test_a_missing_node_is_not_asked_for_twice(service: TpuService, api: TpuApi) -> None:
    service.answer("GetNode", Refusal(5, "Resource was not found"))
    with pytest.raises(NotFoundError):
        api.get_node("t1", zone="us-central1-a")
    assert service.count("GetNode") == 1


def rate_limit(seconds: int) -> Refusal:
    return Refusal(
        8,
        "Quota exceeded for quota metric 'CreateNode requests'.",
        details.ErrorInfo(reason="RATE_LIMIT_EXCEEDED"),
        details.RetryInfo(retry_delay=Duration(seconds=seconds)),
    )


def test_a_create_over_the_rate_waits_as_long_as_it_was_told(
    service: TpuService, api: TpuApi, clock: ManualClock
) -> None:
    service.answer("CreateNode", rate_limit(40), operation())
    api.create_node(REQUEST)
    assert clock.now() >= NOON + timedelta(seconds=40)
    assert service.count("CreateNode") == 2


def test_a_delete_over_the_rate_is_given_back_to_its_caller(
    service: TpuService, api: TpuApi, clock: ManualClock
) -> None:
    service.answer("DeleteNode", rate_limit(40))
    with pytest.raises(RateLimitedError) as caught:
        api.delete_node("t1", zone="us-central1-a")
    assert caught.value.retry_after_s == 40
    assert (clock.now(), service.count("DeleteNode")) == (NOON, 1)


def test_a_service_that_hangs_is_left_at_the_deadline(service: TpuService, api: TpuApi) -> None:
    from tpuctl.cloud._google_channel import Connection
    from tpuctl.cloud.endpoint import parse_endpoint
    from tpuctl.cloud.retry import RequestLimits
    from tpuctl.cloud.service_clock import ServiceClock

    hasty = RequestLimits(0.2, 0.2, RetryPolicy(0.1, 0.1, 0.1), 0.1)
    connection = Connection(parse_endpoint(api.endpoint), None, ServiceClock(ManualClock(NOON)))
    impatient = GoogleTpuApi(connection, project="practice", limits=hasty)
    service.answer("GetNode", service.hang)
    with pytest.raises(UnavailableError, match=r"Could not read TPU t1.*Deadline Exceeded"):
        impatient.get_node("t1", zone="us-central1-a")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "a\n", "ü", "x" * 200, "a?b#c"])
def test_a_name_that_would_change_the_address_is_refused(
    service: TpuService, api: TpuApi, name: str
) -> None:
    for call in (api.get_node, api.delete_node, api.get_queued_resource):
        with pytest.raises(InvalidInputError):
            call(name, zone="us-central1-a")
        with pytest.raises(InvalidInputError):
            call("t1", zone=name)
    assert service.requests == []


def test_an_answer_that_is_no_message_is_an_error_of_ours(service: TpuService, api: TpuApi) -> None:
    service.answer("GetNode", b"\xff\xff\xff\xff")
    with pytest.raises(TpuctlError, match="Could not read TPU t1"):
        api.get_node("t1", zone="us-central1-a")
