"""Two measuring threads: one probes the interpreter lock (GIL), the other takes samples."""

import _thread
import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import cache

from tpuctl.profiling.frameworks.timers import signals_blocked

# A thread that wants the GIL requests it after sys.getswitchinterval(), 5 ms by default: an
# overshoot of that size means that another thread held it. Every wake-up costs up to 0.2 ms on an
# otherwise idle VM, hence ten probes a second and not fifty.
PROBE_SLEEP_S = 0.002
PROBE_EVERY_S = 0.100
# After a probe that another thread's samples spoiled: sooner, and out of step with them.
AGAIN_S = 0.023
# Each sample reads the runtime's model and the CPU time of all workers, so not more often.
SAMPLE_EVERY_S = 0.5
# How long a fork or an end waits for a thread in the middle of a sample.
JOIN_S = 1.0


class _Thread:
    """A thread hidden from the program: not listed by `threading`, and stopped during forks.

    Python 3.12 warns about a fork while other threads run.
    """

    def __init__(self, run: Callable[[], None]) -> None:
        self.cpu_s = 0.0
        self.thread_id = 0
        self._run = run
        self._earlier_s = 0.0
        if not _threads:
            _at_forks()
        _threads.append(self)
        self.start()

    def start(self) -> None:
        """Start the thread and wait for its ID."""
        # New ones: one that did not stop in time, since it waits for this thread, ends later.
        self._end, self._has_ended = threading.Event(), _thread.allocate_lock()
        self._has_ended.acquire()
        begun = threading.Event()
        # A signal that the program blocks must wait for it, and not go to this thread.
        with signals_blocked():
            _thread.start_new_thread(self._enter, (begun, self._has_ended))
            begun.wait()

    def _enter(self, begun: threading.Event, has_ended: _thread.LockType) -> None:
        self.thread_id = threading.get_native_id()
        begun.set()
        # Errors of a measurement must not disturb the program.
        with contextlib.suppress(Exception):
            self._run()
        has_ended.release()

    def sleeps(self, seconds: float) -> bool:
        """Sleep in the thread; False if it has to end."""
        if threading.get_native_id() != self.thread_id:
            return False
        self.cpu_s = self._earlier_s + time.thread_time()
        return not self._end.wait(seconds)

    def stop(self) -> None:
        """Stop the thread, until `start`."""
        self._end.set()
        if self._has_ended.acquire(timeout=JOIN_S):
            self._has_ended.release()
            self._earlier_s = self.cpu_s
            # The kernel counts an ended thread for a moment.
            for _ in range(1000):
                if not os.path.exists(f"/proc/self/task/{self.thread_id}"):
                    break
                time.sleep(0.0001)

    def end(self) -> None:
        """Stop the thread permanently."""
        if self in _threads:
            _threads.remove(self)
            self.stop()


_threads: list[_Thread] = []


@cache
def _at_forks() -> None:
    def stop() -> None:
        for each in _threads:
            each.stop()

    def start() -> None:
        for each in _threads:
            each.start()

    os.register_at_fork(before=stop, after_in_parent=start, after_in_child=_threads.clear)


class GilProbe(_Thread):
    """Measures how late a short sleep ends, which shows how long Python code holds the lock.

    Time in which the thread was runnable without a vCPU is subtracted if the kernel reports it, so
    that other busy processes do not look like a held lock.
    """

    def __init__(self) -> None:
        self._overshoots_s: list[float] = []
        super().__init__(self._probe)

    def take(self) -> list[float]:
        """Return the overshoots since the last call."""
        taken, self._overshoots_s = self._overshoots_s, []
        return taken

    def _probe(self) -> None:
        delay_s, usual_s = run_delay_reader(), sys.getswitchinterval()
        while True:
            start, delayed_s = time.perf_counter(), delay_s()
            time.sleep(PROBE_SLEEP_S)
            late_s = time.perf_counter() - start - PROBE_SLEEP_S
            # A thread that took samples made the others release the lock sooner than they do.
            is_usual = sys.getswitchinterval() >= usual_s
            if is_usual:
                self._overshoots_s.append(max(0.0, late_s - (delay_s() - delayed_s)))
            if not self.sleeps(PROBE_EVERY_S - PROBE_SLEEP_S if is_usual else AGAIN_S):
                return


def run_delay_reader() -> Callable[[], float]:
    """Return a function that reads how long the calling thread was runnable without a vCPU."""
    path = f"/proc/self/task/{threading.get_native_id()}/schedstat"

    def read() -> float:
        with open(path, encoding="ascii") as file:
            return int(file.read().split()[1]) / 1e9

    try:
        read()
    except (OSError, ValueError, IndexError):
        return lambda: 0.0
    return read


class Sampler(_Thread):
    """Calls all `callbacks` twice a second, or more often, until it or the process ends."""

    def __init__(self, callback: Callable[[], None], *, every_s: float = SAMPLE_EVERY_S) -> None:
        self.callbacks = [callback]
        self._every_s = every_s
        super().__init__(self._sample)

    def _sample(self) -> None:
        while self.sleeps(self._every_s):
            for callback in self.callbacks:
                callback()
