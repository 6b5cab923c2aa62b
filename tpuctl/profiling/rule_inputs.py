"""What the rules for a verdict look at. Pure."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from tpuctl.profiling.attribution import Attribution
from tpuctl.profiling.models import Advice, Measurement, Phase, Stage, Vcpus, Verdict
from tpuctl.profiling.reference import Thresholds, thresholds
from tpuctl.profiling.whatif import Change

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
    def demand(self) -> float | None:
        """How many of our threads ran or were ready to run at a time."""
        signals = self.free.signals
        if signals.run_delay_s is None:
            return None
        return (signals.cpu_s + signals.run_delay_s) / signals.wall_s

    @property
    def is_robbed(self) -> bool:
        """Whether neighbours let our threads wait for a vCPU longer than they have one."""
        contended = self.others > self.limits.contended_other
        return contended and (self.free.signals.run_delay_s or 0.0) > self.free.signals.cpu_s

    @property
    def blocked(self) -> float:
        """The share of the stages' time that was neither CPU nor waiting for one."""
        busiest = self.free.signals.busiest_thread
        if self.measured.lanes == 1 and busiest is not None and self.in_flight:
            # Threads that only measure are delayed too, by neighbours; they are not in the way.
            return max(0.0, 1 - busiest / self.in_flight)
        active_s = self.in_flight * self.free.signals.wall_s
        known_s = self.free.signals.cpu_s + (self.free.signals.run_delay_s or 0.0)
        return max(0.0, 1 - known_s / active_s) if active_s else 0.0

    @property
    def in_flight(self) -> float:
        """How many calls into stages were active at a time."""
        active_s = sum(node.active_s for node in self.free.nodes)
        counted_s = sum(cost.wall_s for cost in self.free.costs)
        return (active_s + counted_s) / self.free.signals.wall_s


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


@dataclass(frozen=True)
class Situation:
    """What the rules of advice look at."""

    case: Case
    finding: Finding
    vcpus: Vcpus
    target: str
    image_size: int

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages, source first."""
        return self.case.parts.stages

    @property
    def total_ms(self) -> float:
        """CPU per example now."""
        return self.case.parts.cpu_s_per_example * 1000

    def named(self, name: str) -> Stage | None:
        """The stage of that name, if there is one."""
        return next((stage for stage in self.stages if stage.name == name), None)

    def advice(
        self, code: str, what: str, change: str, rate: float | None, trial: Change | None = None
    ) -> Advice:
        """Make a piece of advice with what it would mean for the device."""
        device = self.case.device_examples_per_s
        idle = None if device is None or rate is None else max(0.0, 1 - rate / device)
        return Advice(code, what, rate, None, idle, None, change, trial)

    def rate_with(self, cpu_ms: float, *, dropped: tuple[str, ...] = ()) -> float:
        """Examples per second with another CPU cost per example, within what one thread can do."""
        used = self.case.own * self.case.free.signals.vcpus_usable
        limits = [used * 1000 / cpu_ms] if cpu_ms else []
        for indices, active in serial_runs(self.case):
            kept = [self.stages[i] for i in indices if self.stages[i].name not in dropped]
            share = sum(stage.calls_in_flight for stage in kept)
            if active and share:
                limits.append(self.case.examples_per_s / share)
        return min(limits, default=self.case.examples_per_s)


Rule = Callable[[Situation], Advice | None]


def more_vcpus(at: Situation) -> Advice | None:
    """A host with more vCPUs, where that is what is missing."""
    needed, device = at.vcpus.needed_to_saturate, at.case.device_examples_per_s
    if needed is None or device is None or needed <= at.case.free.signals.vcpus_usable:
        return None
    high, used = at.vcpus.high or needed, at.vcpus.used or 0.0
    far = needed > at.case.limits.longest_extrapolation * used
    doubt = f", extrapolated far from {used:.2g}" if far else ""
    return at.advice(
        "more_vcpus",
        f"A host with {math.ceil(needed)} vCPUs would do "
        f"({at.vcpus.low:.1f} to {high:.1f}{doubt}).",
        "tpuctl types shows how many vCPUs each TPU host has",
        device,
    )


def neighbours(at: Situation) -> Advice | None:
    """Fewer other processes."""
    cpu = at.case.own + at.case.others
    rate = at.case.examples_per_s * cpu / at.case.own if at.case.own else None
    return at.advice(
        "neighbours",
        f"Other processes take {at.case.others:.0%} of the vCPUs.",
        "top shows them; stop them or move the training",
        rate,
    )


def quota(at: Situation) -> Advice | None:
    """A larger share of the machine for this container."""
    signals = at.case.free.signals
    rate = at.case.examples_per_s * signals.vcpus_visible / signals.vcpus_usable
    return at.advice(
        "quota",
        f"The container may use {signals.vcpus_usable:g} of {signals.vcpus_visible} vCPUs.",
        "raise the CPU limit of the container (docker --cpus, Kubernetes resources.limits.cpu)",
        rate,
    )
