"""A clock that runs faster than this machine's, so that two minutes of waiting take two seconds."""

import math
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import partial

from tpuctl.clock import Clock
from tpuctl.emulator.machines import Machines
from tpuctl.emulator.methods import METHODS, Call, Document
from tpuctl.emulator.refusals import Refusal, project_number, refusal
from tpuctl.emulator.scenario import Scenario
from tpuctl.emulator.state import advance, apply
from tpuctl.emulator.store import Store
from tpuctl.emulator.world import World, timestamp
from tpuctl.errors import WriteError


class ScaledClock:
    """Emulated time: `scale` seconds pass in every real one, from `start` on."""

    def __init__(self, start: datetime, scale: float) -> None:
        self._start, self._scale = start, scale
        self._began_s = time.monotonic()

    def now(self) -> datetime:
        """The emulated time, in UTC."""
        return self._start + timedelta(seconds=(time.monotonic() - self._began_s) * self._scale)

    def sleep(self, seconds: float) -> None:
        """Wait until that much emulated time has passed."""
        time.sleep(max(0.0, seconds) / self._scale)


_WINDOW = timedelta(minutes=1)


class RateLimits:
    """What was asked in the last emulated minute, by project and method."""

    def __init__(self, per_minute: Mapping[str, int]) -> None:
        self._per_minute = per_minute
        self._asked: dict[tuple[str, str], deque[datetime]] = defaultdict(deque)

    def check(self, call: Call, now: datetime) -> None:
        """Count a call, or refuse it and say when to come back."""
        limit = self._per_minute.get(call.method)
        if limit is None:
            return
        asked = self._asked[call.project, call.method]
        while asked and asked[0] <= now - _WINDOW:
            asked.popleft()
        if len(asked) >= limit:
            wait = asked[0] + _WINDOW - now
            raise refusal(
                "rate_limit",
                rpc=METHODS[call.method].rpc,
                project=call.project,
                project_number=project_number(call.project),
                retry_s=max(1, math.ceil(wait.total_seconds())),
            )
        asked.append(now)


TIME_HEADER = "tpuctl-emulator-time"
SCALE_HEADER = "tpuctl-emulator-time-scale"


class Emulator:
    """A running emulator. `requests` are all that came: method, zone and name of each."""

    def __init__(self, world: World, clock: Clock, store: Store | None) -> None:
        self.state, self.clock = world, clock
        self.requests: list[tuple[str, str, str]] = []
        self.endpoint = ""
        self.http = ""
        self.machines: Machines | None = None
        self._store = store
        self._limits = RateLimits(world.scenario.rate_limits_per_minute)
        self._lost: Refusal | None = None
        self._lock = threading.Lock()

    @property
    def scenario(self) -> Scenario:
        """The scenario that is being played."""
        return self.state.scenario

    def now(self) -> datetime:
        """The emulated time, which never goes back."""
        return max(self.clock.now(), self.state.now)

    def answer(self, call: Call) -> Document:
        """Answer one request; raises Refusal, also for what could not be remembered."""
        time.sleep(self.scenario.latency_ms / 1000)
        with self._lock:
            self.requests.append((call.method, call.zone, call.name))
            now = self.now()
            self._limits.check(call, now)
            before = self.state.revision
            self._advance(now)
            try:
                return apply(self.state, call, now)
            finally:
                if self._store and self.state.revision != before:
                    self._write(partial(self._store.record, call, now))
                if self._lost:
                    raise self._lost

    def look(self) -> World:
        """The world as it is now."""
        with self._lock:
            self._advance(self.now())
            return self.state

    def _advance(self, now: datetime) -> None:
        advance(self.state, now)
        if self.machines:
            self.machines.match(self.state)

    def headers(self) -> tuple[tuple[str, str], ...]:
        """What every reply says about the time; a later emulator never tells an earlier one."""
        with self._lock:
            now = self.now()
            if self._store:
                self._write(partial(self._store.note_time, now))
        return (TIME_HEADER, timestamp(now)), (SCALE_HEADER, str(self.scenario.time_scale))

    def _write(self, write: Callable[[], None]) -> None:
        """Put something on the disk; where that fails nothing is answered any more.

        What is on the disk would otherwise no longer be what was answered.
        """
        try:
            write()
        except WriteError as error:
            message = f"The emulator cannot remember what it does: {error} Start it again."
            self._lost = Refusal("INTERNAL", message, [])
