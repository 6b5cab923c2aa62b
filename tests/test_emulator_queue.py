"""Queued resources, seen by Google's own client."""

from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("google.cloud.tpu_v2", reason="google-cloud-tpu is not installed")

from google.api_core import exceptions
from google.cloud import tpu_v2

from tests.emulator_world import SMALL, START, ZONE


def test_with_capacity_it_is_active_with_its_node_ready(practice: Any) -> None:
    world = practice()
    operation = world.queue("q1", spot={})
    assert world.queued_state("q1") == "CREATING"
    world.clock.sleep(5)
    assert operation.result().name == f"{ZONE}/queuedResources/q1"
    assert world.queued_state("q1") == "PROVISIONING"
    world.clock.sleep(120)
    assert world.queued_state("q1") == "ACTIVE"
    node = world.node("q1")
    assert (node.state.name, node.scheduling_config.spot) == ("READY", True)
    assert node.queued_resource == f"{ZONE}/queuedResources/q1"


def test_without_capacity_it_waits_and_is_served_in_turn(practice: Any) -> None:
    world = practice({"zones": {"us-central1-a": {"types": ["v5e-8"], "capacity_chips": 8}}})
    world.create("t1")
    world.queue("q1")
    world.queue("q2")
    world.clock.sleep(600)
    assert world.queued_state("q1") == world.queued_state("q2") == "WAITING_FOR_RESOURCES"
    world.client.delete_node(name=f"{ZONE}/nodes/t1")
    world.clock.sleep(30)
    assert world.queued_state("q1") == "PROVISIONING"
    assert world.queued_state("q2") == "WAITING_FOR_RESOURCES"


def test_the_same_request_id_makes_one_and_answers_with_the_first_operation(practice: Any) -> None:
    world = practice()
    first = world.queue("q1", request_id="11111111-1111-4111-8111-111111111111")
    again = world.queue("q1", request_id="11111111-1111-4111-8111-111111111111")
    assert again.operation.name == first.operation.name
    with pytest.raises(exceptions.AlreadyExists):
        world.queue("q1", request_id="22222222-2222-4222-8222-222222222222")
    with pytest.raises(exceptions.InvalidArgument, match="used for another request"):
        world.queue("q2", request_id="11111111-1111-4111-8111-111111111111")


def test_not_provisioned_in_time_it_fails_and_keeps_its_quota(practice: Any) -> None:
    zone = {"types": ["v5e-8"], "capacity_chips": 0, "quota_chips": 8}
    world = practice({"zones": {"us-central1-a": zone}})
    policy = {"valid_until_duration": timedelta(seconds=60)}
    world.queue("q1", queueing_policy=policy)
    world.clock.sleep(60)
    state = world.queued("q1").state
    assert state.state.name == "FAILED"
    assert state.failed_data.error.code == 4
    with pytest.raises(exceptions.ResourceExhausted, match="Quota limit"):
        world.queue("q2")
    world.client.delete_queued_resource(name=f"{ZONE}/queuedResources/q1")
    world.clock.sleep(30)
    world.queue("q2")


def test_it_is_not_provisioned_before_its_time(practice: Any) -> None:
    world = practice()
    world.queue("q1", queueing_policy={"valid_after_time": START + timedelta(seconds=300)})
    world.clock.sleep(299)
    assert world.queued_state("q1") == "ACCEPTED"
    world.clock.sleep(1)
    assert world.queued_state("q1") == "PROVISIONING"


def test_a_window_that_is_over_is_refused(practice: Any) -> None:
    world = practice()
    past = {"valid_until_time": START - timedelta(seconds=1)}
    with pytest.raises(exceptions.InvalidArgument, match="queueing policy"):
        world.queue("q1", queueing_policy=past)
    for days in (-1, 3_000_000):
        forever = {"valid_until_duration": timedelta(days=days)}
        with pytest.raises(exceptions.InvalidArgument, match="validUntilDuration"):
            world.queue("q1", queueing_policy=forever)


def test_preempted_it_is_suspended_with_its_dead_node_inside(practice: Any) -> None:
    world = practice({**SMALL, "faults": [{"on": "node", "event": "preempt", "at_s": 200}]})
    world.queue("q1", spot={})
    world.clock.sleep(205)
    assert world.queued_state("q1") == "SUSPENDING"
    world.clock.sleep(30)
    state = world.queued("q1").state
    assert (state.state.name, state.state_initiator.name) == ("SUSPENDED", "SERVICE")
    assert world.node("q1").state.name == "PREEMPTED"
    world.client.delete_queued_resource(name=f"{ZONE}/queuedResources/q1")
    world.clock.sleep(30)
    assert list(world.client.list_nodes(parent=ZONE)) == []
    assert list(world.client.list_queued_resources(parent=ZONE)) == []


def test_preempted_while_provisioning_it_waits_again(practice: Any) -> None:
    world = practice({**SMALL, "faults": [{"on": "node", "event": "preempt", "at_s": 50}]})
    world.queue("q1")
    world.clock.sleep(55)
    assert world.queued_state("q1") == "WAITING_FOR_RESOURCES"
    assert list(world.client.list_nodes(parent=ZONE)) == []
    world.clock.sleep(30 + 120)
    assert world.queued_state("q1") == "ACTIVE"


def test_when_its_node_is_deleted_by_the_user_it_is_suspended_by_the_user(practice: Any) -> None:
    world = practice()
    world.queue("q1")
    world.clock.sleep(125)
    world.client.delete_node(name=f"{ZONE}/nodes/q1")
    world.clock.sleep(60)
    state = world.queued("q1").state
    assert (state.state.name, state.state_initiator.name) == ("SUSPENDED", "USER")
    assert list(world.client.list_nodes(parent=ZONE)) == []


def test_with_nodes_it_is_deleted_only_with_force(practice: Any) -> None:
    world = practice()
    world.queue("q1")
    world.clock.sleep(125)
    name = f"{ZONE}/queuedResources/q1"
    with pytest.raises(exceptions.FailedPrecondition, match="force"):
        world.client.delete_queued_resource(name=name)
    operation = world.client.delete_queued_resource({"name": name, "force": True})
    assert world.node("q1").state.name == "DELETING"
    world.clock.sleep(30)
    operation.result()
    with pytest.raises(exceptions.NotFound):
        world.queued("q1")
    with pytest.raises(exceptions.NotFound):
        world.node("q1")


def test_a_reset_gives_it_new_nodes(practice: Any) -> None:
    world = practice()
    world.queue("q1")
    world.clock.sleep(125)
    before = world.node("q1").id
    world.client.reset_queued_resource({"name": f"{ZONE}/queuedResources/q1"})
    world.clock.sleep(5 + 120)
    assert world.queued_state("q1") == "ACTIVE"
    assert world.node("q1").id != before


def test_several_slices_come_together(practice: Any) -> None:
    world = practice()
    world.queue("q1", spec={"multislice_params": {"node_count": 2, "node_id_prefix": "pod"}})
    world.clock.sleep(125)
    nodes = list(world.client.list_nodes(parent=ZONE))
    assert [node.name.rpartition("/")[2] for node in nodes] == ["pod-0", "pod-1"]
    assert all(node.multislice_node for node in nodes)
    assert world.queued_state("q1") == "ACTIVE"


@pytest.mark.parametrize(
    ("name", "spec", "error"),
    [
        ("q 1", {"node_id": "q1"}, exceptions.InvalidArgument),
        ("q1", {"node_id": "Q1"}, exceptions.InvalidArgument),
        ("q1", {"node_id": "q1", "parent": "projects/p/locations/b"}, exceptions.InvalidArgument),
        ("q1", {"multislice_params": {"node_count": 1}}, exceptions.InvalidArgument),
        ("q1", {"multislice_params": {"node_count": 2**31 - 1}}, exceptions.InvalidArgument),
        ("q1", {"node_id": "taken"}, exceptions.AlreadyExists),
    ],
)
def test_a_queued_resource_that_cannot_be_provisioned_is_refused(
    practice: Any, name: str, spec: dict[str, Any], error: type[Exception]
) -> None:
    world = practice()
    world.create("taken")
    with pytest.raises(error):
        world.queue(name, spec=spec)
    assert list(world.client.list_queued_resources(parent=ZONE)) == []


def test_expired_before_it_was_admitted_it_stays_failed(practice: Any) -> None:
    world = practice()
    world.queue("q1", queueing_policy={"valid_until_duration": timedelta(seconds=3)})
    world.clock.sleep(600)
    assert world.queued_state("q1") == "FAILED"


def test_it_is_not_provisioned_again_after_its_time(practice: Any) -> None:
    world = practice({**SMALL, "faults": [{"on": "node", "event": "preempt", "at_s": 100}]})
    world.queue("q1", queueing_policy={"valid_until_duration": timedelta(seconds=60)})
    world.clock.sleep(59)
    assert world.queued_state("q1") == "PROVISIONING"
    world.clock.sleep(600)
    assert world.queued_state("q1") == "FAILED"


def test_a_label_on_one_slice_is_not_on_the_other(practice: Any) -> None:
    world = practice()
    world.queue("q1", spec={"multislice_params": {"node_count": 2, "node_id_prefix": "pod"}})
    world.clock.sleep(125)
    world.client.update_node(
        node=tpu_v2.Node(name=f"{ZONE}/nodes/pod-0", labels={"a": "b"}),
        update_mask={"paths": ["labels"]},
    )
    world.clock.sleep(5)
    assert world.node("pod-0").labels == {"a": "b"}
    assert world.node("pod-1").labels == {}
    assert not world.queued("q1").tpu.node_spec[0].node.labels
