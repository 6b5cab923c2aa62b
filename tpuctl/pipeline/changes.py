"""Changes that can be tried on a pipeline from outside, without an edit of its code."""

from dataclasses import dataclass
from typing import Literal

Way = Literal["prefetch", "calls", "threads", "unordered", "cache", "ratio", "workers", "presize"]


@dataclass(frozen=True)
class Change:
    """One change: calls and threads to so many, a cache after the function at `location`.

    To presize is another folder, not another pipeline; the number is the size.
    """

    way: Way
    number: int | None = None
    location: str | None = None
