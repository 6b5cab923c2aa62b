"""What Linux says about a process and its machine while a pipeline runs; reads only /proc and /sys.

Each source may be missing (a container without cgroup files, another system): then its number is
None and its name is in `missing`. Fields are documented in proc(5), cgroups(7) and the kernel's
Documentation/accounting/psi.rst and Documentation/admin-guide/cgroup-v2.rst.
"""

import contextlib
import os
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TypeVar

from tpuctl.pipeline import cgroup, tree
from tpuctl.pipeline.models import Signals

Value = TypeVar("Value")


@dataclass(frozen=True)
class Reading:
    """Every counter at one moment; two of them make Signals."""

    at_s: float
    cpu_s: float
    run_delay_s: float | None
    thread_demand_s: dict[str, float] | None
    busy_s: float | None
    steal_s: float | None
    throttled_s: float | None
    pressure: tuple[float | None, float | None, float | None]
    storage_bytes: int | None
    read_bytes: int | None
    major_faults: int


def usable_cpus() -> tuple[int, ...]:
    """The CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def process_cpu_s() -> float:
    """CPU seconds of all threads of this process, and of its workers, so far."""
    total_s = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        total_s += usage.ru_utime + usage.ru_stime
    return total_s + sum(tree.cpu_s(worker) for worker in tree.workers())


def read(root: Path = Path("/")) -> Reading:
    """Read every counter now."""
    io_counters = attempt(lambda: _process_io(root))
    threads = attempt(lambda: _threads(root))
    busy = attempt(lambda: _machine_cpu(root, usable_cpus()))
    return Reading(
        at_s=time.perf_counter(),
        cpu_s=process_cpu_s(),
        run_delay_s=None if threads is None else sum(delay for _, delay in threads.values()),
        thread_demand_s=None if threads is None else {k: sum(v) for k, v in threads.items()},
        busy_s=busy[0] if busy else None,
        steal_s=busy[1] if busy else None,
        throttled_s=attempt(lambda: cgroup.throttled_s(root)),
        pressure=(
            attempt(lambda: _pressure_s(root, "cpu")),
            attempt(lambda: _pressure_s(root, "io")),
            attempt(lambda: _pressure_s(root, "memory")),
        ),
        storage_bytes=io_counters["read_bytes"] if io_counters else None,
        read_bytes=io_counters["rchar"] if io_counters else None,
        major_faults=resource.getrusage(resource.RUSAGE_SELF).ru_majflt,
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
    """Say what happened between two readings."""
    wall_s = after.at_s - before.at_s
    cpu_s = after.cpu_s - before.cpu_s
    busy_s = _difference(before.busy_s, after.busy_s)
    cpus = len(usable_cpus())
    quota = attempt(lambda: cgroup.quota_vcpus(root))
    pressures = [_difference(*pair) for pair in zip(before.pressure, after.pressure, strict=True)]
    busiest, second = _busiest_threads(before, after, wall_s)
    shares = [None if stalled is None else stalled / wall_s for stalled in pressures]
    signals = Signals(
        wall_s=wall_s,
        cpu_s=cpu_s,
        tool_cpu_s=tool_cpu_s,
        consumer_cpu_s=consumer_cpu_s,
        vcpus_visible=cpus,
        vcpus_usable=min(cpus, quota) if quota else float(cpus),
        run_delay_s=_difference(before.run_delay_s, after.run_delay_s),
        busiest_thread=busiest,
        second_thread=second,
        other_cpu_s=None if busy_s is None else max(0.0, busy_s - cpu_s),
        steal_s=_difference(before.steal_s, after.steal_s),
        throttled_s=_difference(before.throttled_s, after.throttled_s),
        pressure_cpu=shares[0],
        pressure_io=shares[1],
        pressure_memory=shares[2],
        gil_overshoot_p90_ms=_p90_ms(gil_overshoots_s),
        storage_bytes_read=_count(before.storage_bytes, after.storage_bytes),
        bytes_read=_count(before.read_bytes, after.read_bytes),
        major_faults=after.major_faults - before.major_faults,
    )
    unknown = (field.name for field in fields(signals) if getattr(signals, field.name) is None)
    return replace(signals, missing=tuple(unknown))


def attempt(source: Callable[[], Value]) -> Value | None:
    """Read a source that this machine may not have."""
    try:
        return source()
    except (OSError, ArithmeticError, LookupError, ValueError):
        return None


def _threads(root: Path) -> dict[str, tuple[float, float]]:
    """Of every thread, our workers' too: seconds on a vCPU, and seconds ready and without one."""
    tasks = list(os.scandir(root / "proc/self/task"))
    for worker in tree.workers(root):
        with contextlib.suppress(OSError):
            tasks += os.scandir(worker / "task")
    found = {}
    for task in tasks:
        if counters := attempt(Path(task.path, "schedstat").read_text):
            running_ns, delayed_ns = counters.split()[:2]
            found[task.name] = int(running_ns) / 1e9, int(delayed_ns) / 1e9
    return found


def _busiest_threads(
    before: Reading, after: Reading, wall_s: float
) -> tuple[float | None, float | None]:
    """The two largest shares of the time that a thread ran or was ready to run."""
    if before.thread_demand_s is None or after.thread_demand_s is None:
        return None, None
    earlier = before.thread_demand_s
    grown = [total - earlier.get(name, 0.0) for name, total in after.thread_demand_s.items()]
    first, second, *_ = sorted([*grown, 0.0, 0.0], reverse=True)
    return min(1.0, first / wall_s), min(1.0, second / wall_s)


def _machine_cpu(root: Path, cpus: tuple[int, ...]) -> tuple[float, float]:
    """Busy and stolen seconds of the CPUs that we may run on, whoever used them."""
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
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
    return busy * tick_s, steal * tick_s


def _pressure_s(root: Path, resource_name: str) -> float:
    line = (root / "proc/pressure" / resource_name).read_text().splitlines()[0]
    return int(line.rsplit("total=", 1)[1]) / 1e6


def _process_io(root: Path) -> dict[str, int]:
    lines = (root / "proc/self/io").read_text().splitlines()
    return {name: int(value) for name, value in (line.split(": ") for line in lines)}


def _difference(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else max(0.0, after - before)


def _count(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else max(0, after - before)


def _p90_ms(overshoots_s: list[float]) -> float | None:
    if len(overshoots_s) < 10:
        return None
    return sorted(overshoots_s)[int(0.9 * len(overshoots_s))] * 1000
