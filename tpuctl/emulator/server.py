"""The emulator as a whole: one world, its faces, its clock and its memory."""

import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from tpuctl.clock import Clock
from tpuctl.emulator.limits import RateLimits
from tpuctl.emulator.methods import Call, Document
from tpuctl.emulator.scenario import Scenario, parse_scenario
from tpuctl.emulator.state import advance, apply
from tpuctl.emulator.store import Store
from tpuctl.emulator.world import World, timestamp
from tpuctl.errors import InvalidInputError, MissingExtraError

TIME_HEADER = "tpuctl-emulator-time"
SCALE_HEADER = "tpuctl-emulator-time-scale"


class Emulator:
    """A running emulator. `requests` are all that came: method, zone and name of each."""

    def __init__(self, world: World, clock: Clock, store: Store | None) -> None:
        self.state, self.clock = world, clock
        self.requests: list[tuple[str, str, str]] = []
        self.endpoint = ""
        self.http = ""
        self._store = store
        self._limits = RateLimits(world.scenario.rate_limits_per_minute)
        self._lock = threading.Lock()

    @property
    def scenario(self) -> Scenario:
        """The scenario that is being played."""
        return self.state.scenario

    def now(self) -> datetime:
        """The emulated time, which never goes back."""
        return max(self.clock.now(), self.state.now)

    def answer(self, call: Call) -> Document:
        """Answer one request; raises Refusal, and WriteError when it cannot be remembered."""
        time.sleep(self.scenario.latency_ms / 1000)
        with self._lock:
            self.requests.append((call.method, call.zone, call.name))
            now = self.now()
            self._limits.check(call, now)
            before = self.state.revision
            try:
                return apply(self.state, call, now)
            finally:
                self._remember(call, now, left_a_trace=self.state.revision != before)

    def look(self) -> World:
        """The world as it is now."""
        with self._lock:
            advance(self.state, self.now())
            return self.state

    def headers(self) -> tuple[tuple[str, str], ...]:
        """What every reply says about the time."""
        return (TIME_HEADER, timestamp(self.now())), (SCALE_HEADER, str(self.scenario.time_scale))

    def _remember(self, call: Call, now: datetime, *, left_a_trace: bool) -> None:
        if self._store:
            if left_a_trace:
                self._store.record(call, now)
            self._store.note_time(now)


@contextmanager
def serve(
    scenario: Scenario | Mapping[str, Any] | None = None,
    *,
    clock: Clock,
    folder: Path | None = None,
    port: int = 0,
) -> Iterator[Emulator]:
    """Run an emulator on loopback, in threads of this process, for as long as the block lasts.

    With a folder it goes on from where the last one in that folder ended, however it ended.
    Raises MissingExtraError, and InvalidInputError for a port that is taken.
    """
    plan = scenario if isinstance(scenario, Scenario) else parse_scenario(dict(scenario or {}))
    store = Store(folder) if folder else None
    world = open_world(plan, store, clock)
    emulator = Emulator(world, clock, store)
    with _grpc_face(emulator, port):
        yield emulator


def open_world(scenario: Scenario, store: Store | None, clock: Clock) -> World:
    """Go on with the world of a store, or begin one."""
    if store and store.has_world:
        return store.resume()
    seed, now = secrets.token_hex(8), clock.now()
    return (
        store.begin(scenario, seed=seed, now=now) if store else World(scenario, seed=seed, now=now)
    )


@contextmanager
def _grpc_face(emulator: Emulator, port: int) -> Iterator[None]:
    try:
        from tpuctl.emulator._grpc import serve_grpc
    except ImportError as error:
        raise MissingExtraError("The emulator", extra="gcp", module=str(error.name)) from error
    server, bound = serve_grpc(emulator.answer, emulator.headers, port=port)
    if not bound:
        raise InvalidInputError(f"Could not listen on 127.0.0.1:{port}: the port is taken.")
    emulator.endpoint = f"127.0.0.1:{bound}"
    try:
        yield
    finally:
        server.stop(grace=None).wait()
