"""Nodes: what the service does, and what it refuses, seen by Google's own client."""

from ipaddress import ip_address, ip_network
from typing import Any, cast

import pytest

pytest.importorskip("google.cloud.tpu_v2", reason="google-cloud-tpu is not installed")

import grpc
from google.api_core import exceptions
from google.cloud import tpu_v2
from google.rpc import error_details_pb2

from tests.emulator_world import PROJECT, RUNTIME, SMALL, ZONE

LARGE = {"zones": {"us-central1-a": {"types": ["v5e-8", "v5e-16"]}, "us-west1-c": {}}}


def test_a_deleted_node_holds_its_name_until_it_is_gone(practice: Any) -> None:
    world = practice()
    world.create("t1")
    world.clock.sleep(120)
    operation = world.client.delete_node(name=f"{ZONE}/nodes/t1")
    assert world.node("t1").state.name == "DELETING"
    with pytest.raises(exceptions.AlreadyExists):
        world.create("t1")
    with pytest.raises(exceptions.InvalidArgument, match="delete is not supported while in state"):
        world.client.delete_node(name=f"{ZONE}/nodes/t1")
    world.clock.sleep(30)
    assert operation.result() is not None
    first = operation.operation.name
    assert world.create("t1").operation.name != first


def test_a_node_tells_its_subnetwork_and_addresses(practice: Any) -> None:
    world = practice()
    world.create("t1")
    world.clock.sleep(120)
    node = world.node("t1")
    inside = ip_network(node.cidr_block)
    assert all(ip_address(each.ip_address) in inside for each in node.network_endpoints)
    assert node.network_config.subnetwork.endswith("/subnetworks/default")
    assert (node.scheduling_config.spot, "scheduling_config" in node) == (False, True)


def test_a_recreated_node_has_a_new_id(practice: Any) -> None:
    world = practice()
    world.create("t1")
    before = world.node("t1")
    world.client.delete_node(name=f"{ZONE}/nodes/t1")
    world.clock.sleep(30)
    world.create("t1")
    after = world.node("t1")
    assert after.id != before.id
    assert after.create_time > before.create_time


def test_deleted_while_being_created_its_creation_is_cancelled(practice: Any) -> None:
    world = practice()
    operation = world.create("t1")
    world.client.delete_node(name=f"{ZONE}/nodes/t1")
    with pytest.raises(exceptions.Cancelled):
        operation.result()


def test_a_quota_error_says_which_limit_and_carries_the_details(practice: Any) -> None:
    world = practice({"zones": {"us-central1-a": {"types": ["v5e-8"], "quota_chips": 8}}})
    world.create("t1")
    with pytest.raises(exceptions.ResourceExhausted) as refused:
        world.create("t2")
    assert refused.value.message == (
        "Quota limit 'TPUV5sLitepodPerProjectPerZoneForTPUAPI' has been exceeded."
        " Limit: 8 in zone us-central1-a."
    )
    (detail,) = refused.value.details
    assert isinstance(detail, error_details_pb2.QuotaFailure)
    assert "exhausted. Limit 8" in detail.violations[0].description


def test_spot_has_its_own_quota(practice: Any) -> None:
    zone = {"types": ["v5e-8"], "quota_chips": 8, "spot_quota_chips": 0}
    world = practice({"zones": {"us-central1-a": zone}})
    with pytest.raises(exceptions.ResourceExhausted, match="TPUV5sPreemptibleLitepod"):
        world.create("t1", scheduling_config={"spot": True})
    world.create("t1")


def test_a_preempted_node_holds_its_name_and_its_quota_but_no_chips(practice: Any) -> None:
    preempt = {"on": "node", "event": "preempt", "name": "t1", "at_s": 200}
    world = practice({**SMALL, "faults": [preempt]})
    world.create("t1", "v5litepod-16")
    world.clock.sleep(200)
    assert world.node("t1").state.name == "PREEMPTED"
    with pytest.raises(exceptions.InvalidArgument, match="update is not supported while in state"):
        world.client.update_node(
            node=tpu_v2.Node(name=f"{ZONE}/nodes/t1", labels={"a": "b"}),
            update_mask={"paths": ["labels"]},
        )
    second = world.create("t2", "v5litepod-16")
    with pytest.raises(exceptions.ResourceExhausted, match="Quota limit"):
        world.create("t3")
    world.clock.sleep(120)
    assert second.result().state.name == "READY"


def test_reserved_nodes_use_only_the_reservation(practice: Any) -> None:
    zone = {"types": ["v5e-8"], "capacity_chips": 0, "reserved_chips": 8}
    world = practice({"zones": {"us-central1-a": zone}})
    first = world.create("t1", scheduling_config={"reserved": True})
    second = world.create("t2", scheduling_config={"reserved": True})
    world.clock.sleep(120)
    assert first.result().scheduling_config.reserved
    with pytest.raises(exceptions.FailedPrecondition, match="Insufficient reserved capacity"):
        second.result()


def test_a_node_on_one_host_is_stopped_and_started_again(practice: Any) -> None:
    world = practice()
    world.create("t1")
    world.clock.sleep(120)
    addresses = world.node("t1").network_endpoints
    world.client.stop_node({"name": f"{ZONE}/nodes/t1"})
    world.clock.sleep(30)
    assert world.node("t1").state.name == "STOPPED"
    started = world.client.start_node({"name": f"{ZONE}/nodes/t1"})
    world.clock.sleep(30)
    assert started.result().state.name == "READY"
    assert world.node("t1").network_endpoints == addresses


def test_a_stopped_node_may_not_find_its_chips_again(practice: Any) -> None:
    world = practice({**SMALL, "provision_s": 10})
    world.create("t1")
    world.clock.sleep(10)
    world.client.stop_node({"name": f"{ZONE}/nodes/t1"})
    world.clock.sleep(30)
    world.create("t2", "v5litepod-16")
    started = world.client.start_node({"name": f"{ZONE}/nodes/t1"})
    world.clock.sleep(30)
    with pytest.raises(exceptions.ResourceExhausted, match="no more capacity"):
        started.result()
    assert world.node("t1").state.name == "STOPPED"


def test_a_slice_of_several_hosts_cannot_be_stopped(practice: Any) -> None:
    world = practice()
    world.create("t1", "v5litepod-16")
    world.clock.sleep(120)
    with pytest.raises(exceptions.InvalidArgument, match="several hosts"):
        world.client.stop_node({"name": f"{ZONE}/nodes/t1"})


def test_labels_change_when_the_update_is_done_and_one_update_at_a_time(practice: Any) -> None:
    world = practice()
    world.create("t1", labels={"a": "1"}, metadata={"keep": "me"})
    world.clock.sleep(120)
    change = {
        "node": tpu_v2.Node(name=f"{ZONE}/nodes/t1", labels={"b": "2"}),
        "update_mask": {"paths": ["labels"]},
    }
    operation = world.client.update_node(change)
    with pytest.raises(exceptions.Aborted, match="unable to queue the operation"):
        world.client.update_node(change)
    assert world.node("t1").labels == {"a": "1"}
    world.clock.sleep(5)
    assert operation.result().labels == {"b": "2"}
    assert world.node("t1").metadata == {"keep": "me"}


@pytest.mark.parametrize(
    ("node_id", "fields", "problem"),
    [
        ("", {}, "Invalid node id"),
        ("T1", {}, "Invalid node id"),
        ("t1-", {}, "Invalid node id"),
        ("t" * 64, {}, "Invalid node id"),
        ("t1", {"runtime_version": ""}, "runtime_version is required"),
        ("t1", {"runtime_version": "tpu-vm-tf-0.1"}, "does not exist"),
        ("t1", {"accelerator_type": "v5e-8"}, 'invalid AcceleratorType, "v5e-8"'),
        ("t1", {"accelerator_type": ""}, "is required"),
        (
            "t1",
            {"accelerator_config": {"type_": "V5LITE_POD", "topology": "2x4"}},
            "mutually exclusive",
        ),
        ("t1", {"labels": {"Upper": "x"}}, "Invalid label"),
        ("t1", {"labels": {"a": "with space"}}, "Invalid label"),
        ("t1", {"labels": {f"k{index}": "v" for index in range(65)}}, "at most 64 labels"),
        ("t1", {"description": "x" * 513}, "512"),
        ("t1", {"tags": ["-bad"]}, "Invalid tags"),
        ("t1", {"metadata": {"startup-script": "x" * (256 * 1024 + 1)}}, "too large"),
        ("t1", {"metadata": {"bad key": "x"}}, "Invalid metadata key"),
        (
            "t1",
            {"network_config": {"network": "a"}, "network_configs": [{"network": "b"}]},
            "network_configs are mutually exclusive",
        ),
        ("t1", {"scheduling_config": {"spot": True, "preemptible": True}}, "exclusive"),
        ("t1", {"scheduling_config": {"spot": True, "reserved": True}}, "reservation"),
    ],
)
def test_a_node_that_the_real_service_refuses_is_refused(
    practice: Any, node_id: str, fields: dict[str, Any], problem: str
) -> None:
    world = practice()
    known = {"accelerator_type": "v5litepod-8", "runtime_version": RUNTIME}
    with pytest.raises(exceptions.InvalidArgument) as refused:
        world.client.create_node(
            parent=ZONE, node_id=node_id, node=tpu_v2.Node(**{**known, **fields})
        )
    assert problem in refused.value.message
    assert list(world.client.list_nodes(parent=ZONE)) == []


def test_a_type_can_be_requested_by_its_topology(practice: Any) -> None:
    world = practice()
    world.create("t1", "", accelerator_config={"type_": "V5LITE_POD", "topology": "4x4"})
    assert world.node("t1").accelerator_type == "v5litepod-16"


@pytest.mark.parametrize("name", ["projects/p", f"{ZONE}/nodes/", "nodes/t1", f"{ZONE}/nodes/a/b"])
def test_an_invalid_resource_name_is_refused(practice: Any, name: str) -> None:
    with pytest.raises((exceptions.InvalidArgument, exceptions.NotFound)):
        practice().client.get_node(name=name)


def test_a_zone_that_the_project_may_not_see_is_refused_everywhere(practice: Any) -> None:
    client, hidden = practice().client, f"{PROJECT}/locations/us-nowhere-z"
    for ask in (
        lambda: client.get_node(name=f"{hidden}/nodes/t1"),
        lambda: client.list_nodes(parent=hidden),
        lambda: client.list_queued_resources(parent=hidden),
        lambda: client.list_accelerator_types(parent=hidden),
        lambda: client.delete_node(name=f"{hidden}/nodes/t1"),
        lambda: client.get_location({"name": hidden}),
    ):
        with pytest.raises(exceptions.PermissionDenied, match="is not found or access is unauth"):
            ask()


def test_projects_do_not_see_each_other(practice: Any) -> None:
    world = practice(LARGE)
    world.create("t1")
    other = "projects/other/locations/us-central1-a"
    assert list(world.client.list_nodes(parent=other)) == []
    with pytest.raises(exceptions.NotFound):
        world.client.get_node(name=f"{other}/nodes/t1")


def test_only_the_project_of_the_scenario_has_access(practice: Any) -> None:
    world = practice({**SMALL, "project": "mine"})
    with pytest.raises(exceptions.PermissionDenied, match=r"Permission 'tpu\.nodes\.list' denied"):
        world.client.list_nodes(parent=ZONE)


def test_pages_stay_complete_and_in_order_while_nodes_come_and_go(practice: Any) -> None:
    world = practice(LARGE)
    for name in ("a", "c", "e", "g"):
        world.create(name)
    first = world.client.list_nodes({"parent": f"{PROJECT}/locations/-", "page_size": 2})
    pages = first.pages
    seen = [node.name[-1] for node in next(pages).nodes]
    world.create("b")
    world.create("f")
    seen += [node.name[-1] for page in pages for node in page.nodes]
    assert seen == ["a", "c", "e", "f", "g"]


def test_a_page_never_exceeds_the_message_limit_of_a_client(practice: Any) -> None:
    world = practice(LARGE)
    for index in range(24):
        world.create(f"t{index}", metadata={"startup-script": "x" * 256 * 1024})
    assert len(list(world.client.list_nodes(parent=ZONE))) == 24


def test_operations_are_read_and_listed(practice: Any) -> None:
    world = practice(LARGE)
    name = world.create("t1").operation.name
    found = world.client.get_operation({"name": name})
    metadata = tpu_v2.OperationMetadata()
    found.metadata.Unpack(tpu_v2.OperationMetadata.pb(metadata))
    assert (metadata.verb, metadata.target) == ("create", f"{ZONE}/nodes/t1")
    listed = world.client.list_operations({"name": ZONE})
    assert [operation.name for operation in listed.operations] == [name]
    with pytest.raises(exceptions.NotFound):
        world.client.get_operation({"name": f"{ZONE}/operations/none"})


def test_types_versions_places_and_the_service_identity_are_shown(practice: Any) -> None:
    client = practice(LARGE).client
    types = client.list_accelerator_types(parent=ZONE)
    assert [item.type_ for item in types] == ["v5litepod-16", "v5litepod-8"]
    assert client.get_accelerator_type(name=f"{ZONE}/acceleratorTypes/v5litepod-8").type_
    versions = [item.version for item in client.list_runtime_versions(parent=ZONE)]
    assert RUNTIME in versions
    assert client.get_runtime_version(name=f"{ZONE}/runtimeVersions/{RUNTIME}").version == RUNTIME
    zones = client.list_locations({"name": PROJECT}).locations
    assert [zone.location_id for zone in zones] == ["us-central1-a", "us-west1-c"]
    identity = client.generate_service_identity({"parent": ZONE}).identity
    assert identity.email.endswith("@cloud-tpu.iam.gserviceaccount.com")
    with pytest.raises(exceptions.NotFound):
        client.get_accelerator_type(name=f"{ZONE}/acceleratorTypes/v2-8")
    with pytest.raises(exceptions.NotFound):
        client.get_runtime_version(name=f"{ZONE}/runtimeVersions/none")


def test_other_methods_are_unimplemented(practice: Any) -> None:
    call = practice().channel.unary_unary("/google.cloud.tpu.v2.Tpu/ReimageNode")
    with pytest.raises(grpc.RpcError) as failure:
        call(b"")
    assert cast(Any, failure.value).code() is grpc.StatusCode.UNIMPLEMENTED


def test_the_cloud_quotas_api_tells_the_limits_as_google_counts_them(practice: Any) -> None:
    quotas = pytest.importorskip("google.cloud.cloudquotas_v1")
    from google.cloud.cloudquotas_v1.services.cloud_quotas.transports import (
        CloudQuotasGrpcTransport,
    )

    zones = {
        "a": {"types": ["v4-8"], "quota_chips": 32},
        "b": {"types": ["v4-8"], "quota_chips": 0},
    }
    world = practice({"zones": zones})
    client = quotas.CloudQuotasClient(transport=CloudQuotasGrpcTransport(channel=world.channel))
    parent = "projects/p/locations/global/services/{}.googleapis.com"
    infos = {info.quota_id: info for info in client.list_quota_infos(parent=parent.format("tpu"))}
    limits = infos["TPUV4sPodPerProjectPerZoneForTPUAPI"].dimensions_infos
    # Two TensorCores in each chip of a v4, and its quota counts cores.
    assert {item.dimensions["zone"]: item.details.value for item in limits} == {"a": 64, "b": 0}
    assert list(client.list_quota_infos(parent=parent.format("storage"))) == []
