"""Divide a pipeline's CPU time among its stages. Pure.

tf.data's model counts elapsed time while active: right in proportion, too large in sum wherever
threads are preempted. So its shares are kept and scaled to the CPU time of the
process (measured in 2026-11: share error 0.03 to 0.08, costliest stage right in 18 of 18 runs).
Functions of Python pipelines read the clocks of their own threads, which needs no scaling.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tpuctl.profiling.align import (
    BOOKKEEPING,
    READERS,
    AlignedStage,
    RunNode,
    TracedWork,
    align,
    build_tree,
    costs_from_trace,
    loses_iterators,
    match_trace,
    merge_labelled,
    trunk,
)
from tpuctl.profiling.called import divide_called, running_share
from tpuctl.profiling.models import Measurement, Residual, Stage
from tpuctl.profiling.node_stats import unversioned
from tpuctl.profiling.windows import (
    RELATIVE_SPREAD,
    Phase,
    StageCost,
    relative_spread,
    slice_costs,
)

MODEL_SCALED = "model shares x process CPU"
MODEL_DIRECT = "model time"
TRACED = "host trace, linked from stage to operation, x process CPU"
COPYING = "as much copied alone, CPU time"
ISOLATED = "model shares x process CPU, waiting found by an isolated re-run"
LONGER_PARTS = "CPU time of ever longer parts of the pipeline, run alone"
RESIDUAL = "training loop, runtime and scheduling: process CPU that no stage claims"
WORKERS = ", workers and passing elements between them"
# In a window with fewer steps, filling or draining buffers distorts the count of examples.
MANY_STEPS = 20
USUAL_DRIFT = 0.9, 1.1  # within a minute on a shared machine (2026-11)
# A stage below a tenth of the time does not matter; half of the expected CPU time is far off.
NOTABLE, WAITING = 0.1, 0.5
# If the model misses more of the CPU time than this, parts of the pipeline are run alone.
UNCLAIMED = 0.3


@dataclass(frozen=True)
class Attribution:
    """Where the CPU time of one window went.

    The factors span the CPU cost in slices of the window, relative to the mean.
    """

    stages: tuple[Stage, ...]
    residual: Residual
    cpu_s_per_example: float
    low_factor: float
    high_factor: float
    examples_processed: float


@dataclass(frozen=True)
class _Work:
    """An aligned stage and its time per example, before scaling."""

    stage: AlignedStage
    active_s: float
    traced: TracedWork

    @property
    def traced_s(self) -> float:
        """How long its work took in the host trace, if there is one."""
        return sum(self.traced.work_s.get(node.cost.path, 0.0) for node in self.stage.ran)

    @property
    def main(self) -> RunNode:
        """The node that does most of the stage's own work."""
        real = [node for node in self._own if unversioned(node.op) not in BOOKKEEPING]
        return max(real or self._own, key=lambda node: node.cost.active_s)

    @property
    def last(self) -> RunNode:
        """The node that outputs the stage's elements."""
        return next((n for n in self._own if unversioned(n.op) not in BOOKKEEPING), self._own[0])

    @property
    def examples(self) -> float:
        """Examples that went through the stage in the window."""
        return self.main.cost.elements * self.main.examples_per_element

    @property
    def _own(self) -> list[RunNode]:
        own = [n for n in self.stage.ran if not any(part.endswith("*") for part in n.cost.path)]
        return own or list(self.stage.ran)


def attribute(measured: Measurement, phase: Phase) -> Attribution:
    """Divide the CPU time of a window among the stages of a tf.data pipeline, source first."""
    if not phase.nodes and measured.traced:
        nodes = costs_from_trace(measured.traced)
        phase = replace(phase, nodes=nodes, slices=(), nodes_vanished=True)
    in_trace = match_trace(phase.nodes, measured.traced)
    root = build_tree(phase.nodes, phase.examples / max(1, phase.elements))
    aligned = merge_labelled(align(measured.chain, root)) if root else []
    works = [_Work(stage, _active_s_per_example(stage), in_trace) for stage in reversed(aligned)]
    examples = _examples_processed(works, phase)
    cpu_s = max(0.0, phase.signals.cpu_s - phase.signals.tool_cpu_s) / examples
    active_s = sum(work.active_s for work in works)
    budget_s = max(0.0, cpu_s - phase.signals.consumer_cpu_s / examples)
    waiting = _waiting_stages(measured, phase, works)
    crowded = bool(measured.deep and measured.deep.is_crowded) and not phase.nodes_vanished
    traced = in_trace.fits and not waiting and not crowded
    limits = _copying_limits(measured, works)
    costs = _divide(_traced(works) if traced else works, waiting, limits, budget_s, phase)
    low, high = _interval(works, phase)
    make = _Stages(measured, phase, cpu_s, low, high)
    method = MODEL_SCALED if active_s > budget_s else MODEL_DIRECT
    method = ISOLATED if waiting else TRACED if traced else method
    is_complete = sum(costs) >= (1 - UNCLAIMED) * budget_s and not loses_iterators(phase.nodes)
    if measured.isolated and not (waiting or traced or is_complete):
        costs = _given_back(_run_alone(measured, works, budget_s), works, limits)
        method = LONGER_PARTS
        works = [replace(w, active_s=max(w.active_s, c)) for w, c in zip(works, costs, strict=True)]
        limits = [math.inf] * len(works)
    stages = tuple(
        make.stage(i, work, cost, method if cost < limits[i] else COPYING, waits=i in waiting)
        for i, (work, cost) in enumerate(zip(works, costs, strict=True))
    )
    if phase.costs and any(stage.runs_python for stage in stages):
        written = [work.stage.written for work in works]
        stages = divide_called(stages, written, phase, examples=examples, total_ms=cpu_s * 1000)
        costs = [stage.cpu_ms_per_example / 1000 for stage in stages]
    rest = _residual(cpu_s, sum(costs), RESIDUAL)
    return Attribution(stages, rest, cpu_s, low, high, examples)


def _residual(cpu_s: float, claimed_s: float, what: str) -> Residual:
    rest_s = max(0.0, cpu_s - claimed_s)
    return Residual(rest_s * 1000, rest_s / cpu_s if cpu_s else 0.0, what)


def _active_s_per_example(stage: AlignedStage) -> float:
    return sum(
        node.cost.active_s / (node.cost.elements * node.examples_per_element)
        for node in stage.ran
        if node.cost.elements and node.examples_per_element
    )


def _traced(works: Sequence[_Work]) -> list[_Work]:
    """Divide the same total time in the proportion that the trace shows."""
    active_s, traced_s = (sum(w.active_s for w in works), sum(w.traced_s for w in works))
    return [replace(work, active_s=active_s * work.traced_s / traced_s) for work in works]


def _examples_processed(works: Sequence[_Work], phase: Phase) -> float:
    """Examples that the window's CPU time was spent on.

    In a short window, that differs from the number produced, because buffers fill and drain: take
    the mean over stages, weighted by their work.
    """
    weight = sum(work.active_s for work in works)
    if phase.steps >= MANY_STEPS or phase.nodes_vanished or not weight:
        return float(max(1, phase.examples))
    return max(1.0, sum(work.active_s * work.examples for work in works) / weight)


def _copying_limits(measured: Measurement, works: Sequence[_Work]) -> list[float]:
    """The maximum CPU seconds of each stage that only copies; infinite for others."""
    alone_s = {each.path: each.cpu_s_per_element for each in measured.copying}
    return [
        sum(
            alone_s.get(node.cost.path, math.inf) / node.examples_per_element
            for node in work.stage.ran
            if node.examples_per_element and unversioned(node.op) not in BOOKKEEPING
        )
        for work in works
    ]


def _divide(
    works: Sequence[_Work],
    waiting: set[int],
    limits: Sequence[float],
    budget_s: float,
    phase: Phase,
) -> list[float]:
    """Divide CPU time per example among the stages; the remainder is residual.

    A stage that blocks internally gets what the others leave, because its elapsed time says little.
    """
    active = [work.active_s for work in works]
    if not waiting:
        return _scaled(active, limits, budget_s)
    running = running_share(phase)
    costs = [
        0.0 if i in waiting else min(limits[i], running * each) for i, each in enumerate(active)
    ]
    others = sum(costs)
    if others > budget_s:
        costs = [each * budget_s / others for each in costs]
    rest_s = max(0.0, budget_s - others)
    waits = sum(active[i] for i in waiting)
    for i in waiting:
        costs[i] = min(active[i], rest_s * active[i] / waits)
    return costs


def _scaled(active: Sequence[float], limits: Sequence[float], budget_s: float) -> list[float]:
    """Scale the elapsed times to the budget, each up to its limit; the others share the rest."""
    scale = _scale(sum(active), budget_s)
    held = {i: limit for i, limit in enumerate(limits) if limit < scale * active[i]}
    rest = sum(each for i, each in enumerate(active) if i not in held)
    scale = _scale(rest, budget_s - sum(held.values()))
    return [held.get(i, scale * each) for i, each in enumerate(active)]


def _scale(active_s: float, budget_s: float) -> float:
    return min(1.0, budget_s / active_s) if active_s else 0.0


def _waiting_stages(measured: Measurement, phase: Phase, works: Sequence[_Work]) -> set[int]:
    """Stages whose CPU time, measured alone, is much less than their elapsed time."""
    alone = _isolated_cpu(measured, works)
    total, running = sum(work.active_s for work in works), running_share(phase)
    return {
        index
        for index, work in enumerate(works)
        if alone[index] is not None
        and work.active_s > NOTABLE * total
        and (alone[index] or 0.0) < WAITING * running * work.active_s
    }


def _isolated_cpu(measured: Measurement, works: Sequence[_Work]) -> list[float | None]:
    """Turn CPU per example of ever longer parts into CPU per stage, source first."""
    upto = {each.depth: each.cpu_s_per_example for each in measured.isolated}
    depths = {id(node): depth for depth, node in enumerate(trunk(measured.chain))}
    costs: list[float | None] = []
    before, files = 0.0, max((i for i, work in enumerate(works) if work.stage.expands), default=0)
    for index, work in enumerate(works):
        known = [depths[id(n)] for n in work.stage.written if depths.get(id(n)) in upto]
        if known and index >= files:
            costs.append(max(0.0, upto[min(known)] - before))
            before = max(before, upto[min(known)])
        else:
            costs.append(None)
    return costs


def _run_alone(measured: Measurement, works: Sequence[_Work], budget_s: float) -> list[float]:
    """What the stages added to the CPU time of ever longer parts of the pipeline.

    Those that were added together, such as a shuffle and its batch, share it as in the model.
    """
    costs = [work.active_s for work in works]
    first = 0
    for last, alone_s in enumerate(_isolated_cpu(measured, works)):
        if alone_s is not None:
            among = [max(1e-12, cost) for cost in costs[first : last + 1]]
            costs[first : last + 1] = [alone_s * each / sum(among) for each in among]
            first = last + 1
    scale = _scale(sum(costs), budget_s)
    return [scale * cost for cost in costs]


def _given_back(
    costs: Sequence[float], works: Sequence[_Work], limits: Sequence[float]
) -> list[float]:
    """Give what a stage that only copies added beyond that to those that it reads from.

    They cost more at the pace at which a batch takes their elements than alone.
    """
    found = list(costs)
    for i, limit in enumerate(limits):
        below_s = sum(work.active_s for work in works[:i])
        if found[i] > limit and below_s:
            more = (found[i] - limit) / below_s
            before = [f + more * w.active_s for f, w in zip(found[:i], works, strict=False)]
            found[: i + 1] = [*before, limit]
    return found


def _interval(works: Sequence[_Work], phase: Phase) -> tuple[float, float]:
    """Lowest and highest CPU per example among slices of the window, relative to their mean."""
    if not works:
        return USUAL_DRIFT
    path = max(works, key=lambda work: work.active_s).main.cost.path
    position = next(i for i, cost in enumerate(phase.nodes) if cost.path == path)
    costs = sorted(slice_costs(phase, position))
    if len(costs) < 3:
        return USUAL_DRIFT
    mean, cut = sum(costs) / len(costs), len(costs) // 10
    return min(1.0, costs[cut] / mean), max(1.0, costs[-1 - cut] / mean)


@dataclass(frozen=True)
class _Stages:
    """Creates the stages of one window."""

    measured: Measurement
    phase: Phase
    total_cpu_s: float
    low: float
    high: float

    def stage(self, index: int, work: _Work, cpu_s: float, method: str, *, waits: bool) -> Stage:
        written, last = work.stage.written, work.last
        out = last.cost.elements * last.examples_per_element
        return Stage(
            index=index,
            name=_name(work),
            op=work.main.op,
            location=next((node.location for node in written if node.location), None),
            examples_per_s_alone=self._alone(work, cpu_s, waits),
            cpu_ms_per_example=cpu_s * 1000,
            cpu_ms_low=cpu_s * 1000 * self.low,
            cpu_ms_high=cpu_s * 1000 * self.high,
            share_of_cpu=cpu_s / self.total_cpu_s if self.total_cpu_s else 0.0,
            active_ms_per_example=work.active_s * 1000,
            calls_in_flight=self._in_flight(work),
            parallelism=work.main.cost.parallelism,
            bytes_per_example=last.cost.bytes_out / out if out and last.cost.bytes_out else None,
            method=method,
            runs_python=any(node.runs_python for node in written),
            is_random=any(node.is_random for node in written),
            decodes_jpeg=any(node.decodes_jpeg for node in written),
            operations=work.traced.top_operations(node.cost.path for node in work.stage.ran),
        )

    def _in_flight(self, work: _Work) -> float:
        """Calls at a time; more than the model has if the stage took longer than in it."""
        known_s = sum(node.cost.active_s for node in work.stage.ran)
        more_s = work.active_s - _active_s_per_example(work.stage)
        return (known_s + max(0.0, more_s) * self.phase.examples) / self.phase.wall_s

    def _alone(self, work: _Work, cpu_s: float, waits: bool) -> float | None:
        """Examples per second if this stage had all vCPUs and its allowed calls to itself."""
        calls = work.main.cost.parallelism or 1
        limits = [min(calls, self.phase.signals.vcpus_usable) / cpu_s] if cpu_s else []
        if waits and work.active_s:
            limits.append(min(calls, self.measured.threadpool_size) / work.active_s)
        return min(limits, default=None)


def _name(work: _Work) -> str:
    written = work.stage.written
    if label := next((node.label for node in written if node.label), None):
        return label
    read = [f"{node.op}Dataset" if node.op in READERS else node.name for node in reversed(written)]
    names = list(dict.fromkeys(read))
    return " + ".join(names) if names else f"{work.last.op} (added by tf.data)"


def attribute_counted(phase: Phase) -> Attribution:
    """Divide the CPU time of a window among functions that read their own threads' clocks."""
    signals, examples = phase.signals, float(max(1, phase.examples))
    cpu_s = max(0.0, signals.cpu_s - signals.tool_cpu_s) / examples
    stages = tuple(
        _counted_stage(index, cost, examples, cpu_s, phase)
        for index, cost in enumerate(phase.costs)
    )
    rest = _residual(cpu_s, sum(cost.cpu_s for cost in phase.costs) / examples, RESIDUAL + WORKERS)
    spread = relative_spread(phase)
    return Attribution(stages, rest, cpu_s, 1 - spread, 1 + spread, examples)


def _counted_stage(
    index: int, cost: StageCost, examples: float, total_s: float, phase: Phase
) -> Stage:
    cpu_s, wall_s = cost.cpu_s / examples, cost.wall_s / examples
    lanes = cost.parallelism
    limits = [min(lanes, phase.signals.vcpus_usable) / cpu_s] if cpu_s else []
    limits += [lanes / wall_s] if wall_s else []
    return Stage(
        index=index,
        name=cost.name,
        op=cost.op,
        location=cost.location,
        examples_per_s_alone=min(limits, default=None),
        cpu_ms_per_example=cpu_s * 1000,
        cpu_ms_low=cpu_s * 1000 * (1 - RELATIVE_SPREAD),
        cpu_ms_high=cpu_s * 1000 * (1 + RELATIVE_SPREAD),
        share_of_cpu=min(1.0, cpu_s / total_s) if total_s else 0.0,
        active_ms_per_example=wall_s * 1000,
        calls_in_flight=cost.wall_s / phase.signals.wall_s,
        parallelism=lanes,
        method=cost.method,
        runs_python=True,
        is_random=cost.is_random,
    )
