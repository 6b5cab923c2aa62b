"""One running emulator: its world, its clock, its memory, and who may ask."""

import threading
import time
from collections.abc import Callable
from datetime import datetime
from functools import partial

from tpuctl.clock import Clock
from tpuctl.emulator.limits import RateLimits
from tpuctl.emulator.machines import Machines
from tpuctl.emulator.methods import Call, Document
from tpuctl.emulator.refusals import Refusal
from tpuctl.emulator.scenario import Scenario
from tpuctl.emulator.state import advance, apply
from tpuctl.emulator.store import Store
from tpuctl.emulator.world import World, timestamp
from tpuctl.errors import WriteError

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
