"""What the rules for a verdict look at, and how many vCPUs a device would need. Pure."""

from dataclasses import dataclass
from functools import partial

from tpuctl.pipeline.attribution import Attribution
from tpuctl.pipeline.models import Device, Measurement, Phase, Vcpus, Verdict
from tpuctl.pipeline.reference import Thresholds, load_facts, thresholds
from tpuctl.pipeline.whatif import Scaling, what_if

CPU_REGIMES: tuple[Verdict, ...] = ("device", "vcpu", "stolen", "throttled")
LEAST_BUSY = 0.01


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


def count_vcpus(case: Case, verdict: Verdict, device: Device | None = None) -> Vcpus:
    """Say how many vCPUs would keep the device busy: batch size x CPU per example / step time.

    An example takes a little more of that on more vCPUs. Refused outside the regimes in which vCPUs
    are what is missing. Where the step time of the device is an interval, so is the answer.
    """
    signals = case.free.signals
    used = signals.cpu_s / signals.wall_s

    def refused(why: str) -> Vcpus:
        return Vcpus(signals.vcpus_usable, used, None, None, None, why)

    if case.device_step_s is None:
        return refused("no device step time: give --device-step-ms or --train")
    if verdict not in CPU_REGIMES:
        return refused(f"the verdict is {verdict}: vCPUs are not what is missing")
    step_ms = case.device_step_s * 1e3
    slow_ms = device.high_ms if device and device.high_ms else step_ms
    fast_ms = device.low_ms if device and device.low_ms else step_ms

    fed = partial(
        what_if,
        batch_size=case.measured.batch_size,
        cpu_ms_per_example=case.parts.cpu_s_per_example * 1e3,
        vcpus=signals.vcpus_usable,
        scaling=scaling_of(case),
    )
    return Vcpus(
        signals.vcpus_usable,
        used,
        fed(step_ms=step_ms).vcpus_needed,
        fed(step_ms=slow_ms).vcpus_low,
        fed(step_ms=fast_ms).vcpus_high,
        None,
    )


def scaling_of(case: Case) -> Scaling:
    """What a prediction for other vCPUs rests on: this run, and a dated fact about others."""
    known, signals = load_facts("scaling.json"), case.free.signals
    busy = signals.cpu_s / signals.wall_s + case.others * signals.vcpus_visible
    return Scaling(
        busy_vcpus=max(LEAST_BUSY, min(busy, float(signals.vcpus_visible))),
        growth=known["growth_per_doubling"],
        growth_low=known["growth_least"],
        growth_high=known["growth_most"],
        cpu_low=case.parts.low_factor,
        cpu_high=case.parts.high_factor,
        unevenness=case.free.unevenness or 0.0,
        batches_ahead=known["batches_ahead"],
    )
