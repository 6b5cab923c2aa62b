"""The service's time, measured from its replies, because a laptop's clock may be wrong."""

import email.utils
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from tpuctl.clock import Clock

EMULATED_TIME = "tpuctl-emulator-time"
EMULATED_SCALE = "tpuctl-emulator-time-scale"

_YEARS = range(1970, 3000)
_FASTEST = 1e6


@dataclass(frozen=True)
class ServerTime:
    """The time in a reply, truncated to `resolution_s`; `scale` emulated seconds pass in one."""

    time: datetime
    resolution_s: float = 0.0
    scale: float = 1.0


def read_time(headers: Mapping[str, str]) -> ServerTime | None:
    """Read the time from a reply's headers; None if it is missing or implausible."""
    try:
        if exact := headers.get(EMULATED_TIME):
            time = datetime.fromisoformat(exact.replace("Z", "+00:00"))
            found = ServerTime(time, scale=float(headers.get(EMULATED_SCALE, 1.0)))
        else:
            time = email.utils.parsedate_to_datetime(headers["date"])
            found = ServerTime(time, resolution_s=1.0)
    except (KeyError, ValueError, TypeError, OverflowError):
        return None
    is_time = found.time.tzinfo is not None and found.time.year in _YEARS
    return found if is_time and 0 < found.scale <= _FASTEST else None


class ServiceClock:
    """The service's time; before its first reply, this machine's time.

    Each reply bounds the difference between the two clocks, because the service wrote its time
    between our request and its reply. While the difference is within the bounds it is kept, so that
    time does not jump with every reply.
    """

    def __init__(self, local: Clock) -> None:
        self._local = local
        self._scale = 1.0
        self._elapsed_s = 0.0
        self._anchor = self._since = local.now()
        self._lock = threading.Lock()

    def now(self) -> datetime:
        """The service's time, in UTC."""
        with self._lock:
            return self._at(self._local.now())

    def sleep(self, seconds: float) -> None:
        """Wait for a number of seconds of the service's time."""
        self._local.sleep(seconds / self._scale)

    def elapsed_s(self) -> float:
        """Seconds of the service's time since the start; corrections of the clock do not count."""
        with self._lock:
            return self._elapsed_at(self._local.now())

    def local_now(self) -> datetime:
        """This machine's time, to record when a request is sent."""
        return self._local.now()

    def observe(self, reply: ServerTime, *, sent: datetime) -> None:
        """Correct the clock by the reply to a request that was sent at that local time."""
        received, time = self._local.now(), reply.time.astimezone(timezone.utc)
        with self._lock:
            if reply.scale != self._scale:
                self._elapsed_s = self._elapsed_at(received)
                self._scale, self._anchor, self._since = reply.scale, time, received
                return
            earliest = time - self._at(received)
            latest = time + timedelta(seconds=reply.resolution_s) - self._at(sent)
            self._anchor += max(earliest, min(latest, timedelta(0)))

    def _elapsed_at(self, local: datetime) -> float:
        return self._elapsed_s + (local - self._since).total_seconds() * self._scale

    def _at(self, local: datetime) -> datetime:
        return self._anchor + (local - self._since) * self._scale
