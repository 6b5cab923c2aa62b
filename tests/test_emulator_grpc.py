"""The API over gRPC, through Google's own unmodified clients."""

from typing import Any, cast

import pytest

pytest.importorskip("google.cloud.tpu_v2", reason="google-cloud-tpu is not installed")

import grpc
from google.api_core import exceptions
from google.cloud import tpu_v2

from tests.emulator_world import ZONE


def test_a_node_is_created_and_its_finished_operation_carries_it(practice: Any) -> None:
    world = practice()
    operation = world.create("t1", network_config={"enable_external_ips": True})
    assert world.client.get_node(name=f"{ZONE}/nodes/t1").state.name == "CREATING"
    world.clock.sleep(120)
    node = operation.result()
    assert (node.state.name, node.health.name, node.id > 0) == ("READY", "HEALTHY", True)
    assert node.network_endpoints[0].access_config.external_ip.startswith("127.")


def test_a_stockout_comes_in_the_operation_and_the_node_is_gone(practice: Any) -> None:
    world = practice()
    world.create("t1")
    operation = world.create("t2", "v5litepod-16")
    world.clock.sleep(20)
    with pytest.raises(exceptions.ResourceExhausted, match="no more capacity in the zone"):
        operation.result()
    with pytest.raises(exceptions.NotFound):
        world.client.get_node(name=f"{ZONE}/nodes/t2")


def test_every_reply_tells_the_time_errors_included(practice: Any) -> None:
    world = practice()
    call = world.channel.unary_unary("/google.cloud.tpu.v2.Tpu/GetNode")
    world.clock.sleep(1.5)
    request = tpu_v2.GetNodeRequest.serialize(tpu_v2.GetNodeRequest(name=f"{ZONE}/nodes/t1"))
    with pytest.raises(grpc.RpcError) as failure:
        call(request)
    headers = dict(cast(Any, failure.value).initial_metadata())
    assert headers["tpuctl-emulator-time"] == "2026-11-20T09:00:01.500000Z"
    assert headers["tpuctl-emulator-time-scale"] == "60.0"
