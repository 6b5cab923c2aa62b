"""Timer signals for the main thread that stay out of the way of the program's own.

POSIX timers with real-time signals: unlike `setitimer` they leave SIGALRM, SIGPROF and `alarm` to
the program, and neither a forked nor an executed program inherits them. Linux only.
"""

import atexit
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import cache
from types import FrameType
from typing import Any

Handler = Callable[[int, "FrameType | None"], None]
_NOTIFY_THREAD = 4  # SIGEV_THREAD_ID (timer_create(2))
_SECOND_NS = 10**9


class _Event(ctypes.Structure):
    """The kernel's `struct sigevent`, 64 bytes long."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("number", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("thread_id", ctypes.c_int),
        ("rest", ctypes.c_char * 44),
    )


# `struct itimerspec`: seconds and nanoseconds of the interval, and of the time left.
_Spec = ctypes.c_long * 4
_OFF = _Spec(0, 0, 0, 0)


class ThreadTimer:
    """Calls a handler in this thread every `every_s` of a clock, while it is not paused."""

    def __init__(self, clock: int, every_s: float, handler: Handler) -> None:
        self._every = divmod(round(every_s * _SECOND_NS), _SECOND_NS)
        self._left = self._every
        self._c = _library()
        self._number = _free_signal()
        event = _Event(number=self._number, notify=_NOTIFY_THREAD)
        event.thread_id = threading.get_native_id()
        self._id = ctypes.c_void_p()
        if self._c.timer_create(clock, ctypes.byref(event), ctypes.byref(self._id)):
            raise OSError(ctypes.get_errno(), "timer_create failed")
        signal.signal(self._number, handler)
        # Restart interrupted system calls instead of failing with EINTR.
        signal.siginterrupt(self._number, False)
        _installed.append(self)

    def resume(self) -> None:
        """Go on with the time that was left at the pause."""
        self._c.timer_settime(self._id, 0, _Spec(*self._every, *self._left), None)

    def pause(self) -> None:
        """Stop the clock."""
        old = _Spec()
        self._c.timer_settime(self._id, 0, _OFF, old)
        self._left = (old[2], old[3]) if old[2] or old[3] else self._every

    def delete(self) -> None:
        """Delete the timer, unless that was done, and free its signal."""
        if self in _installed:
            self._c.timer_delete(self._id)
            self._free()

    def _free(self) -> None:
        _installed.remove(self)
        # Ignoring a signal discards a pending one, which would otherwise end the process.
        signal.signal(self._number, signal.SIG_IGN)
        signal.signal(self._number, signal.SIG_DFL)


_installed: list[ThreadTimer] = []


def start_timers(*wanted: tuple[int, float, Handler]) -> list[ThreadTimer]:
    """A timer for each clock, interval and handler; none where the system cannot have them."""
    if sys.platform != "linux" or threading.current_thread() is not threading.main_thread():
        return []
    made: list[ThreadTimer] = []
    try:
        for each in wanted:
            made.append(ThreadTimer(*each))
    except (OSError, AttributeError):
        delete_timers(made)
        return []
    return made


def delete_timers(timers: list[ThreadTimer]) -> None:
    """Delete timers; Python's end would otherwise leave their signals without a handler."""
    for each in list(timers):
        each.delete()


@cache
def _library() -> Any:
    """The C library; the first call also arranges for the ends of this process and of forks."""
    library = ctypes.CDLL(None, use_errno=True)
    atexit.register(delete_timers, _installed)
    os.register_at_fork(after_in_child=_forget_in_child)
    return library


def _forget_in_child() -> None:
    """A forked process has no timers, but the handlers of their signals."""
    for each in list(_installed):
        each._free()


def _free_signal() -> int:
    """The highest real-time signal without a handler."""
    for number in range(signal.SIGRTMAX - 1, signal.SIGRTMIN, -1):
        if signal.getsignal(number) is signal.SIG_DFL:
            return number
    raise OSError("every real-time signal is in use")
