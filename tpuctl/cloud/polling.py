"""Looking again and again, not faster than needed and not for ever."""

from datetime import timedelta

from tpuctl.clock import Clock
from tpuctl.errors import DeadlineError
from tpuctl.units import format_duration

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
