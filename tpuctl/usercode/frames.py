"""The current frames of the threads of this process."""

import contextlib
import gc
import itertools
import os
import sys
import time
from collections.abc import Iterator
from types import FrameType


def current_frames() -> list[tuple[int, FrameType]]:
    """Every thread with its frame."""
    with no_collection():
        return list(sys._current_frames().items())


def native_ids() -> dict[int, int]:
    """The kernel's ID of every thread that has a frame; empty where it cannot be known.

    Asking for a thread that has ended may crash. So this is one call without Python code inside,
    during which no other thread gets the interpreter lock.
    """
    if sys.platform != "linux":
        return {}
    with no_collection():
        once = itertools.islice(iter(sys._current_frames, None), 1)
        threads, again = itertools.tee(itertools.chain.from_iterable(once))
        clocks = dict(zip(threads, map(time.pthread_getcpuclockid, again), strict=True))
    # A clock's number holds the ID of its thread (pthread_getcpuclockid(3), clock_getres(2)).
    return {thread: ~(clock >> 3) for thread, clock in clocks.items()}


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Let no garbage collection run while Python reads the frames of other threads.

    Before 3.11.9, Python holds a lock meanwhile that a thread needs to end (gh-106883): a finalizer
    that lets another thread run, as closing a socket does, would deadlock both. And `f_back` makes
    an object for a caller's frame: while a finalizer runs, that thread may leave the frame, and
    what comes back then is any object (seen on 3.11.7, with threads that end quickly).

    Several threads may be inside, and a signal may interrupt one: the last one ends it. There is
    no lock, which a forked child could inherit locked.
    """
    global _was_on
    _inside.append(None)
    if gc.isenabled():
        _was_on = True
        gc.disable()
    try:
        yield
    finally:
        _inside.pop()
        if _was_on and not _inside:
            _was_on = False
            gc.enable()
            # Another thread has come in meanwhile; nothing was collected since.
            if _inside:
                _was_on = True
                gc.disable()


_inside: list[None] = []
_was_on = False


def _after_fork() -> None:
    """Collect again in a child that was forked while another thread was inside."""
    global _was_on
    _inside.clear()
    if _was_on:
        _was_on = False
        gc.enable()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
