"""How long we wait for the service, how often we ask it, and how often we ask again."""

import json
import math
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol, TypeVar

from tpuctl.clock import Clock
from tpuctl.cloud.api import TpuApi
from tpuctl.cloud.models import Listing, Node, NodeRequest, Operation, QueuedResource, Quota
from tpuctl.errors import DeadlineError, RateLimitedError, UnavailableError
from tpuctl.units import format_duration

T = TypeVar("T")

DATA = Path(__file__).parent / "data" / "patience.json"


@dataclass(frozen=True)
class Patience:
    """Deadlines of one request, and how long to go on where a request may be repeated."""

    read_deadline_s: float
    write_deadline_s: float
    first_wait_s: float
    longest_wait_s: float
    unavailable_for_s: float
    rate_limited_for_s: float


def load_patience() -> tuple[Patience, dict[str, tuple[float, int]]]:
    """Read our patience, and for each kind of request how many a minute and at once."""
    data: dict[str, Any] = json.loads(DATA.read_text(encoding="utf-8"))
    deadline, retry = data["deadline_s"], data["retry"]
    patience = Patience(
        read_deadline_s=deadline["read"],
        write_deadline_s=deadline["write"],
        first_wait_s=retry["first_s"],
        longest_wait_s=retry["longest_s"],
        unavailable_for_s=retry["unavailable_for_s"],
        rate_limited_for_s=retry["rate_limited_for_s"],
    )
    rates = {kind: (rate["per_minute"], rate["at_once"]) for kind, rate in data["requests"].items()}
    return patience, rates


class Timer(Protocol):
    """Time as it passes; it never jumps, whatever the service says that it is."""

    def elapsed_s(self) -> float:
        """Seconds since some moment."""

    def sleep(self, seconds: float) -> None:
        """Let some pass."""


class Pace:
    """Lets so many requests a minute pass, from any number of threads, and stops on request.

    Every caller is given the time at which it may go (the generic cell rate algorithm), so that no
    two of them wake up for the same slot.
    """

    def __init__(self, timer: Timer, *, per_minute: float, at_once: int) -> None:
        self._timer = timer
        self._interval_s = 60 / per_minute
        self._burst_s = self._interval_s * (at_once - 1)
        self._next_s = self._closed_until_s = -math.inf
        self._lock = threading.Lock()

    def wait(self) -> None:
        """Come back when this request may be sent."""
        while True:
            slot_s = self._take()
            wait_s = slot_s - self._timer.elapsed_s()
            if wait_s > 0:
                self._timer.sleep(wait_s)
            if slot_s >= self._closed_until_s:
                return

    def stop_for(self, seconds: float) -> None:
        """Let nothing pass for a while, as the service has asked; then no burst at first."""
        with self._lock:
            until_s = self._timer.elapsed_s() + seconds
            self._closed_until_s = max(self._closed_until_s, until_s)
            self._next_s = max(self._next_s, self._closed_until_s)

    def _take(self) -> float:
        with self._lock:
            slot_s = max(self._next_s, self._timer.elapsed_s() - self._burst_s)
            self._next_s = slot_s + self._interval_s
            return slot_s


class PatientTpuApi:
    """A TpuApi that keeps to a rate, and asks again where that cannot do harm.

    Reads are repeated. So is a queued resource, which the service knows by its request id. A node
    is only asked for again when the service has refused it for the rate: whether a lost reply
    meant a node is for the caller to find out. A delete is never delayed and never repeated: by
    then another TPU may bear the name.
    """

    def __init__(
        self,
        api: TpuApi,
        patience: Patience,
        rates: dict[str, tuple[float, int]],
        timer: Timer,
        *,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._api = api
        self._timer = timer
        self._patience = patience
        self._chance = chance
        self._paces = {
            kind: Pace(timer, per_minute=per_minute, at_once=at_once)
            for kind, (per_minute, at_once) in rates.items()
        }
        self.project = api.project
        self.endpoint = api.endpoint
        self.emulated = api.emulated
        self.clock = api.clock

    def create_node(self, request: NodeRequest) -> Operation:
        """Ask for a node, again only when the service refused it for the rate."""
        return self._ask("create", lambda: self._api.create_node(request), repeat_lost=False)

    def get_node(self, name: str, *, zone: str) -> Node:
        """Read a node."""
        return self._ask("read", lambda: self._api.get_node(name, zone=zone))

    def list_nodes(self, zone: str) -> Listing[Node]:
        """List the nodes of a zone, or of all."""
        return self._ask("read", lambda: self._api.list_nodes(zone))

    def delete_node(self, name: str, *, zone: str) -> Operation:
        """Ask once, now."""
        return self._api.delete_node(name, zone=zone)

    def set_metadata(self, node: Node, metadata: dict[str, str]) -> Operation:
        """Replace a node's metadata; twice the same is once."""
        return self._ask("create", lambda: self._api.set_metadata(node, metadata))

    def guest_attributes(self, node: Node, path: str) -> tuple[dict[str, str], ...]:
        """Read what the workers have published."""
        return self._ask("read", lambda: self._api.guest_attributes(node, path))

    def create_queued_resource(
        self, request: NodeRequest, *, valid_for_s: float | None = None
    ) -> Operation:
        """Get in line; a repeat has the same request id."""
        return self._ask(
            "create", lambda: self._api.create_queued_resource(request, valid_for_s=valid_for_s)
        )

    def get_queued_resource(self, name: str, *, zone: str) -> QueuedResource:
        """Read a queued resource."""
        return self._ask("read", lambda: self._api.get_queued_resource(name, zone=zone))

    def list_queued_resources(self, zone: str) -> Listing[QueuedResource]:
        """List the queued resources of a zone, or of all."""
        return self._ask("read", lambda: self._api.list_queued_resources(zone))

    def delete_queued_resource(self, name: str, *, zone: str, force: bool) -> Operation:
        """Ask once, now."""
        return self._api.delete_queued_resource(name, zone=zone, force=force)

    def get_operation(self, name: str) -> Operation:
        """Read an operation."""
        return self._ask("read", lambda: self._api.get_operation(name))

    def list_zones(self) -> tuple[str, ...]:
        """Name every zone that the project can see."""
        return self._ask("read", self._api.list_zones)

    def list_accelerator_types(self, zone: str) -> tuple[str, ...]:
        """Name the types that a zone has."""
        return self._ask("read", lambda: self._api.list_accelerator_types(zone))

    def list_quotas(self) -> tuple[Quota, ...]:
        """Read how many chips the project may have, and where."""
        return self._ask("read", self._api.list_quotas)

    def bucket_location(self, bucket: str) -> str:
        """Where a storage bucket is."""
        return self._ask("read", lambda: self._api.bucket_location(bucket))

    def _ask(self, kind: str, call: Callable[[], T], *, repeat_lost: bool = True) -> T:
        pace, patience, began_s = self._paces[kind], self._patience, self._timer.elapsed_s()
        failures = 0
        while True:
            pace.wait()
            try:
                return call()
            except RateLimitedError as error:
                wait_s = error.retry_after_s or self._backoff_s(failures)
                if self._timer.elapsed_s() - began_s + wait_s > patience.rate_limited_for_s:
                    raise
                pace.stop_for(wait_s)
            except UnavailableError:
                wait_s = self._backoff_s(failures)
                if (
                    not repeat_lost
                    or self._timer.elapsed_s() - began_s + wait_s > patience.unavailable_for_s
                ):
                    raise
                self._timer.sleep(wait_s)
            failures += 1

    def _backoff_s(self, failures: int) -> float:
        """Anything up to a bound that doubles, so that many clients do not come back as one."""
        bound_s = self._patience.first_wait_s * 2.0 ** min(failures, 20)
        return min(bound_s, self._patience.longest_wait_s) * self._chance()


POLL_S = 10.0
"""Seconds between two looks: often enough for what takes minutes, and far from any rate limit."""


class Polling:
    """How long we have waited on the service's clock, and when that is enough.

    A timeout of None waits for as long as it takes. Begin after the first reply: only then is it
    known what time it is for the service.
    """

    def __init__(self, clock: Clock, *, timeout_s: float | None) -> None:
        self._clock = clock
        self._start = clock.now()
        self._end = None if timeout_s is None else self._start + timedelta(seconds=timeout_s)
        self._is_last_look = False

    @property
    def waited_s(self) -> float:
        """Seconds since the first look."""
        return (self._clock.now() - self._start).total_seconds()

    def pause(self, still: str, *, hint: str, at_least_s: float = 0.0) -> None:
        """Wait until it is time to look again; raises DeadlineError, which says what is `still` so.

        There is one last look at the deadline itself, or later where the last one took that long.
        """
        wait_s = max(POLL_S, at_least_s)
        if self._end is not None:
            left_s = (self._end - self._clock.now()).total_seconds()
            if left_s <= 0 and self._is_last_look:
                raise DeadlineError(f"{still} after {format_duration(self.waited_s)}.", hint=hint)
            self._is_last_look = left_s <= wait_s
            wait_s = min(wait_s, max(0.0, left_s))
        self._clock.sleep(wait_s)
