"""Retries, the rate limit, request deadlines and polling."""

import math
import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from tpuctl.clock import Clock, RetryPolicy
from tpuctl.cloud.api import TpuApi
from tpuctl.cloud.service_clock import ServiceClock
from tpuctl.codec import from_plain, load_facts
from tpuctl.errors import DeadlineError, RateLimitedError, UnavailableError
from tpuctl.units import format_duration

DATA = Path(__file__).parent / "data" / "retry.json"
T = TypeVar("T")


@dataclass(frozen=True)
class Rate:
    """How many requests may be sent per minute, and how many in a burst."""

    per_minute: float
    at_once: int


@dataclass(frozen=True)
class RequestLimits:
    """Deadlines of one request, how long it is repeated, and the rate of each kind of request.

    `retry` is for a service that does not answer; one that is busy is asked for longer.
    """

    read_deadline_s: float
    write_deadline_s: float
    retry: RetryPolicy
    rate_limited_for_s: float
    rates: Mapping[str, Rate] = field(default_factory=dict)


def load_request_limits() -> RequestLimits:
    """Read the limits from our data."""
    return from_plain(RequestLimits, load_facts(DATA))


class RateLimiter:
    """Limits requests per minute across threads, and stops them all when the service asks.

    Each caller is assigned its own time slot (the generic cell rate algorithm), so that no two of
    them wake up for the same slot.
    """

    def __init__(self, timer: ServiceClock, *, per_minute: float, at_once: int) -> None:
        self._timer = timer
        self._interval_s = 60 / per_minute
        self._burst_s = self._interval_s * (at_once - 1)
        self._next_s = self._closed_until_s = -math.inf
        self._lock = threading.Lock()

    def wait(self) -> None:
        """Return when this request may be sent."""
        while True:
            with self._lock:
                slot_s = max(self._next_s, self._timer.elapsed_s() - self._burst_s)
                self._next_s = slot_s + self._interval_s
            wait_s = slot_s - self._timer.elapsed_s()
            if wait_s > 0:
                self._timer.sleep(wait_s)
            # While we slept, another thread may have been told to stop: then take a later slot.
            if slot_s >= self._closed_until_s:
                return

    def stop_for(self, seconds: float) -> None:
        """Stop all requests for a while; afterwards there is no burst at first."""
        with self._lock:
            until_s = self._timer.elapsed_s() + seconds
            self._closed_until_s = max(self._closed_until_s, until_s)
            self._next_s = max(self._next_s, self._closed_until_s)


class Retry(NamedTuple):
    """How a method is repeated: its rate limit, and whether to repeat it after a lost reply."""

    rate: str
    after_lost_reply: bool = True


RETRIES: dict[str, Retry | None] = {
    # The reply may be lost although the node was created; the caller must look.
    "create_node": Retry("create", after_lost_reply=False),
    # These are idempotent: the first by its request id, the second by its content.
    "create_queued_resource": Retry("create"),
    "set_metadata": Retry("create"),
    # Never delayed and never repeated: by then another TPU may have the name.
    "delete_node": None,
    "delete_queued_resource": None,
    **dict.fromkeys(
        (
            "get_node",
            "list_nodes",
            "guest_attributes",
            "get_queued_resource",
            "list_queued_resources",
            "get_operation",
            "why_gone",
            "list_zones",
            "list_accelerator_types",
            "list_quotas",
            "bucket_location",
        ),
        Retry("read"),
    ),
}
"""Every method of TpuApi; None means that it is passed on as it is."""


def with_retries(
    api: TpuApi,
    limits: RequestLimits,
    timer: ServiceClock,
    *,
    chance: Callable[[], float] = random.random,
) -> TpuApi:
    """Wrap an API so that it respects the rate limits and repeats requests where that is safe."""
    return cast(TpuApi, _RetryingTpuApi(api, limits, timer, chance))


class _RetryingTpuApi:
    def __init__(
        self,
        api: TpuApi,
        limits: RequestLimits,
        timer: ServiceClock,
        chance: Callable[[], float],
    ) -> None:
        self.project, self.endpoint = api.project, api.endpoint
        self.emulated, self.clock = api.emulated, api.clock
        self._api = api
        self._limits, self._timer, self._chance = limits, timer, chance
        self._limiters = {
            kind: RateLimiter(timer, per_minute=rate.per_minute, at_once=rate.at_once)
            for kind, rate in limits.rates.items()
        }

    def __getattr__(self, name: str) -> Any:
        if name not in RETRIES:
            raise AttributeError(f"TpuApi has no method {name}")
        method, retry = getattr(self._api, name), RETRIES[name]
        return partial(self._send, retry, method) if retry else method

    def _send(self, retry: Retry, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
        limiter = self._limiters[retry.rate]

        def send() -> Any:
            limiter.wait()
            return method(*args, **options)

        return repeated(
            self._timer,
            send,
            after_lost_reply=retry.after_lost_reply,
            limits=self._limits,
            chance=self._chance,
            on_limit=limiter.stop_for,
        )


def repeated(
    timer: ServiceClock,
    action: Callable[[], T],
    *,
    after_lost_reply: bool = True,
    limits: RequestLimits | None = None,
    chance: Callable[[], float] = random.random,
    on_limit: Callable[[float], None] | None = None,
) -> T:
    """Do something again while the service is busy or, where that is safe, does not answer.

    `on_limit` waits as long as the service has asked for, by default by sleeping.
    """
    limits, began_s, failures = limits or load_request_limits(), timer.elapsed_s(), 0
    while True:
        try:
            return action()
        except (RateLimitedError, UnavailableError) as error:
            is_limit = isinstance(error, RateLimitedError)
            failures += 1
            most_s = limits.rate_limited_for_s if is_limit else limits.retry.total_s
            # Full jitter: a random part of a bound that doubles, so that many clients spread.
            wait_s = limits.retry.longest_pause_s(failures) * chance()
            wait_s = getattr(error, "retry_after_s", None) or wait_s
            is_over = timer.elapsed_s() - began_s + wait_s > most_s
            if is_over or not (after_lost_reply or is_limit):
                raise
            (on_limit if on_limit and is_limit else timer.sleep)(wait_s)


POLL_S = 10.0
"""Seconds between two polls: short against the minutes of a create, far from any rate limit."""


class Polling:
    """Waits between polls, on the service's clock, until a timeout.

    A timeout of None waits forever. Construct it after the first reply: only then is the service's
    time known.
    """

    def __init__(self, clock: Clock, *, timeout_s: float | None) -> None:
        self._clock = clock
        self._start = clock.now()
        self._end = None if timeout_s is None else self._start + timedelta(seconds=timeout_s)
        self._is_last_poll = False

    @property
    def waited_s(self) -> float:
        """Seconds since the first poll."""
        return (self._clock.now() - self._start).total_seconds()

    def pause(self, still: str, *, hint: str, at_least_s: float = 0.0) -> None:
        """Wait until the next poll; after the last one raise DeadlineError, which says `still`.

        The last poll is at the deadline itself, or later where the one before took that long.
        """
        wait_s = max(POLL_S, at_least_s)
        if self._end is not None:
            left_s = (self._end - self._clock.now()).total_seconds()
            if left_s <= 0 and self._is_last_poll:
                raise DeadlineError(f"{still} after {format_duration(self.waited_s)}.", hint=hint)
            self._is_last_poll = left_s <= wait_s
            wait_s = min(wait_s, max(0.0, left_s))
        self._clock.sleep(wait_s)

    def next(self, *, at_least_s: float = 0.0) -> bool:
        """Wait until the next poll; False after the last one."""
        try:
            self.pause("", hint="", at_least_s=at_least_s)
        except DeadlineError:
            return False
        return True
