"""A time limit that loses no cancellation, as `asyncio.wait_for` may before Python 3.12."""

import sys

if sys.version_info >= (3, 11):
    from asyncio import timeout as time_limit
else:
    from async_timeout import timeout as time_limit

__all__ = ["time_limit"]
