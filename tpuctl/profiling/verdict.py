"""From measurements to a verdict: device, vCPUs, interpreter lock or I/O? Pure.

The kind of bottleneck is found first: a pipeline limited by the GIL or by slow reads looks
short of vCPUs if only CPU time is divided, although more vCPUs would not help.
"""

from collections.abc import Callable
from dataclasses import replace

from tpuctl.profiling.case import (
    TWO_THREADS,
    Case,
    Finding,
    heaviest_stage,
    lock_is_held,
    longest_stage,
    serial_runs,
    taken_by_others,
)
from tpuctl.profiling.likely import likely_cause
from tpuctl.profiling.reference import Thresholds
from tpuctl.profiling.windows import Phase

ONE_HALF = 0.5
# A median below this share of the mean: a few batches took most of the time.
MOSTLY_LATE = 0.2
TRANSFERS = ("Transfer", "CopyToDevice", "PrefetchToDevice")
Rule = Callable[[Case], Finding | None]


def judge(case: Case) -> Finding:
    """Apply the rules in order; the first that matches decides, else the verdict is unknown."""
    for rule in RULES:
        if finding := rule(case):
            return finding
    return _unknown(case)


def _device(case: Case) -> Finding | None:
    wait = case.wait_fraction
    if wait is None or wait >= case.limits.starved_wait or _starts_slowly(case):
        return None
    line = f"the loop waited {wait:.1%} of its time for input"
    if wait < case.limits.device_wait:
        return Finding("device", _sure(wait, case.limits.device_wait), (line,))
    return Finding("device", 0.5, (line, "that is between keeping up and starving the device"))


def _startup(case: Case) -> Finding | None:
    wait = case.wait_fraction
    if wait is not None and wait < case.limits.starved_wait and _starts_slowly(case):
        first_s = case.measured.first_batch_s
        return Finding(
            "startup",
            0.8,
            (f"the first batch took {first_s:.1f} s; later ones keep the device busy",),
        )
    alone = case.others <= case.limits.contended_other
    if alone and case.free.warming_up and (case.device is None or case.device.warming_up):
        return Finding(
            "startup", 0.7, ("batches came much faster at the end of the window than at its start",)
        )
    return None


def _starts_slowly(case: Case) -> bool:
    first_s, step_s = case.measured.first_batch_s, case.free.step_times.p50
    return first_s > max(case.limits.startup_s, 10 * step_s) and first_s > case.free.wall_s


def _bursty(case: Case) -> Finding | None:
    device, wait = case.device_examples_per_s, case.wait_fraction
    if case.device is None or device is None or wait is None:
        return None
    if case.examples_per_s < case.limits.fits * device:
        return None
    fits = (
        f"on average the pipeline produces {case.examples_per_s:,.0f} examples/s and the device "
        f"consumes {device:,.0f}, yet the loop waited {wait:.1%} of its time"
    )
    if (delay := _delayed_by_others(case.device, wait, case.limits)) is not None:
        return replace(delay, evidence=(fits, *delay.evidence))
    times, waits = case.free.step_times, case.device.waits
    uneven = times.p99 > case.limits.burst_ratio * times.p50
    rare = (
        times.largest > case.limits.rare_burst * times.p50 and waits.p50 < MOSTLY_LATE * waits.mean
    )
    if uneven or rare:
        late_s = times.p99 if uneven else times.largest
        line = f"batch times vary: median {times.p50 * 1e3:.0f} ms, slow ones {late_s * 1e3:.0f} ms"
        return Finding("bursty", 0.7, (fits, line), bottleneck=heaviest_stage(case))
    if not _runs_ahead(case):
        line = "nothing prepares the next batch while the device computes: no prefetch at the end"
        return Finding("serial", 0.9, (fits, line), bottleneck=len(case.parts.stages) - 1)
    return Finding("unknown", 0.0, (fits, "batch times hardly vary, which contradicts that"))


def _delayed_by_others(device: Phase, wait: float, limits: Thresholds) -> Finding | None:
    """The finding if the loop waited because others used the vCPUs that its threads needed."""
    later, delayed_s = taken_by_others(device), device.signals.delayed_s or 0.0
    delayed = delayed_s / device.wall_s
    if later <= limits.contended_other or delayed < ONE_HALF * wait:
        return None
    lines = (
        f"with the device, other processes used {later:.0%} of the vCPUs",
        f"and this process's threads waited for one {delayed:.2f} s per second",
    )
    if delayed >= wait:
        return Finding("stolen", 0.7, lines)
    return Finding("unknown", 0.0, (*lines, "which is too much to know why batches are late"))


def _runs_ahead(case: Case) -> bool:
    """Whether the end of the pipeline works while the loop does something else."""
    if case.measured.runs_ahead is not None:
        return case.measured.runs_ahead
    outer = (node.path[-1] for node in case.free.nodes[:3])
    return any("Prefetch" in name or "Parallel" in name or "MapAndBatch" in name for name in outer)


def _throttled(case: Case) -> Finding | None:
    if case.throttled < case.limits.throttled:
        return None
    usable = case.free.signals.vcpus_usable
    return Finding(
        "throttled",
        min(1.0, 0.5 + case.throttled),
        (f"the CPU quota of {usable:g} vCPUs throttled it {case.throttled:.0%} of the time",),
        bottleneck=heaviest_stage(case),
    )


def _cpu(case: Case) -> Finding | None:
    busy = case.own + case.others
    if busy < case.limits.busy:
        return None
    usable = case.free.signals.vcpus_usable
    lines = [
        f"this process uses {case.own:.0%} of {usable:g} usable vCPUs, others use {case.others:.0%}"
    ]
    if case.run_delay is not None:
        lines.append(
            f"threads that could run waited {case.run_delay:.2f} s per second for each vCPU"
        )
    heaviest = heaviest_stage(case)
    later = taken_by_others(case.device) if case.device else 0.0
    if later > case.limits.contended_other:
        lines.append(f"with the device, others used {later:.0%} of the vCPUs")
    if max(case.others, later) <= case.limits.contended_other:
        return Finding("vcpu", _sure(1 - busy, 0.2), tuple(lines), heaviest)
    quiet = (case.run_delay or 1.0) < case.limits.contended_run_delay
    if quiet and later <= case.limits.contended_other:
        return None
    # If others use most of the vCPUs, a single thread that is always runnable is enough.
    wanted = (
        case.limits.serial_active
        if case.is_starved_of_vcpus
        else case.limits.stolen_demand * usable
    )
    if case.demand is not None and case.demand < wanted:
        return None
    return Finding("stolen", min(0.95, 0.6 + max(case.others, later)), tuple(lines), heaviest)


def _gil(case: Case) -> Finding | None:
    late_ms = case.free.signals.gil_overshoot_p90_ms
    usual_ms = case.free.signals.gil_overshoot_p50_ms
    python = [stage.index for stage in case.parts.stages if stage.runs_python]
    cpu_ms = sum(case.parts.stages[index].cpu_ms_per_example for index in python)
    if case.is_all_python:
        cpu_ms = case.parts.cpu_s_per_example * 1e3
    in_python = cpu_ms / 1e3 * case.parts.examples_processed / case.free.wall_s
    if late_ms is None or usual_ms is None or not lock_is_held(case):
        return None
    mostly = cpu_ms >= case.limits.gil_share * case.parts.cpu_s_per_example * 1e3
    alone = case.others <= case.limits.contended_other
    if not (in_python >= case.limits.gil_vcpus or (mostly and alone)):
        return None
    if case.own >= case.limits.busy:
        return None
    if case.in_flight > TWO_THREADS and (case.demand or 0.0) >= case.limits.busy * case.in_flight:
        # Calls that wait for the lock do not need a vCPU. These do, but others use it.
        return None
    if in_python > TWO_THREADS or (case.measured.settings.get("num_workers") or 0) > 0:
        return None
    return Finding(
        "gil",
        0.9,
        (
            f"a 2 ms sleep in Python ended {usual_ms:.1f} ms late (90th percentile "
            f"{late_ms:.1f} ms, waiting for a vCPU not counted): a thread holds the interpreter "
            "lock",
            f"Python code uses {in_python:.2f} vCPUs and cannot use more than one; "
            f"{case.own:.0%} of the usable vCPUs are busy",
            *_overhead_line(case),
        ),
        # What runs the stages may hold it more than any of them.
        bottleneck=None if case.overhead > ONE_HALF else longest_stage(case, python),
    )


def _serial(case: Case) -> Finding | None:
    if case.own >= case.limits.busy or case.free.signals.vcpus_usable < TWO_THREADS:
        return None
    python_threads = case.measured.lanes == 1 and (case.free.signals.second_thread or 0) > ONE_HALF
    if case.is_starved_of_vcpus or python_threads:
        # Python code with one lane may wait for threads that it started itself.
        return None
    worst = max(serial_runs(case), key=lambda run: run[1], default=None)
    waits = case.blocked >= case.limits.blocked_share
    if worst is not None and worst[1] >= case.limits.serial_active and not waits:
        stages, active = worst
        names = ", ".join(dict.fromkeys(case.parts.stages[index].name for index in stages))
        line = (
            f"one thread runs {names} {min(1.0, active):.0%} of the time; others cannot share that"
        )
        return Finding("serial", _sure(1 - active, 0.2), (line,), longest_stage(case, stages))
    return _one_busy_thread(case, worst) or _few_lanes(case)


def _one_busy_thread(case: Case, worst: "tuple[list[int], float] | None") -> Finding | None:
    """A thread that is always busy while hardly any other needs a vCPU."""
    busiest, second = case.free.signals.busiest_thread, case.free.signals.second_thread
    if busiest is None or second is None or worst is None or (case.measured.lanes or 1) > 1:
        return None
    if busiest < case.limits.serial_active or second > ONE_HALF:
        return None
    line = f"one thread is busy {busiest:.0%} of the time, the next one {second:.0%}"
    return Finding("serial", 0.8, (line, *_overhead_line(case)), longest_stage(case, worst[0]))


def _few_lanes(case: Case) -> Finding | None:
    """All workers are busy, and there are fewer of them than vCPUs."""
    lanes, usable = case.measured.lanes or 0, case.free.signals.vcpus_usable
    full = case.in_flight >= case.limits.serial_active * lanes
    if not 1 < lanes < case.limits.busy * usable or not full:
        return None
    line = f"all {lanes} workers are busy and there are {usable:g} vCPUs"
    return Finding("serial", 0.8, (line,), longest_stage(case))


def _element_by_element(case: Case) -> Finding | None:
    """No waiting, and more vCPUs or most work are for passing single elements between stages."""
    if case.is_starved_of_vcpus or lock_is_held(case) or not case.parts.stages:
        return None
    if case.blocked >= case.limits.blocked_share:
        return None
    if case.hands_over:
        line = (
            f"on half of the vCPUs it is {case.gain_of_vcpus:.2f} times slower: more of them do "
            "not help, since handing single elements from thread to thread costs what they gain"
        )
        return Finding("serial", 0.8, (line, *_overhead_line(case)), longest_stage(case))
    if case.own >= case.limits.busy or case.overhead < ONE_HALF:
        return None
    return Finding("serial", 0.6, _overhead_line(case), longest_stage(case))


def _transfer(case: Case) -> Finding | None:
    """Copies to the device take most of the stages' active time."""
    moved = [s for s in case.parts.stages if s.op in TRANSFERS]
    active = sum(stage.calls_in_flight for stage in moved)
    if not moved or active < case.limits.transfer_share * case.in_flight or active < ONE_HALF:
        return None
    line = f"copies to the device take {active / case.in_flight:.0%} of the stages' active time"
    return Finding("transfer", 0.85, (line,), bottleneck=moved[0].index)


def _waiting(case: Case) -> Finding | None:
    least = case.limits.blocked_alone if case.in_flight < TWO_THREADS else case.limits.blocked_share
    if case.own >= case.limits.idle or case.blocked < least or lock_is_held(case):
        return None
    workers = case.measured.settings.get("num_workers") or 0
    if workers and (case.measured.lanes or 0) >= 2 * workers:
        # Threads of a worker may wait for its lock, which is not probed.
        is_full = case.own + case.others >= case.limits.busy
        if is_full and (case.demand or 0.0) >= case.free.signals.vcpus_usable:
            return None
        if found := _lock_of_workers(case, workers):
            return found
    stage = max(
        case.parts.stages, key=lambda each: each.active_ms_per_example - each.cpu_ms_per_example
    )
    slow, pool = stage.index, case.measured.threadpool_size
    lines = [
        f"{case.in_flight:.1f} calls were active at a time on {case.own:.0%} of the vCPUs: "
        f"{case.blocked:.0%} of their time is waiting",
        f"{stage.name} takes {stage.active_ms_per_example:.1f} ms per example, "
        f"{stage.cpu_ms_per_example:.2f} ms of it on a vCPU",
    ]
    capped = bool(pool) and case.in_flight >= case.limits.pool_full * pool
    if capped and (stage.parallelism or 1) > pool:
        line = f"{stage.parallelism} calls are allowed but the thread pool has {pool} threads"
        return Finding("threadpool", 0.85, (*lines, line), bottleneck=slow)
    line = f"at most {stage.parallelism or 1} of its calls may wait at the same time"
    if stage.runs_python and case.free.signals.gil_overshoot_p90_ms is None:
        doubt = "too short to tell whether they wait for the interpreter lock: measure for longer"
        return Finding("io", ONE_HALF, (*lines, line, doubt), bottleneck=slow)
    return Finding("io", 0.85, (*lines, line), bottleneck=slow)


def _lock_of_workers(case: Case, workers: int) -> Finding | None:
    """Worker processes that use a vCPU each although they have more threads."""
    each = case.free.signals.cpu_s / case.free.wall_s / workers
    if not case.limits.gil_demand <= each < TWO_THREADS:
        return None
    line = (
        f"{case.measured.lanes} threads of {workers} worker processes use {each:.2f} vCPUs in each "
        "process: one interpreter lets one of them run at a time"
    )
    return Finding("gil", 0.7, (line,), longest_stage(case))


def _small_pool(case: Case) -> Finding | None:
    """Work that could use more vCPUs than the thread pool has threads."""
    pool, usable = case.measured.threadpool_size, case.free.signals.vcpus_usable
    if not 0 < pool < case.limits.busy * usable or case.own + case.others >= case.limits.busy:
        return None
    capped = [stage for stage in case.parts.stages if (stage.parallelism or 1) > pool]
    calls = sum(stage.calls_in_flight for stage in capped)
    # More calls at a time than the pool has threads run in others, such as those of Keras.
    if not case.limits.pool_full <= calls / pool <= case.limits.fits:
        return None
    worst = max(capped, key=lambda stage: stage.active_ms_per_example)
    line = (
        f"{worst.parallelism} calls are allowed and there are {usable:g} vCPUs, but all {pool} "
        "threads of the thread pool are busy"
    )
    return Finding("threadpool", 0.85, (line,), bottleneck=worst.index)


def _rarely_late(case: Case) -> Finding | None:
    """A few batches take nearly all the time, and nothing else explains the wait."""
    times = case.free.step_times
    if case.is_starved_of_vcpus or times.p50 >= MOSTLY_LATE * times.mean:
        return None
    line = (
        f"half of the batches take up to {times.p50 * 1e3:.1f} ms but the mean is "
        f"{times.mean * 1e3:.1f} ms: a few slow ones take nearly all the time"
    )
    return Finding("bursty", 0.6, (line,), bottleneck=heaviest_stage(case))


def _unknown(case: Case) -> Finding:
    late_ms = case.free.signals.gil_overshoot_p90_ms
    return Finding(
        "unknown",
        0.0,
        (
            f"this process uses {case.own:.0%} of the vCPUs, others {case.others:.0%}; "
            f"{case.blocked:.0%} of the stages' time is waiting; "
            f"GIL probe {'unknown' if late_ms is None else f'{late_ms:.1f} ms'}: "
            "no single cause fits",
            *_overhead_line(case),
            *(("measure again when other processes are idle",) if case.is_starved_of_vcpus else ()),
        ),
    )


def _overhead_line(case: Case) -> tuple[str, ...]:
    share = case.overhead
    if share < case.limits.residual or not case.parts.stages:
        return ()
    return (f"{share:.0%} of the CPU time is spent on passing elements between stages",)


RULES: tuple[Rule, ...] = (
    _device,
    _startup,
    _bursty,
    _throttled,
    _transfer,
    _gil,
    _waiting,
    _small_pool,
    _serial,
    _element_by_element,
    _cpu,
    _rarely_late,
    likely_cause,
)


def _sure(distance: float, scale: float) -> float:
    """Confidence between 1.0, far from the threshold, and 0.6 at the threshold."""
    return round(max(0.6, 1.0 - 0.4 * max(0.0, distance) / scale), 2)
