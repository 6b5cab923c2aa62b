"""CPU time per stage where the functions of a pipeline count themselves. Pure."""

from tpuctl.profiling.attribution import RESIDUAL, Attribution
from tpuctl.profiling.models import Measurement, Phase, Residual, Signals, Stage, StageCost

RELATIVE_SPREAD = 0.1
WORKERS = ", workers and handing elements over"


def attribute_counted(measured: Measurement, phase: Phase) -> Attribution:
    """Divide the CPU time of a window among functions that read their own threads' clocks."""
    signals, examples = phase.signals, float(max(1, phase.examples))
    cpu_s = max(0.0, signals.cpu_s - signals.tool_cpu_s) / examples
    stages = tuple(
        _stage(index, cost, examples, cpu_s, phase, runs_python=measured.kind != "tf.data")
        for index, cost in enumerate(phase.costs)
    )
    claimed_s = sum(cost.cpu_s for cost in phase.costs) / examples
    rest_s = max(0.0, cpu_s - claimed_s)
    active_s = sum(cost.wall_s for cost in phase.costs) / examples
    low, high = _interval(phase)
    return Attribution(
        stages=stages,
        residual=Residual(rest_s * 1000, rest_s / cpu_s if cpu_s else 0.0, RESIDUAL + WORKERS),
        cpu_s_per_example=cpu_s,
        low_factor=low,
        high_factor=high,
        examples_processed=examples,
        inflation=active_s / cpu_s if cpu_s else 1.0,
    )


def _stage(
    index: int, cost: StageCost, examples: float, total_s: float, phase: Phase, *, runs_python: bool
) -> Stage:
    cpu_s, wall_s = cost.cpu_s / examples, cost.wall_s / examples
    return Stage(
        index=index,
        name=cost.name,
        op=cost.op,
        location=cost.location,
        examples_per_s_alone=_alone(cost, phase.signals, cpu_s, wall_s),
        cpu_ms_per_example=cpu_s * 1000,
        cpu_ms_low=cpu_s * 1000 * (1 - RELATIVE_SPREAD),
        cpu_ms_high=cpu_s * 1000 * (1 + RELATIVE_SPREAD),
        share_of_cpu=min(1.0, cpu_s / total_s) if total_s else 0.0,
        active_ms_per_example=wall_s * 1000,
        calls_in_flight=cost.wall_s / phase.signals.wall_s,
        parallelism=cost.parallelism,
        bytes_per_example=None,
        method=cost.method,
        is_bottleneck=False,
        runs_python=runs_python,
        is_random=cost.is_random,
        decodes_jpeg=False,
    )


def _alone(cost: StageCost, signals: Signals, cpu_s: float, wall_s: float) -> float | None:
    lanes = cost.parallelism
    limits = [min(lanes, signals.vcpus_usable) / cpu_s] if cpu_s else []
    if wall_s:
        limits.append(lanes / wall_s)
    return min(limits, default=None)


def _interval(phase: Phase) -> tuple[float, float]:
    """How far the CPU time of seconds of the window was from their mean."""
    rates = sorted(piece.cpu_s / piece.wall_s for piece in phase.slices if piece.wall_s > 0)
    if len(rates) < 5:
        return 1 - RELATIVE_SPREAD, 1 + RELATIVE_SPREAD
    mean = sum(rates) / len(rates)
    trimmed = rates[len(rates) // 10 : len(rates) - len(rates) // 10]
    if not mean:
        return 1 - RELATIVE_SPREAD, 1 + RELATIVE_SPREAD
    spread = min(0.3, max(mean - trimmed[0], trimmed[-1] - mean) / mean)
    return 1 - spread, 1 + spread
