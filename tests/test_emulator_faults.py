"""Planned faults, seen by Google's own client."""

from typing import Any

import pytest

pytest.importorskip("google.cloud.tpu_v2", reason="google-cloud-tpu is not installed")

from google.api_core import exceptions
from google.rpc import error_details_pb2

from tests.emulator_world import PROJECT, SMALL, ZONE

CLASSES = {
    "stockout": exceptions.ResourceExhausted,
    "quota": exceptions.ResourceExhausted,
    "rate_limit": exceptions.ResourceExhausted,
    "permission": exceptions.PermissionDenied,
    "unavailable": exceptions.ServiceUnavailable,
    "internal": exceptions.InternalServerError,
    "not_found": exceptions.NotFound,
    "already_exists": exceptions.AlreadyExists,
    "deadline": exceptions.DeadlineExceeded,
    "api_disabled": exceptions.PermissionDenied,
    "zone_hidden": exceptions.PermissionDenied,
    "reservation": exceptions.FailedPrecondition,
    "busy": exceptions.Aborted,
}


def planned(*faults: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {**SMALL, "faults": list(faults), **more}


@pytest.mark.parametrize("error", CLASSES)
def test_every_error_can_be_the_reply(practice: Any, error: str) -> None:
    world = practice(planned({"on": "create_node", "error": error, "where": "rpc"}))
    with pytest.raises(CLASSES[error]):
        world.create("t1")
    world.create("t1")


@pytest.mark.parametrize("error", CLASSES)
def test_every_error_can_end_the_operation(practice: Any, error: str) -> None:
    fault = {"on": "create_node", "error": error, "where": "operation", "after_s": 40}
    world = practice(planned(fault))
    operation = world.create("t1")
    world.clock.sleep(39)
    assert world.node("t1").state.name == "CREATING"
    world.clock.sleep(1)
    with pytest.raises(CLASSES[error]):
        operation.result()
    with pytest.raises(exceptions.NotFound):
        world.node("t1")


def test_an_operation_can_stay_unfinished_after_its_work_is_done(practice: Any) -> None:
    world = practice(planned({"on": "create_node", "error": "unfinished"}))
    operation = world.create("t1")
    world.clock.sleep(100_000)
    assert world.node("t1").state.name == "READY"
    assert not operation.done()
    world.client.delete_node(name=f"{ZONE}/nodes/t1")
    world.clock.sleep(30)
    assert world.create("t1").metadata.verb == "create"


def test_a_planned_quota_error_names_the_quota_of_the_request(practice: Any) -> None:
    world = practice(planned({"on": "create_queued_resource", "error": "quota"}))
    with pytest.raises(exceptions.ResourceExhausted, match=r"PreemptibleLitepod.* Limit: 32 in"):
        world.queue("q1", spot={})


def test_a_disabled_api_is_named_in_the_details(practice: Any) -> None:
    world = practice(planned({"on": "list_nodes", "error": "api_disabled"}))
    with pytest.raises(exceptions.PermissionDenied) as refused:
        world.client.list_nodes(parent=ZONE)
    assert refused.value.reason == "SERVICE_DISABLED"


def test_a_lost_reply_leaves_the_work_done(practice: Any) -> None:
    world = practice(planned({"on": "create_node", "after_accept": True}))
    with pytest.raises(exceptions.ServiceUnavailable):
        world.create("t1")
    assert world.node("t1").state.name == "CREATING"


def test_an_invalid_call_fails_for_its_own_reason_before_a_planned_one(practice: Any) -> None:
    world = practice(planned({"on": "create_node", "after_accept": True}))
    with pytest.raises(exceptions.InvalidArgument):
        world.create("Not Valid")


def test_nth_counts_matching_calls_and_every_repeats(practice: Any) -> None:
    world = practice(
        planned(
            {"on": "get_node", "name": "t1", "nth": 2, "error": "internal"},
            {"on": "get_node", "name": "t2", "nth": 2, "every": True, "error": "unavailable"},
        )
    )

    def outcomes(name: str) -> list[str]:
        found = []
        for _ in range(5):
            try:
                world.node(name)
            except exceptions.GoogleAPICallError as error:
                found.append(type(error).__name__)
        return found

    missing, failed = "NotFound", "ServiceUnavailable"
    assert outcomes("t1") == [missing, "InternalServerError", missing, missing, missing]
    assert outcomes("t2") == [missing, failed, missing, failed, missing]


def test_a_list_of_all_zones_names_those_that_fail_and_shows_the_others(practice: Any) -> None:
    zones = {name: {"types": ["v5e-8"]} for name in ("us-central1-a", "europe-west4-b")}
    fault = {"on": "list_nodes", "zone": "europe-*", "every": True, "error": "unavailable"}
    world = practice({"zones": zones, "faults": [fault]})
    world.create("t1")
    answer = next(world.client.list_nodes(parent=f"{PROJECT}/locations/-").pages)
    assert [node.name for node in answer.nodes] == [f"{ZONE}/nodes/t1"]
    assert list(answer.unreachable) == [f"{PROJECT}/locations/europe-west4-b"]
    with pytest.raises(exceptions.ServiceUnavailable):
        world.client.list_nodes(parent=f"{PROJECT}/locations/europe-west4-b")


def test_a_fault_for_every_zone_fails_the_whole_list(practice: Any) -> None:
    world = practice(planned({"on": "list_nodes", "error": "unavailable"}))
    with pytest.raises(exceptions.ServiceUnavailable):
        world.client.list_nodes(parent=f"{PROJECT}/locations/-")


def test_a_deletion_that_fails_leaves_the_node(practice: Any) -> None:
    fault = {"on": "delete_node", "error": "internal", "where": "operation"}
    world = practice(planned(fault))
    world.create("t1")
    world.clock.sleep(120)
    operation = world.client.delete_node(name=f"{ZONE}/nodes/t1")
    world.clock.sleep(20)
    with pytest.raises(exceptions.InternalServerError):
        operation.result()
    assert world.node("t1").state.name == "READY"


def test_a_queued_resource_whose_creation_fails_is_failed(practice: Any) -> None:
    world = practice(planned({"on": "create_queued_resource", "error": "stockout"}))
    world.queue("q1")
    world.clock.sleep(20)
    state = world.queued("q1").state
    assert (state.state.name, state.failed_data.error.code) == ("FAILED", 8)


def test_a_node_preempted_while_being_created_is_gone_and_its_operation_failed(
    practice: Any,
) -> None:
    world = practice(planned({"on": "node", "name": "t1", "event": "preempt", "at_s": 60}))
    operation = world.create("t1")
    world.clock.sleep(60)
    with pytest.raises(exceptions.InvalidArgument, match="while in state PREEMPTED"):
        operation.result()
    with pytest.raises(exceptions.NotFound):
        world.node("t1")


def test_the_scenario_of_the_contract_happens_as_written(practice: Any) -> None:
    world = practice(
        planned(
            {"on": "create_node", "error": "stockout", "where": "operation", "after_s": 20},
            {"on": "node", "name": "t1", "event": "preempt", "at_s": 300},
        )
    )
    first = world.create("t1")
    world.clock.sleep(20)
    with pytest.raises(exceptions.ResourceExhausted, match="no more capacity"):
        first.result()
    world.create("t1")
    world.clock.sleep(299)
    assert world.node("t1").state.name == "READY"
    world.clock.sleep(1)
    assert world.node("t1").state.name == "PREEMPTED"


def test_the_second_incarnation_of_a_name_can_be_the_one_that_vanishes(practice: Any) -> None:
    fault = {"on": "node", "name": "t1", "nth": 2, "event": "vanish", "at_s": 200}
    world = practice(planned(fault))
    world.create("t1")
    world.clock.sleep(300)
    assert world.node("t1").state.name == "READY"
    world.client.delete_node(name=f"{ZONE}/nodes/t1")
    world.clock.sleep(30)
    world.create("t1")
    world.clock.sleep(200)
    with pytest.raises(exceptions.NotFound):
        world.node("t1")


def test_maintenance_comes_and_goes(practice: Any) -> None:
    fault = {"on": "node", "event": "maintenance", "at_s": 200, "for_s": 60}
    world = practice(planned(fault))
    world.create("t1")
    world.clock.sleep(200)
    node = world.node("t1")
    assert (node.state.name, node.health.name) == ("REPAIRING", "UNHEALTHY_MAINTENANCE")
    world.clock.sleep(60)
    assert (world.node("t1").state.name, world.node("t1").health.name) == ("READY", "HEALTHY")


def test_a_worker_that_is_down_from_the_start_shows_once_the_node_is_ready(practice: Any) -> None:
    fault = {"on": "node", "event": "worker_down", "worker": 3}
    world = practice(planned(fault))
    world.create("t1", "v5litepod-16")
    assert not world.node("t1").symptoms
    world.clock.sleep(120)
    node = world.node("t1")
    assert (node.state.name, node.health.name) == ("READY", "TIMEOUT")
    assert node.symptoms[0].worker_id == "3"


def test_a_worker_whose_chips_are_taken_looks_healthy_from_outside(practice: Any) -> None:
    world = practice(planned({"on": "node", "event": "worker_busy"}))
    world.create("t1")
    world.clock.sleep(120)
    assert world.node("t1").health.name == "HEALTHY"
    (node,) = world.emulator.world.nodes.values()
    assert node.busy_workers == {0: None}


def test_a_suspended_queued_resource_has_lost_its_node(practice: Any) -> None:
    world = practice(planned({"on": "node", "event": "suspend", "at_s": 200}))
    world.queue("q1")
    world.clock.sleep(5 + 200 + 40)
    state = world.queued("q1").state
    assert (state.state.name, state.state_initiator.name) == ("SUSPENDED", "SERVICE")
    assert list(world.client.list_nodes(parent=ZONE)) == []


def test_suspended_without_a_queued_resource_a_node_is_terminated(practice: Any) -> None:
    world = practice(planned({"on": "node", "event": "suspend", "at_s": 200}))
    world.create("t1")
    world.clock.sleep(200)
    assert world.node("t1").state.name == "TERMINATED"


def test_too_many_requests_a_minute_get_a_retry_delay(practice: Any) -> None:
    world = practice(planned(rate_limits_per_minute={"get_node": 2}))
    world.create("t1")
    world.node("t1")
    world.clock.sleep(10)
    world.node("t1")
    with pytest.raises(exceptions.ResourceExhausted, match="Quota exceeded for quota metric") as no:
        world.node("t1")
    wait = next(d for d in no.value.details if isinstance(d, error_details_pb2.RetryInfo))
    assert wait.retry_delay.seconds == 50
    world.clock.sleep(50)
    world.node("t1")


def test_every_request_is_listed(practice: Any) -> None:
    world = practice()
    world.create("t1")
    with pytest.raises(exceptions.NotFound):
        world.node("t2")
    assert world.emulator.requests == [
        ("create_node", "us-central1-a", "t1"),
        ("get_node", "us-central1-a", "t2"),
    ]


FAILING_DELETE = {"on": "delete_node", "error": "internal", "where": "operation", "after_s": 90}


def test_a_node_without_chips_does_not_become_ready_because_its_deletion_failed(
    practice: Any,
) -> None:
    world = practice(planned(FAILING_DELETE))
    world.create("t1", "v5litepod-16")
    world.create("t2")
    world.client.delete_node(name=f"{ZONE}/nodes/t2")
    world.clock.sleep(600)
    with pytest.raises(exceptions.NotFound):
        world.node("t2")


def test_a_start_without_chips_ends_stopped_although_the_deletion_failed(practice: Any) -> None:
    world = practice(planned(FAILING_DELETE, provision_s=10))
    world.create("t1")
    world.clock.sleep(10)
    world.client.stop_node({"name": f"{ZONE}/nodes/t1"})
    world.clock.sleep(30)
    world.create("t2", "v5litepod-16")
    world.client.start_node({"name": f"{ZONE}/nodes/t1"})
    world.client.delete_node(name=f"{ZONE}/nodes/t1")
    world.clock.sleep(600)
    assert world.node("t1").state.name == "STOPPED"


def test_a_node_whose_deletion_failed_while_it_was_created_becomes_ready(
    practice: Any,
) -> None:
    world = practice(planned(FAILING_DELETE))
    world.create("t1")
    world.client.delete_node(name=f"{ZONE}/nodes/t1")
    world.clock.sleep(90 + 120)
    assert world.node("t1").state.name == "READY"


def test_a_finished_operation_shows_the_node_as_it_was_then(practice: Any) -> None:
    world = practice(planned({"on": "node", "event": "worker_down", "at_s": 300}))
    operation = world.create("t1")
    world.clock.sleep(400)
    assert world.node("t1").symptoms
    assert not operation.result().symptoms
