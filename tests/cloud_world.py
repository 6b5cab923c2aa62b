"""A cloud to practise on: an emulator in this process, and the API over real gRPC to it."""

import heapq
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from tpuctl.clock import Clock, ManualClock
from tpuctl.cloud.api import TpuApi
from tpuctl.cloud.connect import connect
from tpuctl.emulator.scenario import parse_scenario
from tpuctl.emulator.server import Emulator, serve
from tpuctl.emulator.service import ScaledClock

MORNING = datetime(2026, 11, 20, 9, 0, tzinfo=timezone.utc)


class WrongClock:
    """The clock of a laptop that is wrong, and otherwise runs as it should."""

    def __init__(self, right: Clock, wrong_by: timedelta) -> None:
        self._right, self._wrong_by = right, wrong_by

    def now(self) -> datetime:
        return self._right.now() + self._wrong_by

    def sleep(self, seconds: float) -> None:
        self._right.sleep(seconds)


class CrowdClock:
    """A manual clock for many threads: it moves when all its members sleep, to the first to wake.

    With a ManualClock two threads that sleep a minute make two minutes.
    """

    def __init__(self, start: datetime = MORNING) -> None:
        self._now = start
        self._members = 0
        self._alarms: list[datetime] = []
        self._change = threading.Condition()

    def now(self) -> datetime:
        with self._change:
            return self._now

    def sleep(self, seconds: float) -> None:
        with self._change:
            alarm = self._now + timedelta(seconds=max(0.0, seconds))
            heapq.heappush(self._alarms, alarm)
            self._move()
            self._change.wait_for(lambda: self._now >= alarm)

    @contextmanager
    def members(self, count: int) -> Iterator[None]:
        """Wait for that many threads; each leaves with `leave`."""
        with self._change:
            self._members += count
        yield
        assert self._members == 0, "every member must leave"

    def leave(self) -> None:
        with self._change:
            self._members -= 1
            self._move()

    def _move(self) -> None:
        if self._alarms and len(self._alarms) >= self._members:
            self._now = max(self._now, self._alarms[0])
            while self._alarms and self._alarms[0] <= self._now:
                heapq.heappop(self._alarms)
            self._change.notify_all()


class CloudWorld:
    """An emulator, its clock, and `api`, which shares that clock: nothing waits."""

    def __init__(self, emulator: Emulator, clock: Clock, *, shares_clock: bool) -> None:
        self.emulator, self.clock = emulator, clock
        self._shares_clock = shares_clock
        self.api = self.connect()

    def connect(self, *, wrong_by: timedelta = timedelta(0), project: str | None = None) -> TpuApi:
        """Open the API once more, as a laptop whose clock is wrong by that much."""
        clock = WrongClock(self.clock, wrong_by) if self._shares_clock else None
        return connect(project, endpoint=self.emulator.endpoint, clock=clock)

    @property
    def requests(self) -> Counter[str]:
        """How often each method was called, since the emulator began."""
        return Counter(method for method, _, _ in self.emulator.requests)


class Worlds:
    """Makes worlds that end with the test; `tpuctl` on the command line sees the last one.

    `world(scenario)` has a ManualClock. `world(scenario, clock=...)` has that one. With
    `real_time=True` time passes by itself, at the scenario's time_scale: for command lines that
    wait, which cannot share a clock.
    """

    def __init__(self, stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
        self._stack, self._monkeypatch = stack, monkeypatch

    def __call__(
        self,
        scenario: Mapping[str, Any] | None = None,
        *,
        clock: Clock | None = None,
        real_time: bool = False,
        folder: Path | None = None,
        machines: Path | None = None,
        port: int = 0,
    ) -> CloudWorld:
        plan = parse_scenario(dict(scenario or {}))
        paced: Clock = ScaledClock(MORNING, plan.time_scale) if real_time else ManualClock(MORNING)
        clock = clock or paced
        serving: AbstractContextManager[Emulator] = serve(
            plan, clock=clock, folder=folder, machines=machines, port=port
        )
        emulator = self._stack.enter_context(serving)
        self._monkeypatch.setenv("TPUCTL_TPU_ENDPOINT", emulator.endpoint)
        if emulator.http:
            self._monkeypatch.setenv("STORAGE_EMULATOR_HOST", emulator.http)
        return CloudWorld(emulator, clock, shares_clock=not real_time)
