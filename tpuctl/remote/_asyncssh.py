"""asyncssh, imported without what takes a third of its time."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from tpuctl.errors import MissingExtraError


@contextmanager
def _without_a_compiler() -> Iterator[None]:
    """Where no program is found by its name.

    asyncssh looks for two libraries it can do without, and for that Python's `find_library` has
    gcc and ld link something whenever the loader's own list does not know them.
    """
    before = os.environ.get("PATH")
    os.environ["PATH"] = os.devnull
    try:
        yield
    finally:
        del os.environ["PATH"]
        if before is not None:
            os.environ["PATH"] = before


try:
    with _without_a_compiler():
        import asyncssh
except ModuleNotFoundError as error:
    raise MissingExtraError("Reaching a worker", extra="ssh", module="asyncssh") from error

__all__ = ["asyncssh"]
