"""Waiting for what happens in another process or on another machine."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager


def wait_until(condition: Callable[[], object]) -> None:
    """Poll; fails after two minutes, which only a machine that hangs needs."""
    tick = threading.Event()
    for _ in range(2400):
        if condition():
            return
        tick.wait(0.05)
    raise AssertionError("it did not happen")


@contextmanager
def at_the_same_time(work: Callable[[], None]) -> Iterator[None]:
    """Do something while a watch goes on; what goes wrong in it is not lost."""
    with ThreadPoolExecutor(1) as pool:
        doing = pool.submit(work)
        yield
        doing.result()
