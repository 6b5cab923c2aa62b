"""What the threads of this process are running."""

import gc
import sys
from types import FrameType


def current_frames() -> list[tuple[int, FrameType]]:
    """Every thread with its frame, found without a garbage collection on the way.

    Before 3.11.9, Python holds a lock there that a thread needs to end (gh-106883): a finalizer
    that lets another thread run, as closing a socket does, would stop both for good.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return list(sys._current_frames().items())
    finally:
        if collects:
            gc.enable()
