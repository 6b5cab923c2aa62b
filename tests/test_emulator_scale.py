"""Many requests at once, and many resources."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("google.cloud.tpu_v2", reason="google-cloud-tpu is not installed")

from google.api_core import exceptions

from tests.emulator_world import PROJECT, ZONE

pytestmark = pytest.mark.slow


def test_200_creates_at_once_are_200_nodes_or_a_clear_no(practice: Any, tmp_path: Path) -> None:
    zone = {"types": ["v5e-8"], "capacity_chips": 800, "quota_chips": 1200}
    world = practice({"zones": {"us-central1-a": zone}}, folder=tmp_path)

    def create(index: int) -> Any:
        try:
            return world.create(f"t{index}")
        except exceptions.ResourceExhausted:
            return None

    with ThreadPoolExecutor(50) as pool:
        accepted = [operation for operation in pool.map(create, range(200)) if operation]
    assert len({operation.operation.name for operation in accepted}) == 1200 // 8
    world.clock.sleep(120)
    nodes = list(world.client.list_nodes(parent=ZONE))
    assert len({node.id for node in nodes}) == 800 // 8
    assert {node.state.name for node in nodes} == {"READY"}

    again = practice({}, folder=tmp_path, start=world.clock.now())
    assert list(again.client.list_nodes(parent=ZONE)) == nodes


def test_more_than_a_page_of_each_is_listed_whole(practice: Any) -> None:
    zone = {"types": ["v5e-8"], "capacity_chips": 8000, "quota_chips": 8000}
    world = practice({"zones": {"us-central1-a": zone}})
    for index in range(300):
        world.create(f"t{index}")
        world.queue(f"q{index}")
    world.clock.sleep(200)
    parent = f"{PROJECT}/locations/-"
    nodes = {node.name: node.state.name for node in world.client.list_nodes(parent=parent)}
    queued = {item.name for item in world.client.list_queued_resources(parent=parent)}
    assert len(nodes) == 600
    assert set(nodes.values()) == {"READY"}
    assert len(queued) == 300
