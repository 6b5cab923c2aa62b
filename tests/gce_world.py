"""Compute Engine to practise on: the emulator of `cloud_world`, and our adapter over HTTP to it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.cloud_world import CloudWorld, Worlds
from tpuctl.clock import Clock
from tpuctl.cloud.api import TpuApi
from tpuctl.cloud.connect import connect

ZONE = "us-east5-a"
V6E = {"capacity_chips": 64, "quota_chips": 64}
TPU7X = {"types": [], "capacity_chips": 64}
ZONES = {ZONE: V6E, "us-central1-c": TPU7X}
PLAIN = {"zones": ZONES}


class GceWorld:
    """An emulator, its clock, and `api`, our adapter of Compute Engine."""

    def __init__(self, world: CloudWorld, *, shares_clock: bool) -> None:
        self.world, self.clock, self._shares_clock = world, world.clock, shares_clock
        self.api = self.connect()

    def connect(self) -> TpuApi:
        clock = self.clock if self._shares_clock else None
        return connect(
            "practice", control_plane="gce", endpoint=self.world.emulator.http, clock=clock
        )


def open_gce(
    world: Worlds,
    monkeypatch: pytest.MonkeyPatch,
    scenario: Mapping[str, Any] = PLAIN,
    *,
    real_time: bool = False,
    machines: Path | None = None,
    clock: Clock | None = None,
) -> GceWorld:
    """Start an emulator whose Compute Engine the command line sees, too."""
    made = world(scenario, real_time=real_time, machines=machines, clock=clock)
    assert made.emulator.http
    monkeypatch.setenv("TPUCTL_GCE_ENDPOINT", made.emulator.http)
    return GceWorld(made, shares_clock=not real_time)
