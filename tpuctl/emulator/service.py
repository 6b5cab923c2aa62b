"""A running emulator: one world, used by many threads, with its clock and rate limits."""

import base64
import hmac
import math
import os
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from tpuctl.clock import Clock, WallClock
from tpuctl.emulator.bill import Charge
from tpuctl.emulator.compute.methods import COMPUTE_METHODS
from tpuctl.emulator.documents import CLOUD_SCOPE
from tpuctl.emulator.errors import ApiError, api_error, compute_error, project_number
from tpuctl.emulator.faults import CALLS
from tpuctl.emulator.machines import Machines
from tpuctl.emulator.methods import Call, Document
from tpuctl.emulator.resources import timestamp
from tpuctl.emulator.scenario import Scenario
from tpuctl.emulator.state import advance, apply
from tpuctl.emulator.store import Store
from tpuctl.emulator.validate import in_emulated_time
from tpuctl.emulator.world import World
from tpuctl.errors import WriteError

TIME_HEADER = "tpuctl-emulator-time"
SCALE_HEADER = "tpuctl-emulator-time-scale"
_WINDOW = timedelta(minutes=1)


class ScaledClock:
    """Emulated time: from `start` on, `scale` seconds pass per real second."""

    def __init__(self, start: datetime, scale: float) -> None:
        self._start, self._scale = start, scale
        self._began_s = time.monotonic()

    def now(self) -> datetime:
        """Return the emulated time, in UTC."""
        return self._start + timedelta(seconds=(time.monotonic() - self._began_s) * self._scale)

    def sleep(self, seconds: float) -> None:
        """Wait until that much emulated time has passed."""
        time.sleep(max(0.0, seconds) / self._scale)


class RateLimits:
    """The calls of the last emulated minute, by project and method."""

    def __init__(self, per_minute: Mapping[str, int]) -> None:
        self._per_minute = per_minute
        self._calls: dict[tuple[str, str], deque[datetime]] = defaultdict(deque)

    def check(self, call: Call, now: datetime) -> None:
        """Count a call; raises ApiError with the time to wait if the limit is exceeded."""
        limit = self._per_minute.get(call.method)
        if limit is None:
            return
        calls = self._calls[call.project, call.method]
        while calls and calls[0] <= now - _WINDOW:
            calls.popleft()
        if len(calls) >= limit:
            wait = calls[0] + _WINDOW - now
            make = compute_error if call.method in COMPUTE_METHODS else api_error
            raise make(
                "rate_limit",
                rpc=CALLS[call.method].rpc,
                project=call.project,
                project_number=project_number(call.project),
                retry_s=max(1, math.ceil(wait.total_seconds())),
            )
        calls.append(now)


def _are_equal(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())


class Emulator:
    """A running emulator.

    `requests` are all requests so far: method, zone and name. `tokens` are the scopes of every
    access token that was issued; tokens are valid until the emulator ends. Anyone with its
    `secret` may do everything; if it is None, so may anyone on this machine.
    """

    def __init__(self, world: World, clock: Clock, store: Store | None, secret: str | None) -> None:
        self.world, self.clock, self.secret = world, clock, secret
        self.requests: list[tuple[str, str, str]] = []
        self.tokens: dict[str, list[str]] = {}
        self.endpoint = ""
        self.http = ""
        self.colab = ""
        self.machines: Machines | None = None
        self.cluster: Any = None
        self._store = store
        self._limits = RateLimits(world.scenario.rate_limits_per_minute)
        self._write_failure: ApiError | None = None
        self._lock = threading.Lock()

    @property
    def scenario(self) -> Scenario:
        """The scenario of this emulator."""
        return self.world.scenario

    def now(self) -> datetime:
        """Return the emulated time, which never goes backwards."""
        return max(self.clock.now(), self.world.now)

    def is_secret(self, text: str) -> bool:
        """Whether a text is the secret, compared in constant time."""
        return self.secret is not None and _are_equal(text, self.secret)

    def scopes(self, authorization: str) -> list[str] | None:
        """Return the scopes of an Authorization header; None if its token is not valid."""
        scheme, _, shown = authorization.partition(" ")
        if scheme.lower() == "basic":
            try:
                shown = base64.b64decode(shown, validate=True).decode().partition(":")[2]
            except ValueError:
                return None
        elif scheme.lower() != "bearer":
            return None
        if self.is_secret(shown):
            return [CLOUD_SCOPE]
        issued = dict(self.tokens).items()
        return next((scopes for token, scopes in issued if _are_equal(shown, token)), None)

    def answer(self, call: Call) -> Document:
        """Answer one request; raises ApiError, also if the request could not be stored."""
        time.sleep(self.scenario.latency_ms / 1000)
        with self._lock:
            self.requests.append((call.method, call.zone, call.name))
            now = self.now()
            if policy := call.body.get("queuedResource", {}).get("queueingPolicy"):
                moved = in_emulated_time(policy, now, WallClock().now())
                queued = {**call.body["queuedResource"], "queueingPolicy": moved}
                call = replace(call, body={**call.body, "queuedResource": queued})
            self._limits.check(call, now)
            before = self.world.revision
            self._advance(now)
            try:
                return apply(self.world, call, now)
            finally:
                # An error reply counts for the planned faults, so it is stored too.
                if self._store and self.world.revision != before:
                    self._write(partial(self._store.record, call, now))
                if self._write_failure:
                    raise self._write_failure

    def advance(self) -> World:
        """Advance the world to the present and return it."""
        with self._lock:
            self._advance(self.now())
            return self.world

    def headers(self) -> tuple[tuple[str, str], ...]:
        """Return the headers of every reply: the time, which a restart does not set back."""
        with self._lock:
            now = self.now()
            if self._store:
                self._write(partial(self._store.save_time, now))
        return (TIME_HEADER, timestamp(now)), (SCALE_HEADER, str(self.scenario.time_scale))

    def status(self) -> Document:
        """Describe the emulator for `tpuctl emulator status`."""
        world = self.advance()
        return {
            "pid": os.getpid(),
            "endpoint": self.endpoint,
            "http": self.http,
            "time": timestamp(self.now()),
            "time_scale": self.scenario.time_scale,
            "requests": len(self.requests),
            "nodes": dict(Counter(node.state for node in list(world.nodes.values()))),
            "instances": dict(
                Counter(item.state for item in list(world.compute.instances.values()))
            ),
            "queued_resources": dict(Counter(item.state for item in list(world.queued.values()))),
        }

    def bill(self) -> list[Charge]:
        """Return the cost so far of every use of chips, on Cloud TPU and Compute Engine."""
        return self.advance().bill()

    def _advance(self, now: datetime) -> None:
        advance(self.world, now)
        if self.machines:
            self.machines.sync(self.world)

    def _write(self, write: Callable[[], None]) -> None:
        """Store something; after a failure every request fails.

        The state in memory then differs from the one on disk that a restart would restore.
        """
        try:
            write()
        except WriteError as error:
            message = f"The emulator could not store its state: {error} Restart it."
            self._write_failure = ApiError("INTERNAL", message, [])
