"""The labels by which a TPU tells who asked for it, and how long it may live.

A label value may hold lower-case letters, digits, `-` and `_`, at most 63 of them.
"""

CREATE_ID = "tpuctl-create"
"""The id of the journal entry of the create that made it."""

TTL_S = "tpuctl-ttl-s"
"""Seconds after the service's own create time at which it must be gone."""

MAX_USD_CENTS = "tpuctl-max-usd-cents"
"""The budget from which the life time was derived, if there was one."""

WATCH = "tpuctl-watch"
"""The id of the watch that made it, and may replace it."""
