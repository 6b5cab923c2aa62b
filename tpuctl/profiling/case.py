"""The inputs of the rules for verdicts and advice. Pure."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from tpuctl.profiling.attribution import Attribution, attribute, attribute_counted
from tpuctl.profiling.called import own_clocks, users_function
from tpuctl.profiling.models import Advice, Device, Host, Measurement, Stage, Vcpus, Verdict
from tpuctl.profiling.reference import Thresholds, thresholds
from tpuctl.profiling.whatif import Change
from tpuctl.profiling.windows import Phase

PYTHON_KINDS = ("torch", "grain", "iterable")
CPU_REGIMES: tuple[Verdict, ...] = ("device", "vcpu", "stolen", "throttled")
# With fewer vCPUs, a second thread would have none to run on.
TWO_THREADS = 1.5
# The source of a step time that was measured on a real device.
IN_TRAINING = "measured in the training"


def name_idle(device: Device | None, host: Host | None) -> str:
    """Name what was idle, or would be with the assumed device."""
    if device is None or device.source != IN_TRAINING:
        return "MXU would be idle"
    return "MXU idle" if host and host.has_tpu else "device idle"


@dataclass(frozen=True)
class Finding:
    """A verdict with its confidence, its evidence and the stage that it is about."""

    verdict: Verdict
    confidence: float
    evidence: tuple[str, ...]
    bottleneck: int | None = None


@dataclass(frozen=True)
class Case:
    """The inputs of the verdict rules: the windows without and with a device."""

    measured: Measurement
    free: Phase
    device: Phase | None
    device_step_s: float | None
    parts: Attribution
    limits: Thresholds

    @property
    def examples_per_s(self) -> float:
        """The rate of the pipeline when no device limits it."""
        return self.parts.examples_processed / self.free.wall_s

    @property
    def device_examples_per_s(self) -> float | None:
        """The rate at which the device consumes examples."""
        return self.measured.batch_size / self.device_step_s if self.device_step_s else None

    @property
    def wait_fraction(self) -> float | None:
        """The share of its time that the loop waited for input."""
        if self.device is None:
            return None
        return self.device.waits.mean * self.device.waits.count / self.device.wall_s

    @property
    def own(self) -> float:
        """The share of the usable vCPUs that this process used."""
        signals = self.free.signals
        return signals.cpu_s / (signals.wall_s * signals.vcpus_usable)

    @property
    def others(self) -> float:
        """The share of the visible vCPUs that others used in the window without a device."""
        return taken_by_others(self.free)

    @property
    def throttled(self) -> float:
        """The share of the window in which the CPU quota stopped this process."""
        return (self.free.signals.throttled_s or 0.0) / self.free.signals.wall_s

    @property
    def run_delay(self) -> float | None:
        """Seconds that threads of this process waited for a vCPU, per usable vCPU and second."""
        delay_s = self.free.signals.delayed_s
        wall = self.free.signals.wall_s * self.free.signals.vcpus_usable
        return None if delay_s is None else delay_s / wall

    @property
    def demand(self) -> float | None:
        """The mean number of threads of this process that ran or were ready to run."""
        signals = self.free.signals
        if signals.delayed_s is None:
            return None
        return (signals.cpu_s + signals.delayed_s) / signals.wall_s

    @property
    def has_threads(self) -> bool:
        """Whether threads of this process could use more than one vCPU."""
        return (self.demand or 0.0) >= TWO_THREADS

    @property
    def is_starved_of_vcpus(self) -> bool:
        """Whether threads waited longer for vCPUs that others used than they ran."""
        contended = self.others > self.limits.contended_other
        return contended and (self.free.signals.delayed_s or 0.0) > self.free.signals.cpu_s

    @property
    def blocked(self) -> float:
        """The share of the stages' time that was neither CPU nor waiting for one."""
        busiest = self.free.signals.busiest_thread
        in_process = not self.measured.settings.get("num_workers")
        is_alone = self.measured.lanes == 1 and in_process and 0 < self.in_flight < TWO_THREADS
        if is_alone and busiest is not None:
            # Other processes delay the measuring threads too, which does not block the pipeline.
            return max(0.0, 1 - busiest / self.in_flight)
        active_s = self.in_flight * self.free.signals.wall_s
        known_s = self.free.signals.cpu_s + (self.free.signals.delayed_s or 0.0)
        return max(0.0, 1 - known_s / active_s) if active_s else 0.0

    @property
    def gain_of_vcpus(self) -> float | None:
        """How many times faster all vCPUs are than half of them; None if it is not known."""
        half = self.measured.halved
        if (
            half is None
            or max(map(taken_by_others, (half, self.free))) > self.limits.contended_other
        ):
            return None
        return self.examples_per_s * half.wall_s / half.examples if half.examples else None

    @property
    def hands_over(self) -> bool:
        """Whether handing elements from thread to thread costs what more vCPUs gain."""
        return (gain := self.gain_of_vcpus) is not None and gain < self.limits.vcpus_gain

    @property
    def overhead(self) -> float:
        """The share of the CPU time that the pipeline spent outside its stages.

        In a program, what no stage claims is mostly the training.
        """
        return 0.0 if self.measured.program else self.parts.residual.share_of_cpu

    @property
    def is_all_python(self) -> bool:
        """Whether what runs the stages is Python too, in their own process."""
        measured = self.measured
        in_processes = measured.settings.get("num_workers") or measured.program
        return measured.kind in PYTHON_KINDS and not in_processes

    @property
    def in_flight(self) -> float:
        """The mean number of active calls into stages."""
        active_s = sum(node.active_s for node in self.free.nodes)
        # What a runtime's nodes call is part of their time.
        counted_s = 0.0 if active_s else sum(cost.wall_s for cost in self.free.costs)
        return (active_s + counted_s) / self.free.signals.wall_s


def taken_by_others(phase: Phase) -> float:
    """The share of the visible vCPUs that other processes and other virtual machines used."""
    signals = phase.signals
    return signals.taken_s / (signals.wall_s * signals.vcpus_visible)


def build_case(measured: Measurement) -> Case:
    """Attribute the CPU time of a measurement and collect the inputs of the rules."""
    free = measured.phases[0]
    if free.costs and not (free.nodes or measured.traced):
        is_sampled = measured.kind not in PYTHON_KINDS
        parts = attribute_counted(own_clocks(free) if is_sampled else free)
    else:
        parts = attribute(measured, free)
    parts = replace(parts, stages=tuple(map(_name_lambda, parts.stages)))
    cpu_s = sum(stage.cpu_ms_per_example for stage in parts.stages) / 1000
    if measured.program and cpu_s:
        # CPU time that belongs to no stage is mostly the training's own.
        parts = replace(parts, cpu_s_per_example=cpu_s)
    device = next((phase for phase in measured.phases if phase.name == "device"), None)
    return Case(
        measured=measured,
        free=free,
        device=device,
        device_step_s=device.device_busy_s / device.steps if device else None,
        parts=parts,
        limits=thresholds(),
    )


def _name_lambda(stage: Stage) -> Stage:
    """Name a lambda by its line, because a pipeline may have several."""
    line = (stage.location or "").rpartition(":")[2]
    name = f"lambda at line {line}" if line else "a library's lambda"
    return replace(stage, name=stage.name.replace("<lambda>", name))


def serial_runs(case: Case) -> list[tuple[list[int], float]]:
    """Adjacent stages that share one thread, and the fraction of time that it is busy."""
    runs: list[tuple[list[int], float]] = []
    current: list[int] = []
    for stage in (*case.parts.stages, None):
        is_serial = stage is not None and stage.parallelism in (None, 1)
        if stage is not None and is_serial:
            current.append(stage.index)
        # A prefetch has its own thread, so the next stage starts a new run.
        if current and (stage is None or not is_serial or stage.op == "Prefetch"):
            runs.append((current, sum(case.parts.stages[i].calls_in_flight for i in current)))
            current = []
    return runs


def heaviest_stage(case: Case) -> int | None:
    """The stage that takes the most CPU time in the function that does."""
    among = list(range(len(case.parts.stages)))
    return _largest(case, among, lambda stage: stage.cpu_ms_per_example)


def longest_stage(case: Case, stages: Iterable[int] | None = None) -> int | None:
    """The stage that takes the most time in the function that does, among some or all of them."""
    among = list(range(len(case.parts.stages)) if stages is None else stages)
    return _largest(case, among, lambda stage: stage.active_ms_per_example)


def _largest(case: Case, among: list[int], cost: Callable[[Stage], float]) -> int | None:
    sums: defaultdict[str, float] = defaultdict(float)
    for index in among:
        stage = case.parts.stages[index]
        sums[users_function(stage.name)] += cost(stage)
    ranks = {
        index: (sums[users_function(case.parts.stages[index].name)], cost(case.parts.stages[index]))
        for index in among
    }
    return max(ranks, key=ranks.__getitem__, default=None)


def lock_is_held(case: Case) -> bool:
    """Whether a thread holds the interpreter lock most of the time.

    Other processes that preempt a thread while it holds the lock make the probe late only
    occasionally. A thread that holds the lock runs or is ready to run, so it needs a whole vCPU.
    """
    signals, limits = case.free.signals, case.limits
    often = (signals.gil_overshoot_p90_ms or 0.0) >= limits.gil_overshoot_ms
    usually = (signals.gil_overshoot_p50_ms or 0.0) >= limits.gil_overshoot_usual_ms
    return often and usually and (case.demand is None or case.demand >= limits.gil_demand)


@dataclass(frozen=True)
class AdviceInputs:
    """The inputs of the advice rules."""

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
        """CPU time per example now."""
        return self.case.parts.cpu_s_per_example * 1000

    @property
    def usable_vcpus(self) -> float:
        """The vCPUs that this process may use."""
        return self.case.free.signals.vcpus_usable

    @property
    def full_rate(self) -> float | None:
        """Examples per second if all usable vCPUs were busy at the present CPU cost."""
        return self.usable_vcpus * 1000 / self.total_ms if self.total_ms else None

    def named(self, name: str) -> Stage | None:
        """The stage with that name, if any."""
        return next((stage for stage in self.stages if stage.name == name), None)

    def advice(
        self, code: str, what: str, change: str, rate: float | None, trial: Change | None = None
    ) -> Advice:
        """Make a piece of advice, with the device's idle time that it predicts."""
        device = self.case.device_examples_per_s
        idle = None if device is None or rate is None else max(0.0, 1 - rate / device)
        return Advice(
            code=code,
            what=what,
            predicted_examples_per_s=rate,
            predicted_mxu_idle_fraction=idle,
            change=change,
            trial=trial,
        )

    def rate_with(self, cpu_ms: float, *, dropped: tuple[str, ...] = ()) -> float:
        """Predict the rate for another CPU cost per example, limited by serial stages."""
        used = self.case.own * self.case.free.signals.vcpus_usable
        limits = [used * 1000 / cpu_ms] if cpu_ms else []
        for indices, active in serial_runs(self.case):
            kept = [self.stages[i] for i in indices if self.stages[i].name not in dropped]
            share = sum(stage.calls_in_flight for stage in kept)
            if active and share:
                limits.append(self.case.examples_per_s / share)
        return min(limits, default=self.case.examples_per_s)
