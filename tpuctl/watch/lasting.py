"""For how long something has been so: time in which a laptop slept is no evidence of anything."""

from collections.abc import Callable
from datetime import datetime

_LONGEST_TICK_S = 1.0
_LONGEST_LOOK_S = 120.0


class Awake:
    """Seconds that this program was awake, asked many times a second."""

    def __init__(self, elapsed_s: Callable[[], float]) -> None:
        self._elapsed_s = elapsed_s
        self._last_s, self._seconds = elapsed_s(), 0.0

    def seconds(self) -> float:
        """Those since the beginning; of a long gap only its first moment counts."""
        now_s = self._elapsed_s()
        self._seconds += min(now_s - self._last_s, _LONGEST_TICK_S)
        self._last_s = now_s
        return self._seconds


class Since:
    """For how long something has been so, as often as one looks; of a long gap a part counts."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._last: datetime | None = None
        self._seconds = 0.0

    def seconds(self, is_so: bool) -> float:
        """Note whether it is so; the seconds since it began to be."""
        now, last = self._now(), self._last
        self._last = now if is_so else None
        passed_s = min((now - last).total_seconds(), _LONGEST_LOOK_S) if last else 0.0
        self._seconds = self._seconds + passed_s if is_so else 0.0
        return self._seconds
