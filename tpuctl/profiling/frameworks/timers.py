"""Timer signals for the main thread that do not interfere with the program's own.

POSIX timers with real-time signals: unlike `setitimer` they leave SIGALRM, SIGPROF and `alarm` to
the program, and neither a forked nor an executed program inherits them. Linux only.

A few functions of `signal` would show them: the wake-up descriptor gets a byte for every signal,
and `sigwait` returns it. A program that uses one of those loses the timers just before, for good.
"""

import atexit
import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from types import FrameType, ModuleType
from typing import Any

Handler = Callable[[int, "FrameType | None"], None]
_NOTIFY_THREAD = 4  # SIGEV_THREAD_ID (timer_create(2))
_SECOND_NS = 10**9
# The functions that notice every signal, and those that do with our signal as this argument.
_SHOW_ALL = {"set_wakeup_fd", "sigwait", "sigwaitinfo", "sigtimedwait", "pause"}
_SHOW_THIS = {"signal": "signalnum", "getsignal": "signalnum", "pthread_sigmask": "mask"}
_c_signal = import_module("_signal")
# For our own calls, which must not look like the program's.
_set_handler: Any = _c_signal.__dict__["signal"]
_set_wakeup_fd: Any = _c_signal.__dict__["set_wakeup_fd"]
_mask: Any = _c_signal.__dict__["pthread_sigmask"]


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
        self.number = _free_signal()
        event = _Event(number=self.number, notify=_NOTIFY_THREAD)
        event.thread_id = threading.get_native_id()
        self._id = ctypes.c_void_p()
        if self._c.timer_create(clock, ctypes.byref(event), ctypes.byref(self._id)):
            raise OSError(ctypes.get_errno(), "timer_create failed")
        _set_handler(self.number, _without_errors(handler))
        # Restart interrupted system calls instead of failing with EINTR.
        signal.siginterrupt(self.number, False)
        _installed.append(self)
        _watch_signal_module(_Noticing)

    def resume(self) -> None:
        """Continue with the time that was left at the pause."""
        if self in _installed:
            self._c.timer_settime(self._id, 0, _Spec(*self._every, *self._left), None)

    def pause(self) -> None:
        """Stop the clock."""
        if self in _installed:
            old = _Spec()
            self._c.timer_settime(self._id, 0, _OFF, old)
            self._left = (old[2], old[3]) if old[2] or old[3] else self._every

    def delete(self) -> None:
        """Delete the timer, unless already done, and free its signal."""
        if self in _installed:
            self._c.timer_delete(self._id)
            self._free()

    def _free(self) -> None:
        _installed.remove(self)
        # Ignoring a signal discards a pending one, which would otherwise end the process.
        _set_handler(self.number, int(signal.SIG_IGN))
        _set_handler(self.number, int(signal.SIG_DFL))
        if not _installed:
            _watch_signal_module(ModuleType)


def _without_errors(handler: Handler) -> Handler:
    """Keep an error of ours from being raised in the program's code that the signal interrupted."""

    def handle(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(Exception):
            handler(number, frame)

    return handle


class _Noticing(ModuleType):
    """What `signal` and its part in C are while there are timers: the functions stay their own."""

    def __getattribute__(self, name: str) -> Any:
        if name in _SHOW_ALL or (name in _SHOW_THIS and _is_ours(name, sys._getframe(1))):
            give_up_timers()
        return ModuleType.__getattribute__(self, name)


_Noticing.__name__ = _Noticing.__qualname__ = ModuleType.__name__
_Noticing.__module__ = ModuleType.__module__
_installed: list[ThreadTimer] = []
_given_up: list[Callable[[], None]] = []


def start_timers(
    *wanted: tuple[int, float, Handler], given_up: Callable[[], None] = lambda: None
) -> list[ThreadTimer]:
    """Start a timer for each clock, interval and handler; none if the system cannot have them.

    `given_up` is called if the program uses signals in a way that forbids them, now or later.
    """
    if sys.platform != "linux" or threading.current_thread() is not threading.main_thread():
        return []
    made: list[ThreadTimer] = []
    try:
        if _has_wakeup_fd():
            raise OSError("the program has a wake-up descriptor")
        for each in wanted:
            made.append(ThreadTimer(*each))
    except (OSError, AttributeError):
        delete_timers(made)
        given_up()
        return []
    _given_up.append(given_up)
    return made


def delete_timers(timers: list[ThreadTimer]) -> None:
    """Delete timers, whose signals would otherwise have no handler when Python exits."""
    for each in list(timers):
        each.delete()


def give_up_timers() -> None:
    """Delete every timer, and tell those who started them."""
    # The signals of this thread do not reach the others.
    if threading.current_thread() is threading.main_thread():
        delete_timers(_installed)
        while _given_up:
            _given_up.pop()()


def give_up_if_blocked(timers: list[ThreadTimer]) -> None:
    """Give the timers up if the program blocks their signals, which would then stay pending."""
    if timers and not _mask(int(signal.SIG_BLOCK), ()).isdisjoint(each.number for each in timers):
        give_up_timers()


@contextlib.contextmanager
def signals_blocked() -> Iterator[None]:
    """Block every signal in this thread and in those that it starts."""
    mask = _mask(int(signal.SIG_BLOCK), signal.valid_signals())
    try:
        yield
    finally:
        _mask(int(signal.SIG_SETMASK), mask)


def _watch_signal_module(kind: type[ModuleType]) -> None:
    for module in (signal, _c_signal):
        module.__class__ = kind


def _is_ours(name: str, caller: FrameType) -> bool:
    """Whether `signal`, which is about to call its part in C, was given one of our signals."""
    if caller.f_code.co_filename != signal.__file__:
        return False
    given: Any = caller.f_locals.get(_SHOW_THIS[name])
    if name != "pthread_sigmask":
        return any(each.number == given for each in _installed)
    is_certain = isinstance(given, (set, frozenset, list, tuple, range))
    return not is_certain or any(each.number in given for each in _installed)


def _has_wakeup_fd() -> bool:
    """Whether Python writes a byte for every signal; there is no other way to ask."""
    found = _set_wakeup_fd(-1)
    if found != -1:
        _set_wakeup_fd(found)
    return bool(found != -1)


@cache
def _library() -> Any:
    """The C library; the first call also registers clean-up for exits and forks."""
    library = ctypes.CDLL(None, use_errno=True)
    atexit.register(delete_timers, _installed)
    os.register_at_fork(after_in_child=_forget_in_child)
    return library


def _forget_in_child() -> None:
    """Forget the timers in a forked process, which has only the handlers of their signals."""
    _given_up.clear()
    for each in list(_installed):
        each._free()


def _free_signal() -> int:
    """The highest real-time signal that nothing handles, ignores or blocks."""
    with open("/proc/thread-self/status", encoding="ascii", errors="replace") as file:
        lines = dict(line.split(":\t", 1) for line in file if line.startswith("Sig"))
    used = int(lines["SigCgt"], 16) | int(lines["SigIgn"], 16) | int(lines["SigBlk"], 16)
    for number in range(signal.SIGRTMAX - 1, signal.SIGRTMIN, -1):
        if not used >> (number - 1) & 1:
            return number
    raise OSError("every real-time signal is in use")
