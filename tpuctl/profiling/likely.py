"""The likely cause of a bottleneck if no rule is certain. Pure."""

from typing import NamedTuple

from tpuctl.profiling.case import (
    TWO_THREADS,
    Case,
    Finding,
    heaviest_stage,
    lock_is_held,
    longest_stage,
    serial_runs,
)
from tpuctl.profiling.models import Verdict

# Below this share of its limit, a cause is not even likely; the others get at most half confidence.
LIKELY, HALF_CERTAIN = 0.65, 0.5


class _Near(NamedTuple):
    """A cause, and the share of its limit that was measured."""

    verdict: Verdict
    name: str
    share: float
    bottleneck: int | None


def likely_cause(case: Case) -> Finding | None:
    """The cause that comes nearest to its limit, if none reaches it.

    This is usual for finite data sets: at the end of every epoch the stages drain, so the vCPUs are
    busy most of the time but not always.
    """
    longest, _ = max(serial_runs(case), key=lambda run: run[1], default=([], 0.0))
    near = [
        _Near("vcpu", "vCPUs", _near_vcpus(case), heaviest_stage(case)),
        _Near("stolen", "vCPUs that others use", _near_stolen(case), heaviest_stage(case)),
        _Near("io", "waiting", _near_waiting(case), longest_stage(case)),
        _Near("serial", "a thread", _near_serial(case), longest_stage(case, longest)),
    ]
    best, second, *_ = sorted(near, key=lambda each: -each.share)
    if best.share < LIKELY or not case.parts.stages:
        return None
    lines = (
        f"this process uses {case.own:.0%} of the vCPUs, others {case.others:.0%}; "
        f"{case.blocked:.0%} of the stages' time is waiting",
        f"no cause reaches its limit; {best.name} comes nearest ({best.share:.0%} of it), then "
        f"{second.name} ({second.share:.0%})",
    )
    confidence = round(HALF_CERTAIN * min(1.0, best.share), 2)
    return Finding(best.verdict, confidence, lines, best.bottleneck)


def _near_vcpus(case: Case) -> float:
    if case.others > case.own or case.blocked >= case.limits.blocked_share:
        return 0.0
    return (case.own + case.others) / case.limits.busy


def _near_stolen(case: Case) -> float:
    is_full = case.own + case.others >= case.limits.busy
    if not is_full or case.others <= case.own or case.blocked >= case.limits.blocked_share:
        return 0.0
    usable = case.free.signals.vcpus_usable
    return (case.demand or 0.0) / (case.limits.stolen_demand * usable)


def _near_waiting(case: Case) -> float:
    if case.others > case.limits.contended_other or lock_is_held(case):
        return 0.0
    idle = (1 - case.own) / (1 - case.limits.idle)
    return min(case.blocked / case.limits.blocked_share, idle)


def _near_serial(case: Case) -> float:
    if case.others > case.limits.contended_other or case.free.signals.vcpus_usable < TWO_THREADS:
        return 0.0
    active = max((share for _, share in serial_runs(case)), default=0.0)
    ready = case.demand or 0.0
    if ready >= case.limits.gil_demand:
        # One thread after the other is ready to run, although several could.
        active = max(active, min(ready, 2 - ready))
    return active / case.limits.serial_active if case.blocked < case.limits.blocked_share else 0.0
