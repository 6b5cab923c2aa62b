"""Kernel counters: CPU time and delays of threads, and CPU time of other processes."""

import contextlib
import glob
import os
import platform
import resource
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from tpuctl.profiling.models import Host
from tpuctl.profiling.windows import Signals
from tpuctl.storage.cgroups import memory_limit_bytes, quota_vcpus, throttled_s

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
# Fields in /proc/PID/stat after the name (proc(5)): CPU time of the process and reaped children.
TIMES = slice(11, 15)
MOST_ENDED = 1000


def workers(root: Path = Path("/"), process: str = "self") -> Iterator[Path]:
    """The folders in /proc of all descendants of a process, if the kernel lists them."""
    try:
        threads = os.listdir(root / "proc" / process / "task")
    except OSError:
        return
    for thread in threads:
        try:
            listed = contents(f"{root}/proc/{process}/task/{thread}/children")
        except OSError:
            continue
        for child in map(os.fsdecode, listed.split()):
            yield root / "proc" / child
            yield from workers(root, child)


def contents(path: str) -> bytes:
    """Read a small file in /proc, in a third of the time of `read_text`."""
    with open(path, "rb", buffering=0) as file:
        return file.read()


def cpu_s(process: Path) -> float:
    """CPU seconds of a process and of its children that have ended; 0 if it is gone."""
    try:
        after_name = (process / "stat").read_text().rpartition(")")[2].split()
        return sum(map(int, after_name[TIMES])) * TICK_S
    except (OSError, ValueError):
        return 0.0


Value = TypeVar("Value")


class ThreadTime(NamedTuple):
    """Seconds that a thread ran, and seconds that it was runnable without a vCPU."""

    running_s: float
    delayed_s: float


@dataclass(frozen=True)
class Reading:
    """Every counter at one point in time; Signals are the difference of two."""

    at_s: float
    cpu_s: float
    threads: dict[str, "ThreadTime"] | None
    busy_s: float | None
    steal_s: float | None
    throttled_s: float | None


def usable_cpus() -> tuple[int, ...]:
    """The CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


@contextlib.contextmanager
def running_on(cpus: Collection[int]) -> Iterator[None]:
    """Run every thread of this process, and those that they start, on these CPUs only."""

    def move(to: Collection[int]) -> None:
        for thread in os.listdir("/proc/self/task"):
            # One that has just ended.
            with contextlib.suppress(OSError):
                os.sched_setaffinity(int(thread), to)

    before = usable_cpus()
    move(cpus)
    try:
        yield
    finally:
        move(before)


def process_cpu_s() -> float:
    """CPU seconds of all threads of this process, and of its workers, so far."""
    total_s = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        total_s += usage.ru_utime + usage.ru_stime
    return total_s + sum(cpu_s(worker) for worker in workers())


class Threads:
    """The times of all threads, including those that ended after they were last read.

    A loader's workers end with the epoch, and the kernel then drops their waiting times.
    """

    def __init__(self) -> None:
        self._seen: dict[str, ThreadTime] = {}
        self._ended: dict[str, ThreadTime] = {}
        self._reuse: Counter[str] = Counter()
        self._lock = threading.Lock()

    def read(self, root: Path = Path("/"), but: Collection[int] = ()) -> dict[str, ThreadTime]:
        """Read all threads except `but`; the kernel may reuse the ID of an ended thread."""
        with self._lock:
            found = _threads(root, but)
            for name, last in self._seen.items():
                if name not in found or found[name].running_s < last.running_s:
                    self._ended[f"{name}.{self._reuse[name]}"] = last
                    self._reuse[name] += 1
            while len(self._ended) > MOST_ENDED:
                del self._ended[next(iter(self._ended))]
            self._seen = found
            return self._ended | {f"{n}.{self._reuse[n]}": time for n, time in found.items()}


def read(
    root: Path = Path("/"), *, tool_threads: Collection[int] = (), threads: Threads | None = None
) -> Reading:
    """Read every counter now; thread counters exclude `tool_threads`, which only measure."""
    every = threads or Threads()
    busy = attempt(lambda: _machine_cpu(root, usable_cpus()))
    return Reading(
        at_s=time.perf_counter(),
        cpu_s=process_cpu_s(),
        threads=attempt(lambda: every.read(root, tool_threads)),
        busy_s=busy[0] if busy else None,
        steal_s=busy[1] if busy else None,
        throttled_s=attempt(lambda: throttled_s(root)),
    )


def between(
    before: Reading,
    after: Reading,
    *,
    tool_cpu_s: float,
    consumer_cpu_s: float,
    gil_overshoots_s: list[float],
    root: Path = Path("/"),
) -> Signals:
    """Compute the signals between two readings."""
    wall_s = after.at_s - before.at_s
    cpu_s = after.cpu_s - before.cpu_s
    busy_s = _difference(before.busy_s, after.busy_s)
    cpus = len(usable_cpus())
    quota = attempt(lambda: quota_vcpus(root))
    threads = _thread_times(before, after)
    busiest, second = _busiest_threads(threads, wall_s)
    signals = Signals(
        wall_s=wall_s,
        cpu_s=cpu_s,
        tool_cpu_s=tool_cpu_s,
        consumer_cpu_s=consumer_cpu_s,
        vcpus_visible=cpus,
        vcpus_usable=min(cpus, quota) if quota else float(cpus),
        run_delay_s=None if threads is None else sum(each.delayed_s for each in threads),
        busiest_thread=busiest,
        second_thread=second,
        other_cpu_s=None if busy_s is None else max(0.0, busy_s - cpu_s),
        steal_s=_difference(before.steal_s, after.steal_s),
        throttled_s=_difference(before.throttled_s, after.throttled_s),
        gil_overshoot_p50_ms=_quantile_ms(gil_overshoots_s, 0.5),
        gil_overshoot_p90_ms=_quantile_ms(gil_overshoots_s, 0.9),
    )
    unknown = (field.name for field in fields(signals) if getattr(signals, field.name) is None)
    return replace(signals, missing=tuple(unknown))


def attempt(source: Callable[[], Value]) -> Value | None:
    """Read a counter that this machine may not have."""
    try:
        return source()
    except (OSError, ArithmeticError, LookupError, ValueError):
        return None


def _threads(root: Path, but: Collection[int]) -> dict[str, ThreadTime]:
    """The times of every thread so far, including those of worker processes."""
    left_out = set(map(str, but))
    tasks = [task for task in os.scandir(root / "proc/self/task") if task.name not in left_out]
    for worker in workers(root):
        with contextlib.suppress(OSError):
            tasks += os.scandir(worker / "task")
    found = {}
    for task in tasks:
        if counters := attempt(partial(contents, f"{task.path}/schedstat")):
            running_ns, delayed_ns = counters.split()[:2]
            found[task.name] = ThreadTime(int(running_ns) / 1e9, int(delayed_ns) / 1e9)
    return found


def _thread_times(before: Reading, after: Reading) -> list[ThreadTime] | None:
    """The times of each existing thread between two readings."""
    if before.threads is None or after.threads is None:
        return None
    new = ThreadTime(0.0, 0.0)
    pairs = [(now, before.threads.get(name, new)) for name, now in after.threads.items()]
    return [
        ThreadTime(
            max(0.0, now.running_s - then.running_s), max(0.0, now.delayed_s - then.delayed_s)
        )
        for now, then in pairs
    ]


def _busiest_threads(
    threads: list[ThreadTime] | None, wall_s: float
) -> tuple[float | None, float | None]:
    """The two largest shares of time in which a thread ran or was ready to run."""
    if threads is None:
        return None, None
    first, second, *_ = sorted([*map(sum, threads), 0.0, 0.0], reverse=True)
    return min(1.0, first / wall_s), min(1.0, second / wall_s)


def _machine_cpu(root: Path, cpus: tuple[int, ...]) -> tuple[float, float]:
    """Busy and stolen seconds of the CPUs that this process may use, over all processes."""
    wanted = {f"cpu{cpu}" for cpu in cpus}
    busy, steal, found = 0, 0, 0
    for line in (root / "proc/stat").read_text().splitlines():
        name, *ticks = line.split()
        if name in wanted:
            user, nice, system, _idle, _iowait, irq, softirq, stolen = map(int, ticks[:8])
            busy += user + nice + system + irq + softirq
            steal += stolen
            found += 1
    if not found:
        raise ValueError("none of our CPUs is listed")
    return busy * TICK_S, steal * TICK_S


def _difference(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else max(0.0, after - before)


def _quantile_ms(overshoots_s: list[float], share: float) -> float | None:
    if len(overshoots_s) < 10:
        return None
    return sorted(overshoots_s)[int(share * len(overshoots_s))] * 1000


def describe_host(tensorflow: str) -> Host:
    """Describe this machine with the standard library alone, because this runs in user programs."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = min(total, memory_limit_bytes() or total)
    return Host(
        name=socket.gethostname(),
        vcpus=len(usable_cpus()),
        memory_bytes=limit,
        memory_available_bytes=min(attempt(_available_bytes) or total, limit),
        cpu_model=_cpu_model(),
        python=platform.python_version(),
        tensorflow=tensorflow,
        has_tpu=any(glob.glob(f"/dev/{name}[0-9]*") for name in ("accel", "vfio/")),
    )


def _available_bytes() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    found = next((line for line in lines if line.startswith("MemAvailable:")), "")
    return int(found.split()[1]) * 1024


@cache
def _cpu_model() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [
                line.split(":", 1)[1].strip() for line in file if line.startswith("model name")
            ]
    except OSError:
        names = []
    return names[0] if names else platform.machine()
