"""Waiting for what happens in another process or on another machine."""

import threading
from collections.abc import Callable


def wait_until(condition: Callable[[], object]) -> None:
    """Poll; fails after two minutes, which only a machine that hangs needs."""
    tick = threading.Event()
    for _ in range(2400):
        if condition():
            return
        tick.wait(0.05)
    raise AssertionError("it did not happen")
