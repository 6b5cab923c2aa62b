"""The current frames of the threads of this process."""

import gc
import sys
from types import FrameType


def current_frames() -> list[tuple[int, FrameType]]:
    """Every thread with its frame, read without a garbage collection in between.

    Before 3.11.9, Python holds a lock meanwhile that a thread needs to end (gh-106883): a finalizer
    that lets another thread run, as closing a socket does, would deadlock both.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return list(sys._current_frames().items())
    finally:
        if collects:
            gc.enable()
