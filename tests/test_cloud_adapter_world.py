"""The adapter against the emulator: what each part believes of the other, over real gRPC."""

import logging
import threading
from contextlib import ExitStack, closing
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_DNS, uuid5

import pytest

from tests.cloud_world import MORNING, CrowdClock, Worlds
from tests.workers import Cable
from tpuctl.clock import ManualClock
from tpuctl.cloud.connect import connect
from tpuctl.cloud.models import ALL_ZONES, NodeRequest
from tpuctl.errors import (
    AlreadyExistsError,
    InvalidInputError,
    NoCapacityError,
    NotFoundError,
    PermissionDeniedError,
    QuotaExceededError,
    RateLimitedError,
    TpuctlError,
    UnavailableError,
    ZoneHiddenError,
)

ZONE = "us-central1-a"
SMALL = {"zones": {ZONE: {"types": ["v5litepod-8"], "capacity_chips": 16, "quota_chips": 32}}}


def request(name: str = "t1", zone: str = ZONE, **fields) -> NodeRequest:
    return NodeRequest(
        name, zone, "v5litepod-8", "v2-alpha-tpuv5-lite", uuid5(NAMESPACE_DNS, name).hex, **fields
    )


def fault(on: str, error: str, **fields) -> dict[str, Any]:
    return SMALL | {"faults": [{"on": on, "error": error, **fields}]}


def test_a_node_is_created_read_listed_and_deleted(world: Worlds) -> None:
    cloud = world(SMALL)
    started = cloud.api.create_node(request(labels={"team": "a"}, metadata={"k": "v\n'\"$(x)"}))
    assert (started.verb, started.done) == ("create", False)
    cloud.api.clock.sleep(120)
    ended = cloud.api.get_operation(started.name)
    node = cloud.api.get_node("t1", zone=ZONE)
    assert (ended.done, ended.node, ended.error) == (True, node, None)
    assert (node.state, node.health, node.created) == ("READY", "HEALTHY", MORNING)
    assert (node.labels["team"], node.metadata["k"]) == ("a", "v\n'\"$(x)")
    assert cloud.api.list_nodes(ALL_ZONES).items == (node,)
    cloud.api.delete_node("t1", zone=ZONE)
    cloud.api.clock.sleep(600)
    with pytest.raises(NotFoundError):
        cloud.api.get_node("t1", zone=ZONE)


def test_a_queued_resource_becomes_a_node(world: Worlds) -> None:
    cloud = world(SMALL)
    first = cloud.api.create_queued_resource(request(spot=True), valid_for_s=3600)
    again = cloud.api.create_queued_resource(request(spot=True), valid_for_s=3600)
    assert first.name == again.name, "the same request id makes no second"
    cloud.api.clock.sleep(600)
    queued = cloud.api.get_queued_resource("t1", zone=ZONE)
    node = cloud.api.get_node("t1", zone=ZONE)
    assert (queued.state, queued.nodes, queued.spot) == ("ACTIVE", ("t1",), True)
    assert (node.queued_resource, node.spot, node.state) == ("t1", True, "READY")
    assert cloud.api.list_queued_resources(ALL_ZONES).items == (queued,)
    cloud.api.delete_queued_resource("t1", zone=ZONE, force=True)
    cloud.api.clock.sleep(600)
    assert cloud.api.list_queued_resources(ZONE).items == ()


def test_zones_types_and_quotas_are_those_of_the_scenario(world: Worlds) -> None:
    cloud = world(SMALL)
    assert cloud.api.list_zones() == (ZONE,)
    assert cloud.api.list_accelerator_types(ZONE) == ("v5litepod-8",)
    limits = {(q.generation, q.spot, q.place, q.limit, q.counts) for q in cloud.api.list_quotas()}
    assert limits == {("v5e", spot, ZONE, 32, "chips") for spot in (False, True)}


def test_practice_needs_neither_login_nor_project(world: Worlds) -> None:
    api = world().api
    assert (api.project, api.emulated) == ("practice", True)
    assert len(api.list_zones()) > 5


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ("stockout", NoCapacityError),
        ("quota", QuotaExceededError),
        ("permission", PermissionDeniedError),
        ("unavailable", UnavailableError),
        ("internal", UnavailableError),
        ("not_found", NotFoundError),
        ("already_exists", AlreadyExistsError),
        ("deadline", UnavailableError),
    ],
)
def test_a_planned_error_of_a_create_arrives_as_ours(
    world: Worlds, error: str, expected: type[TpuctlError]
) -> None:
    api = world(fault("create_node", error, where="rpc")).api
    with pytest.raises(expected, match=f"^Could not create TPU t1 in {ZONE}: "):
        api.create_node(request())


def test_a_stockout_arrives_in_the_operation(world: Worlds) -> None:
    api = world(fault("create_node", "stockout")).api
    started = api.create_node(request())
    api.clock.sleep(30)
    error = api.get_operation(started.name).error
    assert isinstance(error, NoCapacityError)
    assert str(error).startswith(f"Could not create t1 in {ZONE}: There is no more capacity")


def test_a_lost_reply_of_a_create_is_not_sent_again(world: Worlds) -> None:
    cloud = world(fault("create_node", "unavailable", where="rpc", after_accept=True))
    with pytest.raises(UnavailableError):
        cloud.api.create_node(request())
    assert cloud.requests["create_node"] == 1
    assert cloud.api.get_node("t1", zone=ZONE).state == "CREATING"


def test_a_lost_reply_of_a_queued_resource_is_sent_again_and_makes_one(world: Worlds) -> None:
    plan = fault("create_queued_resource", "unavailable", where="rpc", after_accept=True)
    cloud = world(plan)
    cloud.api.create_queued_resource(request())
    assert cloud.requests["create_queued_resource"] == 2
    assert len(cloud.api.list_queued_resources(ALL_ZONES).items) == 1


def test_a_zone_that_is_not_ours_is_hidden(world: Worlds) -> None:
    with pytest.raises(ZoneHiddenError, match="us-secret1-z"):
        world(SMALL).api.create_node(request(zone="us-secret1-z"))


def test_a_type_that_the_zone_has_not_is_refused(world: Worlds) -> None:
    other = {"zones": {ZONE: {"types": ["v2-8"]}}}
    with pytest.raises(InvalidInputError, match="Valid values are"):
        world(other).api.create_node(request())


def test_a_laptop_that_is_wrong_by_a_day_believes_the_service(world: Worlds) -> None:
    cloud = world(SMALL)
    for days in (-1, 1):
        api = cloud.connect(wrong_by=timedelta(days=days))
        assert api.clock.now() == cloud.clock.now() + timedelta(days=days)
        api.list_nodes(ZONE)
        assert api.clock.now() == cloud.clock.now()
        api.clock.sleep(60)
        assert api.clock.now() == cloud.clock.now()


def test_a_laptop_that_is_ahead_by_a_day_still_gets_over_a_short_outage(world: Worlds) -> None:
    cloud = world(fault("list_nodes", "unavailable", where="rpc"))
    api = cloud.connect(wrong_by=timedelta(days=1))
    api.list_nodes(ZONE)
    assert api.clock.now() < MORNING + timedelta(minutes=1)


def test_an_emulator_in_another_process_sets_the_pace(world: Worlds) -> None:
    cloud = world(SMALL | {"time_scale": 100000}, real_time=True)
    cloud.api.create_node(request())
    cloud.api.clock.sleep(130)
    assert cloud.api.get_node("t1", zone=ZONE).state == "READY"


@pytest.mark.slow
def test_a_rate_limit_is_kept_to_and_everything_is_done_once(world: Worlds) -> None:
    plan = {
        "zones": {ZONE: {"types": ["v5litepod-8"], "capacity_chips": 4000, "quota_chips": 4000}},
        "rate_limits_per_minute": {"create_node": 40},
    }
    clock, count = CrowdClock(), 200
    cloud = world(plan, clock=clock)
    states: dict[str, str] = {}

    def create(name: str) -> None:
        try:
            cloud.api.create_node(request(name))
            states[name] = "accepted"
        except RateLimitedError:
            states[name] = "refused"
        finally:
            clock.leave()

    with clock.members(count):
        threads = [threading.Thread(target=create, args=(f"t{i}",)) for i in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert set(states.values()) == {"accepted"}
    assert len(states) == count
    refused = cloud.requests["create_node"] - count
    assert refused < count / 4, "the first refusal stops all of them"
    assert clock.now() - MORNING < timedelta(minutes=8)
    assert len(cloud.api.list_nodes(ALL_ZONES).items) == count


def test_an_emulator_on_a_busy_machine_is_given_time_to_answer(world: Worlds) -> None:
    cloud = world(SMALL)
    port = int(cloud.emulator.endpoint.rpartition(":")[2])
    with closing(Cable("127.0.0.1", port, answers_after_s=0.5)) as cable:
        api = connect(None, endpoint=f"127.0.0.1:{cable.port}", clock=cloud.clock)
        assert api.list_nodes(ZONE).items == ()


def test_an_emulator_that_is_killed_and_started_again_is_the_same(
    world: Worlds, tmp_path: Path
) -> None:
    clock = ManualClock(MORNING)
    with ExitStack() as first_life, pytest.MonkeyPatch.context() as patch:
        before = Worlds(first_life, patch)(SMALL, clock=clock, folder=tmp_path)
        started = before.api.create_node(request())
        port = int(before.emulator.endpoint.rpartition(":")[2])
    with pytest.raises(UnavailableError, match="Could not read operation"):
        before.api.get_operation(started.name)
    world(SMALL, clock=clock, folder=tmp_path, port=port)
    clock.sleep(120)
    ended = before.api.get_operation(started.name)
    assert (ended.done, ended.node and ended.node.state) == (True, "READY")


def test_secrets_that_we_send_come_back_in_no_error_and_no_log(
    world: Worlds, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    secret = "ya29.planted-secret-0123456789"
    caplog.set_level(logging.DEBUG)
    faults = [{"on": "get_node", "error": "internal", "every": True}]
    api = world(SMALL | {"faults": faults}).api
    api.create_node(request(metadata={"startup-script": f"export TOKEN={secret}"}))
    with pytest.raises(UnavailableError) as caught:
        api.get_node("t1", zone=ZONE)
    with pytest.raises(TpuctlError) as refused:
        api.create_node(request("t2", labels={"Bad": secret}))
    shown = [f"{e.value} {e.value.hint} {e.value.__cause__}" for e in (caught, refused)]
    everything = "".join((*shown, caplog.text, *capfd.readouterr()))
    assert "Bad" in everything
    assert "planted-secret" not in everything


def test_a_crowd_clock_lets_two_minutes_of_two_threads_be_one() -> None:
    clock = CrowdClock()

    def nap() -> None:
        clock.sleep(60)
        clock.leave()

    with clock.members(2):
        threads = [threading.Thread(target=nap) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert clock.now() == MORNING + timedelta(minutes=1)
