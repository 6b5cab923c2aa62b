"""The service's time, learnt from its replies: a laptop's clock may be wrong by a day."""

import threading
from datetime import datetime, timedelta

from tpuctl.clock import Clock


class ServiceClock:
    """What time it is for the service; before its first reply, what this machine believes.

    Each reply bounds the difference between the two clocks: the service wrote its time after the
    request left and before the reply arrived. As long as the difference lies within the bounds it
    is kept, so that time does not jump with every reply.
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
        """Let that much of the service's time pass."""
        self._local.sleep(seconds / self._scale)

    def elapsed_s(self) -> float:
        """Seconds of the service's time since we began, whatever time we learn that it is."""
        with self._lock:
            return self._elapsed_at(self._local.now())

    def local_now(self) -> datetime:
        """This machine's time, to note when a request was sent."""
        return self._local.now()

    def observe(
        self, told: datetime, *, sent: datetime, resolution_s: float = 0.0, scale: float = 1.0
    ) -> None:
        """Learn from a reply to a request that was sent at that local time.

        `told` is cut to a multiple of `resolution_s`; `scale` is how many of its seconds pass in
        one of ours.
        """
        received = self._local.now()
        with self._lock:
            if scale != self._scale:
                self._elapsed_s = self._elapsed_at(received)
                self._scale, self._anchor, self._since = scale, told, received
                return
            resolution = timedelta(seconds=resolution_s)
            earliest = told - self._at(received)
            latest = told + resolution - self._at(sent)
            self._anchor += max(earliest, min(latest, timedelta(0)))

    def _elapsed_at(self, local: datetime) -> float:
        return self._elapsed_s + (local - self._since).total_seconds() * self._scale

    def _at(self, local: datetime) -> datetime:
        return self._anchor + (local - self._since) * self._scale
