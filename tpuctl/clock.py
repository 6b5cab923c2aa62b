"""Clocks that are passed in, so that tests never wait, and how long to wait between attempts."""

import threading
import time
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Protocol


class Clock(Protocol):
    """Tells the time and sleeps."""

    def now(self) -> datetime:
        """The time, in UTC."""

    def sleep(self, seconds: float) -> None:
        """Return when that much time has passed on this clock."""


class WallClock:
    """The clock of this machine."""

    def now(self) -> datetime:
        """The time, in UTC."""
        return datetime.now(timezone.utc)

    def sleep(self, seconds: float) -> None:
        """Block for that long."""
        time.sleep(seconds)


class SteadyClock:
    """A clock that starts at this machine's time and ignores later corrections of it."""

    def __init__(self) -> None:
        self._start = datetime.now(timezone.utc)
        self._began = time.monotonic()

    def now(self) -> datetime:
        """The time, in UTC."""
        return self._start + timedelta(seconds=time.monotonic() - self._began)

    def sleep(self, seconds: float) -> None:
        """Block for that long."""
        time.sleep(seconds)


class ManualClock:
    """A clock for tests that only advances by `sleep`, which returns at once."""

    def __init__(self, start: datetime) -> None:
        self._now = start
        self._lock = threading.Lock()

    def now(self) -> datetime:
        """The time, in UTC."""
        with self._lock:
            return self._now

    def sleep(self, seconds: float) -> None:
        """Advance the clock."""
        with self._lock:
            self._now += timedelta(seconds=max(0.0, seconds))


@dataclass(frozen=True)
class RetryPolicy:
    """How long to retry transient errors; pauses double from the first to the longest."""

    first_s: float = 0.5
    longest_s: float = 30.0
    total_s: float = 300.0

    def longest_pause_s(self, failures: int) -> float:
        """Return the upper bound of the pause after so many failures in a row."""
        return min(self.longest_s, self.first_s * 2.0 ** min(failures - 1, 20))
