"""A running emulator: one world, used by many threads, with its log, clock and rate limits."""

import base64
import hmac
import json
import math
import os
import shutil
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from tpuctl.clock import Clock, WallClock
from tpuctl.codec import from_plain, to_plain
from tpuctl.emulator.compute.methods import COMPUTE_METHODS
from tpuctl.emulator.documents import CLOUD_SCOPE
from tpuctl.emulator.errors import ApiError, ServiceError, api_error, compute_error, project_number
from tpuctl.emulator.faults import CALLS
from tpuctl.emulator.machines import Machines
from tpuctl.emulator.methods import Call, Document
from tpuctl.emulator.resources import Charge, timestamp
from tpuctl.emulator.scenario import Scenario, parse_scenario
from tpuctl.emulator.state import advance, apply
from tpuctl.emulator.validate import in_emulated_time
from tpuctl.emulator.world import World
from tpuctl.errors import InvalidInputError, WriteError
from tpuctl.storage.local import append_line, ensure_folder, translated_write_errors

FORMAT = 1
_CLOCK_BYTES = 32


class Store:
    """The log of one world on disk, and the last time that a client saw.

    The state machine is deterministic, so replaying the requests at their times restores the state.
    A line that a crash left incomplete was never answered, and is dropped.
    """

    def __init__(self, folder: Path) -> None:
        self._log, self._clock = folder / "requests.jsonl", folder / "time"
        self.storage = folder / "storage"
        ensure_folder(folder, private=True)

    @property
    def has_world(self) -> bool:
        """Whether there is a world to resume."""
        return any(True for _ in self._lines())

    @property
    def scenario(self) -> Scenario | None:
        """The scenario of the stored world."""
        header = next(self._lines(), None)
        return parse_scenario(header["scenario"], source=str(self._log)) if header else None

    def create(self, scenario: Scenario, *, seed: str, now: datetime) -> World:
        """Replace the stored world."""
        with translated_write_errors(self._log):
            self._log.unlink(missing_ok=True)
            shutil.rmtree(self.storage, ignore_errors=True)
        header = {
            "format": FORMAT,
            "seed": seed,
            "began": now.isoformat(),
            "scenario": dict(scenario.document),
        }
        append_line(self._log, json.dumps(header), private=True)
        return World(scenario, seed=seed, now=now)

    def resume(self) -> World:
        """Rebuild the world from its log; raises InvalidInputError if that is damaged."""
        lines = self._lines()
        try:
            header = next(lines)
            if header["format"] != FORMAT:
                raise ValueError(f"its format is {header['format']}, not {FORMAT}")
            scenario = parse_scenario(header["scenario"], source=str(self._log))
            start = datetime.fromisoformat(header["began"])
            world = World(scenario, seed=header["seed"], now=start)
            for line in lines:
                at = datetime.fromisoformat(line["at"])
                # A failed request is stored too, because it counts for planned faults.
                with suppress(ServiceError):
                    apply(world, from_plain(Call, line["call"]), at)
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidInputError(
                f"Could not read the emulator's state in {self._log}: {error}.",
                hint="Start over: tpuctl emulator start --fresh",
            ) from error
        self._drop_incomplete_line()
        return world

    def last_time(self, world: World) -> datetime:
        """Return the last time that a client saw, or that of the world if it is later."""
        try:
            stored = datetime.fromisoformat(self._clock.read_text(encoding="ascii").strip())
        except (OSError, ValueError):
            return world.now
        return max(stored, world.now)

    def record(self, call: Call, at: datetime) -> None:
        """Store a request before it is answered; raises WriteError."""
        line = json.dumps({"at": at.isoformat(), "call": to_plain(call)})
        append_line(self._log, line, private=True)

    def save_time(self, now: datetime) -> None:
        """Store the time, in one small write that a kill cannot interrupt."""
        with translated_write_errors(self._clock):
            descriptor = os.open(self._clock, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            try:
                os.pwrite(descriptor, now.isoformat().ljust(_CLOCK_BYTES).encode(), 0)
            finally:
                os.close(descriptor)

    def _lines(self) -> Iterator[dict[str, Any]]:
        if not self._log.exists():
            return
        with self._log.open("rb") as file:
            for line in file:
                # The last line is incomplete if the emulator was killed while it wrote it.
                if line.endswith(b"\n"):
                    yield json.loads(line)

    def _drop_incomplete_line(self) -> None:
        with translated_write_errors(self._log), self._log.open("r+b") as file:
            whole = file.read().rpartition(b"\n")[0]
            file.truncate(len(whole) + 1)


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
