"""Time as a parameter, so that no test waits for it and no laptop's wrong clock decides."""

import threading
import time
from datetime import datetime, timedelta, timezone
from typing import Protocol


class Clock(Protocol):
    """What time it is, and a way to let some of it pass."""

    def now(self) -> datetime:
        """The time, in UTC."""

    def sleep(self, seconds: float) -> None:
        """Come back when that much time has passed on this clock."""


class WallClock:
    """The clock of this machine."""

    def now(self) -> datetime:
        """The time, in UTC."""
        return datetime.now(timezone.utc)

    def sleep(self, seconds: float) -> None:
        """Wait for real."""
        time.sleep(seconds)


class SteadyClock:
    """The time of this machine when it was made, and from then on no correction of it."""

    def __init__(self) -> None:
        self._start = datetime.now(timezone.utc)
        self._began = time.monotonic()

    def now(self) -> datetime:
        """The time, in UTC."""
        return self._start + timedelta(seconds=time.monotonic() - self._began)

    def sleep(self, seconds: float) -> None:
        """Wait for real."""
        time.sleep(seconds)


class ManualClock:
    """A clock that only moves when somebody sleeps on it: an hour takes no time."""

    def __init__(self, start: datetime) -> None:
        self._now = start
        self._lock = threading.Lock()

    def now(self) -> datetime:
        """The time, in UTC."""
        with self._lock:
            return self._now

    def sleep(self, seconds: float) -> None:
        """Move the clock forward."""
        with self._lock:
            self._now += timedelta(seconds=max(0.0, seconds))
