"""A clock that runs faster than this machine's, so that two minutes of waiting take two seconds."""

import time
from datetime import datetime, timedelta


class ScaledClock:
    """Emulated time: `scale` seconds pass in every real one, from `start` on."""

    def __init__(self, start: datetime, scale: float) -> None:
        self._start, self._scale = start, scale
        self._began_s = time.monotonic()

    def now(self) -> datetime:
        """The emulated time, in UTC."""
        return self._start + timedelta(seconds=(time.monotonic() - self._began_s) * self._scale)

    def sleep(self, seconds: float) -> None:
        """Wait until that much emulated time has passed."""
        time.sleep(max(0.0, seconds) / self._scale)
