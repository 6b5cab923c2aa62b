"""From measurements to a verdict: is it the device, the vCPUs, the interpreter, I/O? Pure.

The regime comes first and the arithmetic second: a pipeline held by the GIL or by slow reads looks
like a lack of vCPUs to anything that only divides CPU time, and more of them would not help it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tpuctl.pipeline.attribution import Attribution
from tpuctl.pipeline.models import Device, Measurement, Phase, Stage, Vcpus, Verdict
from tpuctl.pipeline.reference import Thresholds, thresholds
from tpuctl.pipeline.whatif import what_if

# With fewer vCPUs a second thread would have nowhere to run.
TWO_THREADS = 1.5
CPU_REGIMES: tuple[Verdict, ...] = ("device", "vcpu", "stolen", "throttled")


@dataclass(frozen=True)
class Finding:
    """A verdict, how sure we are, what speaks for it, and the stage it is about."""

    verdict: Verdict
    confidence: float
    evidence: tuple[str, ...]
    bottleneck: int | None = None


@dataclass(frozen=True)
class Case:
    """What the rules look at: the window in which the pipeline ran free, and that with a device."""

    measured: Measurement
    free: Phase
    device: Phase | None
    device_step_s: float | None
    parts: Attribution
    limits: Thresholds

    @property
    def examples_per_s(self) -> float:
        """What the pipeline gives when nothing holds it back."""
        return self.parts.examples_processed / self.free.wall_s

    @property
    def device_examples_per_s(self) -> float | None:
        """What the device would take."""
        return self.measured.batch_size / self.device_step_s if self.device_step_s else None

    @property
    def wait_fraction(self) -> float | None:
        """The share of the loop's time that it waited for input."""
        if self.device is None:
            return None
        return self.device.waits.mean * self.device.waits.count / self.device.wall_s

    @property
    def own(self) -> float:
        """Our share of the vCPUs that we may use."""
        signals = self.free.signals
        return signals.cpu_s / (signals.wall_s * signals.vcpus_usable)

    @property
    def others(self) -> float:
        """The share of the visible vCPUs that others took while the pipeline ran free."""
        return taken_by_others(self.free)

    @property
    def throttled(self) -> float:
        """The share of the window in which the quota held us back."""
        return (self.free.signals.throttled_s or 0.0) / self.free.signals.wall_s

    @property
    def run_delay(self) -> float | None:
        """Seconds that our threads waited for a vCPU, per usable vCPU and second."""
        delay_s = self.free.signals.run_delay_s
        wall = self.free.signals.wall_s * self.free.signals.vcpus_usable
        return None if delay_s is None else delay_s / wall

    @property
    def blocked(self) -> float:
        """The share of the stages' time that was neither CPU nor waiting for one."""
        active_s = self.in_flight * self.free.signals.wall_s
        known_s = self.free.signals.cpu_s + (self.free.signals.run_delay_s or 0.0)
        return max(0.0, 1 - known_s / active_s) if active_s else 0.0

    @property
    def in_flight(self) -> float:
        """How many calls into stages were active at a time."""
        active_s = sum(node.active_s for node in self.free.nodes)
        counted_s = sum(cost.wall_s for cost in self.free.costs)
        return (active_s + counted_s) / self.free.signals.wall_s


Rule = Callable[[Case], Finding | None]


def taken_by_others(phase: Phase) -> float:
    """The share of the visible vCPUs that other processes and other machines took."""
    signals = phase.signals
    taken_s = (signals.other_cpu_s or 0.0) + (signals.steal_s or 0.0)
    return taken_s / (signals.wall_s * signals.vcpus_visible)


def build_case(measured: Measurement, parts: Attribution, limits: Thresholds | None = None) -> Case:
    """Collect what the rules look at."""
    device = next((phase for phase in measured.phases if phase.name == "device"), None)
    return Case(
        measured=measured,
        free=measured.phases[0],
        device=device,
        device_step_s=device.device_busy_s / device.steps if device else None,
        parts=parts,
        limits=limits or thresholds(),
    )


def judge(case: Case) -> Finding:
    """Apply the rules in order; the first that is sure decides, none means unknown."""
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
    return Finding("device", 0.5, (line, "between keeping up and starving"))


def _startup(case: Case) -> Finding | None:
    wait = case.wait_fraction
    if wait is not None and wait < case.limits.starved_wait and _starts_slowly(case):
        first_s = case.measured.first_batch_s
        return Finding(
            "startup",
            0.8,
            (f"the first batch took {first_s:.1f} s, later ones keep the device busy",),
        )
    if case.free.warming_up and (case.device is None or case.device.warming_up):
        return Finding(
            "startup", 0.7, ("batches came much faster at the end of the window than before",)
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
        f"on average the pipeline gives {case.examples_per_s:,.0f} examples/s and the device takes "
        f"{device:,.0f}, yet the loop waited {wait:.1%}"
    )
    if not _runs_ahead(case):
        line = "nothing works on the next batch while the device computes: no prefetch at the end"
        return Finding("serial", 0.9, (fits, line), bottleneck=len(case.parts.stages) - 1)
    times = case.free.step_times
    if times.p99 > case.limits.burst_ratio * times.p50:
        line = f"batch times vary: median {times.p50 * 1e3:.0f} ms, 99th {times.p99 * 1e3:.0f} ms"
        return Finding("bursty", 0.7, (fits, line), bottleneck=_heaviest(case.parts.stages))
    if (later := taken_by_others(case.device)) > case.limits.contended_other:
        line = f"with the device, other processes took {later:.0%} of the vCPUs"
        return Finding("stolen", 0.7, (fits, line), bottleneck=_heaviest(case.parts.stages))
    return Finding("unknown", 0.0, (fits, "batch times hardly vary: these signals conflict"))


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
        (f"the CPU quota of {usable:g} vCPUs held us back {case.throttled:.0%} of the time",),
        bottleneck=_heaviest(case.parts.stages),
    )


def _cpu(case: Case) -> Finding | None:
    busy = case.own + case.others
    if busy < case.limits.busy:
        return None
    usable = case.free.signals.vcpus_usable
    lines = [f"own CPU is {case.own:.0%} of {usable:g} usable vCPUs, others take {case.others:.0%}"]
    if case.run_delay is not None:
        lines.append(f"ready threads waited {case.run_delay:.2f} s per vCPU and second for one")
    heaviest = _heaviest(case.parts.stages)
    later = taken_by_others(case.device) if case.device else 0.0
    if later > case.limits.contended_other:
        lines.append(f"with the device, others took {later:.0%} of the vCPUs")
    if max(case.others, later) <= case.limits.contended_other:
        return Finding("vcpu", _sure(1 - busy, 0.2), tuple(lines), heaviest)
    quiet = (case.run_delay or 1.0) < case.limits.contended_run_delay
    if quiet and later <= case.limits.contended_other:
        return None
    return Finding("stolen", min(0.95, 0.6 + max(case.others, later)), tuple(lines), heaviest)


def _gil(case: Case) -> Finding | None:
    late_ms = case.free.signals.gil_overshoot_p90_ms
    python = [stage.index for stage in case.parts.stages if stage.runs_python]
    cpu_ms = sum(case.parts.stages[index].cpu_ms_per_example for index in python)
    in_python = cpu_ms / 1e3 * case.parts.examples_processed / case.free.wall_s
    if late_ms is None or late_ms < case.limits.gil_overshoot_ms:
        return None
    if case.own >= case.limits.busy or in_python < case.limits.gil_vcpus:
        return None
    busiest = max(python, key=lambda index: case.parts.stages[index].active_ms_per_example)
    return Finding(
        "gil",
        0.9,
        (
            f"a 2 ms sleep in Python ended {late_ms:.1f} ms late (90th percentile): "
            "somebody holds the interpreter lock",
            f"Python stages use {in_python:.2f} vCPUs and cannot use more than one; "
            f"{case.own:.0%} of the usable vCPUs are busy",
        ),
        bottleneck=busiest,
    )


def _serial(case: Case) -> Finding | None:
    worst = max(serial_runs(case), key=lambda run: run[1], default=None)
    if worst is None or worst[1] < case.limits.serial_active:
        return None
    if case.own >= case.limits.busy or case.free.signals.vcpus_usable < TWO_THREADS:
        return None
    stages, active = worst
    names = ", ".join(case.parts.stages[index].name for index in stages)
    heaviest = max(stages, key=lambda index: case.parts.stages[index].active_ms_per_example)
    return Finding(
        "serial",
        _sure(1 - active, 0.2),
        (f"one thread runs {names} {active:.0%} of the time; no other thread can help it",),
        bottleneck=heaviest,
    )


def serial_runs(case: Case) -> list[tuple[list[int], float]]:
    """Neighbouring stages that share one thread, and the share of the time that it is busy."""
    runs: list[tuple[list[int], float]] = []
    current: list[int] = []
    for stage in (*case.parts.stages, None):
        if stage is not None and stage.parallelism in (None, 1):
            current.append(stage.index)
        elif current:
            runs.append((current, sum(case.parts.stages[i].calls_in_flight for i in current)))
            current = []
        if stage is not None and stage.op == "Prefetch" and current:
            runs.append((current, sum(case.parts.stages[i].calls_in_flight for i in current)))
            current = []
    return runs


def _waiting(case: Case) -> Finding | None:
    quiet = (case.free.signals.gil_overshoot_p90_ms or 0.0) < case.limits.gil_overshoot_ms
    if case.own >= case.limits.idle or case.blocked < case.limits.blocked_share or not quiet:
        return None
    slow = _most_blocked(case.parts.stages)
    stage, pool = case.parts.stages[slow], case.measured.threadpool_size
    lines = [
        f"stages were active {case.in_flight:.1f} calls at a time on {case.own:.0%} of the vCPUs: "
        f"{case.blocked:.0%} of their time is waiting",
        f"{stage.name} takes {stage.active_ms_per_example:.1f} ms per example, "
        f"{stage.cpu_ms_per_example:.2f} ms of it on a vCPU",
    ]
    capped = bool(pool) and case.in_flight >= case.limits.pool_full * pool
    if capped and (stage.parallelism or 1) > pool:
        line = f"{stage.parallelism} calls are allowed and the thread pool has {pool} threads"
        return Finding("threadpool", 0.85, (*lines, line), bottleneck=slow)
    line = f"at most {stage.parallelism or 1} of its calls may wait at the same time"
    return Finding("io", 0.85, (*lines, line), bottleneck=slow)


def _unknown(case: Case) -> Finding:
    late_ms = case.free.signals.gil_overshoot_p90_ms
    return Finding(
        "unknown",
        0.0,
        (
            f"own CPU {case.own:.0%}, others {case.others:.0%} of the vCPUs, "
            f"{case.blocked:.0%} of the stages' time is waiting, "
            f"GIL probe {'not known' if late_ms is None else f'{late_ms:.1f} ms'}: "
            "no single cause fits",
            *_overhead_line(case),
        ),
    )


def _overhead_line(case: Case) -> tuple[str, ...]:
    share = case.parts.residual.share_of_cpu
    if share < case.limits.residual:
        return ()
    return (f"{share:.0%} of the CPU time is spent between the stages, element by element",)


RULES: tuple[Rule, ...] = (
    _device,
    _startup,
    _bursty,
    _throttled,
    _gil,
    _waiting,
    _serial,
    _cpu,
)


def count_vcpus(case: Case, verdict: Verdict, device: Device | None = None) -> Vcpus:
    """Say how many vCPUs would keep the device busy: batch size x CPU per example / step time.

    Refused outside the regimes in which vCPUs are what is missing. Where the step time of the
    device is an interval, so is the answer.
    """
    signals = case.free.signals
    used = signals.cpu_s / signals.wall_s

    def refused(why: str) -> Vcpus:
        return Vcpus(signals.vcpus_usable, used, None, None, None, why)

    if case.device_step_s is None:
        return refused("no device step time: give --device-step-ms or --train")
    if verdict not in CPU_REGIMES:
        return refused(f"the verdict is {verdict}: vCPUs are not what is missing")
    needed = what_if(
        batch_size=case.measured.batch_size,
        cpu_ms_per_example=case.parts.cpu_s_per_example * 1e3,
        vcpus=used,
        step_ms=case.device_step_s * 1e3,
    ).vcpus_needed
    inflation = extrapolation(needed, max(used, 1e-9), case.limits)
    slower = device.step_ms / device.high_ms if device and device.high_ms else 1.0
    faster = device.step_ms / device.low_ms if device and device.low_ms else 1.0
    return Vcpus(
        signals.vcpus_usable,
        used,
        needed,
        needed * case.parts.low_factor * slower,
        needed * case.parts.high_factor * inflation * faster,
        None,
    )


def extrapolation(needed: float, used: float, limits: Thresholds) -> float:
    """How much CPU time per example may grow on more vCPUs than were measured."""
    doublings = max(0.0, math.log2(needed / used)) if needed > 0 else 0.0
    return float((1 + limits.inflation_per_doubling) ** doublings)


def _heaviest(stages: Sequence[Stage]) -> int | None:
    costs = [stage.cpu_ms_per_example for stage in stages]
    return costs.index(max(costs)) if costs else None


def _most_blocked(stages: Sequence[Stage]) -> int:
    waits = [stage.active_ms_per_example - stage.cpu_ms_per_example for stage in stages]
    return waits.index(max(waits))


def _sure(distance: float, scale: float) -> float:
    """Confidence from 1.0 where the signal is far on its side down to 0.6 at the edge."""
    return round(max(0.6, 1.0 - 0.4 * max(0.0, distance) / scale), 2)
