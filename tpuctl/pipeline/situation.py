"""What the rules of advice look at, and the rules that hold for every kind of pipeline. Pure."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from tpuctl.pipeline.analyze import Case, Finding, serial_runs
from tpuctl.pipeline.changes import Change
from tpuctl.pipeline.models import Advice, Stage, Vcpus


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
