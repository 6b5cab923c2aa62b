"""Divide stages that call Python among the user's functions that ran in them. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from tpuctl.profiling.models import ChainNode, Stage
from tpuctl.profiling.reference import thresholds
from tpuctl.profiling.windows import Phase, StageCost

# What is left of a stage is one of its own from this share of it on.
LEAST_REST = 0.05
# A function that is ready for less of its time than this share of what the most ready one is waits
# for something else; above the second share it computes all the time.
WAITS, COMPUTES = 0.2, 0.5
LEAST_KNOWN = 0.1
# What a function's image decoding is called, which is a stage of its own.
DECODE_IN = "image decode in "


def divide_called(
    stages: Sequence[Stage],
    written: Sequence[tuple[ChainNode, ...]],
    phase: Phase,
    *,
    examples: float,
    total_ms: float,
) -> tuple[Stage, ...]:
    """Put the functions that a stage called in its place, the innermost first.

    They share the stage's CPU time; time in which no Python code was seen is the stage's own if it
    has operations, else it waited for the interpreter lock. Where functions work for it in threads
    of their own, as in a `PyDataset`, they took more, of what no stage claims.
    """
    called = _by_stage(stages, written, phase.costs)
    spare_ms = max(0.0, total_ms - sum(each.cpu_ms_per_example for each in stages))
    found: list[Stage] = []
    for stage, nodes in zip(stages, written, strict=True):
        if not any(cost.name for cost in called.get(stage.index, ())):
            found.append(stage)
            continue
        only_calls = all(node.only_calls for node in nodes if node.runs_python)
        share = partial(_divided, stage, called[stage.index], phase, examples)
        parts = share(spare_ms=spare_ms, only_calls=only_calls)
        spare_ms -= sum(each.cpu_ms_per_example for each in parts) - stage.cpu_ms_per_example
        found += parts
    total_ms = total_ms or 1.0
    return tuple(
        replace(each, index=index, share_of_cpu=each.cpu_ms_per_example / total_ms)
        for index, each in enumerate(found)
    )


def place_of(stage: Stage) -> str:
    """Where the transformation that a stage belongs to was written, else its name."""
    return stage.caller or stage.location or stage.name


def users_function(name: str) -> str:
    """The function that a stage is or belongs to."""
    return name.removeprefix(DECODE_IN)


def is_generated(stage: Stage) -> bool:
    """Whether a Python generator runs it, so that only one call runs at a time."""
    return stage.runs_python and stage.op == "FlatMap"


def _by_stage(
    stages: Sequence[Stage], written: Sequence[tuple[ChainNode, ...]], costs: Sequence[StageCost]
) -> Mapping[int, list[StageCost]]:
    """The functions of each stage; those of an unknown caller are of a generator, if there is one.

    Its place may be that of a lambda that makes it, or another thread may work for it.
    """
    known = {
        place: stage.index
        for stage, nodes in zip(stages, written, strict=True)
        for node in nodes
        for place in node.calls
    }
    python = [stage for stage in stages if stage.runs_python]
    likely = next((each for each in python if is_generated(each)), *python[:1])
    found: dict[int, list[StageCost]] = {}
    for cost in costs:
        found.setdefault(known.get(cost.caller or "", likely.index), []).append(cost)
    return found


def _divided(
    stage: Stage,
    costs: Sequence[StageCost],
    phase: Phase,
    examples: float,
    *,
    spare_ms: float,
    only_calls: bool,
) -> list[Stage]:
    """The parts of a stage: its functions, and what is left."""
    mine = [cost for cost in costs if cost.name]
    mine = [replace(cost, cpu_s=each) for cost, each in zip(mine, _computing_s(mine), strict=True)]
    wall_s, ready_s = (sum(getattr(cost, each) for cost in mine) for each in ("wall_s", "cpu_s"))
    library_s = sum(cost.wall_s for cost in costs if not cost.name)
    active_s, cpu_ms = stage.active_ms_per_example / 1000 * examples, stage.cpu_ms_per_example
    in_calls = all(cost.parallelism <= (stage.parallelism or 1) for cost in mine)
    is_lost = phase.nodes_vanished and wall_s + library_s > active_s
    fits, rest_s = 1.0, 0.0
    if in_calls and not is_lost:
        fits = min(1.0, active_s / ((wall_s + library_s) or 1.0))
        rest_s = fits * library_s if only_calls else active_s - fits * wall_s
    else:
        # The model has neither the time of other threads nor that of iterators that have ended.
        rest_s = library_s if in_calls and only_calls else 0.0
        seen_ms = running_share(phase) * (ready_s + rest_s) / examples * 1000
        cpu_ms = max(cpu_ms, min(seen_ms, cpu_ms + spare_ms))
    if rest_s < LEAST_REST * (fits * wall_s + rest_s):
        rest_s = 0.0
    weight = cpu_ms / ((fits * ready_s + rest_s) or 1.0)
    rest_ms = weight * rest_s
    if (phase.signals.gil_overshoot_p50_ms or 0.0) >= thresholds().gil_overshoot_usual_ms:
        # What the clocks of the functions leave: in the rest of the time, calls wait for the lock.
        python_ms = running_share(phase) * fits * ready_s / examples * 1000
        rest_ms = min(rest_ms, max(0.0, cpu_ms + spare_ms - python_ms))
        weight = (cpu_ms - rest_ms) / ((fits * ready_s) or 1.0)
    parts = [
        _part(stage, weight * fits * cost.cpu_s, fits * cost.wall_s, phase, examples, cost)
        for cost in mine
    ]
    if not in_calls:
        parts = [replace(p, parallelism=c.parallelism) for p, c in zip(parts, mine, strict=True)]
    if rest_s:
        parts.append(_part(stage, rest_ms, rest_s, phase, examples))
    is_random = stage.is_random or any(cost.is_random for cost in mine)
    return [replace(each, is_random=is_random) for each in parts]


def _computing_s(costs: Sequence[StageCost]) -> list[float]:
    """How long each function computed, or would have with a vCPU of its own.

    The kernel counts a wait for a vCPU when it ends, so only much less than others shows that a
    function waits for something else.
    """
    ready = [min(1.0, cost.cpu_s / cost.wall_s) if cost.wall_s else 0.0 for cost in costs]
    # A wait that ended in a short function says nothing of the others.
    least_s = LEAST_KNOWN * sum(cost.wall_s for cost in costs)
    known = (share for cost, share in zip(costs, ready, strict=True) if cost.wall_s >= least_s)
    most = max(known, default=0.0) or 1.0
    shares = [(each / most - WAITS) / (COMPUTES - WAITS) for each in ready]
    return [c.wall_s * max(0.0, min(1.0, each)) for c, each in zip(costs, shares, strict=True)]


def own_clocks(phase: Phase) -> Phase:
    """The window of a pipeline of which no more is known than the functions that it calls.

    The time in which they were ready to run is turned into CPU time.
    """
    ran, mine = running_share(phase), [cost for cost in phase.costs if cost.name]
    costs = (replace(c, cpu_s=ran * s) for c, s in zip(mine, _computing_s(mine), strict=True))
    return replace(phase, costs=tuple(costs))


def running_share(phase: Phase) -> float:
    """The share of the time that threads were ready in which they actually ran."""
    cpu_s, delay_s = phase.signals.cpu_s, phase.signals.delayed_s or 0.0
    return cpu_s / (cpu_s + delay_s) if cpu_s else 1.0


def _part(
    stage: Stage,
    cpu_ms: float,
    active_s: float,
    phase: Phase,
    examples: float,
    cost: StageCost | None = None,
) -> Stage:
    """A stage with a part of its time, which a function takes if one is given."""
    part = cpu_ms / stage.cpu_ms_per_example if stage.cpu_ms_per_example else 0.0
    alone = stage.examples_per_s_alone
    found = replace(
        stage,
        cpu_ms_per_example=cpu_ms,
        cpu_ms_low=stage.cpu_ms_low * part,
        cpu_ms_high=stage.cpu_ms_high * part,
        active_ms_per_example=active_s / examples * 1000,
        calls_in_flight=active_s / phase.signals.wall_s,
        examples_per_s_alone=alone / part if alone and part else None,
    )
    if cost is None:
        return found
    return replace(
        found,
        name=cost.name,
        location=cost.location,
        caller=place_of(stage),
        method=cost.method,
        operations=(),
    )
