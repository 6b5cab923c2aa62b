"""Requests per minute, as a scenario limits them. Forgotten when the emulator ends."""

import math
from collections import defaultdict, deque
from collections.abc import Mapping
from datetime import datetime, timedelta

from tpuctl.emulator.methods import METHODS, Call
from tpuctl.emulator.refusals import project_number, refusal

_WINDOW = timedelta(minutes=1)


class RateLimits:
    """What was asked in the last emulated minute, by project and method."""

    def __init__(self, per_minute: Mapping[str, int]) -> None:
        self._per_minute = per_minute
        self._asked: dict[tuple[str, str], deque[datetime]] = defaultdict(deque)

    def check(self, call: Call, now: datetime) -> None:
        """Count a call, or refuse it and say when to come back."""
        limit = self._per_minute.get(call.method)
        if limit is None:
            return
        asked = self._asked[call.project, call.method]
        while asked and asked[0] <= now - _WINDOW:
            asked.popleft()
        if len(asked) >= limit:
            wait = asked[0] + _WINDOW - now
            raise refusal(
                "rate_limit",
                rpc=METHODS[call.method].rpc,
                project=call.project,
                project_number=project_number(call.project),
                retry_s=max(1, math.ceil(wait.total_seconds())),
            )
        asked.append(now)
