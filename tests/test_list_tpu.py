"""What a node means to its owner: workers, price, cost and the time it has left."""

import dataclasses
import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from tpuctl.cloud.models import LABEL_TTL_S, Endpoint, Node, QueuedResource
from tpuctl.cloud.tpu import describe_node, describe_queued

CREATED = datetime(2026, 11, 20, 12, 0, tzinfo=timezone.utc)
CONTRACT = {
    "name", "zone", "accelerator_type", "generation", "chips", "workers", "state", "health", "spot",
    "queued_resource", "runtime_version", "created", "expires", "labels", "usd_per_hour",
    "usd_so_far", "emulated", "id",
}  # fmt: skip


def node(**changes: Any) -> Node:
    plain = Node(
        "t1",
        "us-central1-a",
        "123",
        "v5litepod-8",
        "v2-alpha-tpuv5-lite",
        "READY",
        "HEALTHY",
        CREATED,
        endpoints=(Endpoint("10.0.0.1", "34.1.1.1"),),
    )
    return dataclasses.replace(plain, **changes)


def test_the_tpu_object_has_the_keys_of_the_contract_and_dates_in_utc() -> None:
    tpu = describe_node(
        node(labels={LABEL_TTL_S: "3600"}),
        now=CREATED + timedelta(minutes=30),
        emulated=True,
    )
    data = json.loads(json.dumps(tpu.to_dict()))
    assert set(data) >= CONTRACT
    assert (data["created"], data["expires"]) == ("2026-11-20T12:00:00Z", "2026-11-20T13:00:00Z")
    assert data["workers"] == [
        {"index": 0, "internal_ip": "10.0.0.1", "external_ip": "34.1.1.1", "state": "READY"}
    ]
    assert (data["generation"], data["chips"], data["usd_per_hour"]) == ("v5e", 8, 9.6)
    assert data["usd_so_far"] == pytest.approx(4.8)
    assert (tpu.age_s, tpu.ttl_left_s, tpu.is_usable) == (1800, 1800, True)


def test_a_dead_tpu_costs_nothing_now_and_nobody_knows_what_it_has_cost() -> None:
    tpu = describe_node(node(state="PREEMPTED"), now=CREATED + timedelta(days=2), emulated=False)
    assert (tpu.usd_per_hour, tpu.usd_so_far, tpu.is_dead, tpu.is_usable) == (0, None, True, False)
    assert tpu.why_no_cost == "it is PREEMPTED, and it is unknown since when"


def test_a_pod_without_all_addresses_is_not_usable_yet() -> None:
    pod = node(accelerator_type="v5litepod-16")
    tpu = describe_node(pod, now=CREATED, emulated=False)
    assert [worker.state for worker in tpu.workers] == ["READY", *["NO_ADDRESS"] * 3]
    assert not tpu.is_usable
    assert not describe_node(node(endpoints=()), now=CREATED, emulated=False).is_usable


def test_a_type_and_a_price_that_nobody_knows_stay_unknown() -> None:
    tpu = describe_node(node(accelerator_type="v9-8"), now=CREATED, emulated=False)
    assert (tpu.generation, tpu.chips, tpu.usd_per_hour, tpu.usd_so_far) == (None,) * 4
    assert len(tpu.workers) == 1
    assert "price of v9-8" in str(tpu.why_no_cost)


@pytest.mark.parametrize("label", ["", "-5", "soon", "1e3", "9" * 30, "٣"])
def test_a_life_time_that_is_no_number_of_seconds_is_no_life_time(label: str) -> None:
    tpu = describe_node(node(labels={LABEL_TTL_S: label}), now=CREATED, emulated=False)
    assert tpu.expires is None


def test_a_clock_before_the_create_time_counts_no_negative_age() -> None:
    tpu = describe_node(node(), now=CREATED - timedelta(days=1), emulated=False)
    assert (tpu.age_s, tpu.usd_so_far) == (0, 0)


def test_a_queued_resource_says_what_it_will_cost() -> None:
    queued = QueuedResource(
        "q1", "us-central1-a", "SUSPENDED", CREATED, "v5litepod-8", ("q1",), spot=True
    )
    waiting = describe_queued(queued, now=CREATED + timedelta(hours=1))
    assert (waiting.chips, waiting.usd_per_hour, waiting.is_dead) == (8, 1.96, True)
    assert waiting.age_s == 3600
