"""Two measuring threads: one probes the interpreter lock (GIL), one takes samples."""

import threading
import time
from collections.abc import Callable

# A thread that wants the GIL requests it after sys.getswitchinterval(), 5 ms by default: an
# overshoot of that size means that another thread held it. Every wake-up costs up to 0.2 ms on an
# otherwise idle VM, hence ten probes a second and not fifty.
PROBE_SLEEP_S = 0.002
PROBE_EVERY_S = 0.100
# Each sample reads the runtime's model and the CPU time of all workers, so not more often.
SAMPLE_EVERY_S = 0.5


class GilProbe:
    """Measures how late a short sleep ends: long if Python code holds the interpreter lock.

    Time that the thread was ready without a vCPU is subtracted if the kernel reports it, so that
    other busy processes do not look like a held lock.
    """

    def __init__(self) -> None:
        self._overshoots_s: list[float] = []
        self._is_on = True
        self.cpu_s = 0.0
        self.thread_id = _start(self._run, "tpuctl-gil-probe")

    def take(self) -> list[float]:
        """Return the overshoots since the last call."""
        taken, self._overshoots_s = self._overshoots_s, []
        return taken

    def end(self) -> None:
        """Stop probing; the thread ends by itself."""
        self._is_on = False

    def _run(self) -> None:
        delay_s = run_delay_reader()
        while self._is_on:
            start, delayed_s = time.perf_counter(), delay_s()
            time.sleep(PROBE_SLEEP_S)
            late_s = time.perf_counter() - start - PROBE_SLEEP_S
            self._overshoots_s.append(max(0.0, late_s - (delay_s() - delayed_s)))
            self.cpu_s = time.thread_time()
            time.sleep(PROBE_EVERY_S - PROBE_SLEEP_S)


def run_delay_reader() -> Callable[[], float]:
    """Return a function that reads how long the calling thread was ready without a vCPU."""
    path = f"/proc/self/task/{threading.get_native_id()}/schedstat"

    def read() -> float:
        with open(path, encoding="ascii") as file:
            return int(file.read().split()[1]) / 1e9

    try:
        read()
    except (OSError, ValueError, IndexError):
        return lambda: 0.0
    return read


def _start(run: Callable[[], None], name: str) -> int:
    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread.native_id or 0


class Sampler:
    """Calls all `callbacks` twice a second until it or the process ends."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callbacks = [callback]
        self._is_on = True
        self.cpu_s = 0.0
        self.thread_id = _start(self._run, "tpuctl-sampler")

    def end(self) -> None:
        """Stop calling; the thread ends by itself."""
        self.callbacks.clear()
        self._is_on = False

    def _run(self) -> None:
        while self._is_on:
            time.sleep(SAMPLE_EVERY_S)
            for callback in self.callbacks:
                callback()
            self.cpu_s = time.thread_time()
