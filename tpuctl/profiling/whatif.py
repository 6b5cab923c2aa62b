"""Changes that can be tried on a pipeline from outside, without an edit of its code."""

import math
from dataclasses import dataclass
from typing import Literal

Way = Literal["prefetch", "calls", "threads", "unordered", "cache", "ratio", "workers", "presize"]


@dataclass(frozen=True)
class Change:
    """One change: calls and threads to so many, a cache after the function at `location`.

    To presize is another folder, not another pipeline; the number is the size.
    """

    way: Way
    number: int | None = None
    location: str | None = None


FARTHEST = 500.0


@dataclass(frozen=True)
class Scaling:
    """What a prediction rests on beside the CPU time per example.

    `busy_vcpus` were busy while that was measured. With every doubling of them it grows by
    `growth`, which is between `growth_low` and `growth_high`; `cpu_low` and `cpu_high` are what
    slices of the window showed, relative to the mean. `unevenness` is the variance of the time per
    batch over its mean squared, `batches_ahead` how many can be ready before they are asked for.
    `serial_ms` of each example hold the interpreter lock: more vCPUs do not divide them.
    """

    busy_vcpus: float
    growth: float = 0.0
    growth_low: float = 0.0
    growth_high: float = 0.0
    cpu_low: float = 1.0
    cpu_high: float = 1.0
    unevenness: float = 0.0
    batches_ahead: int = 1
    serial_ms: float = 0.0


@dataclass(frozen=True)
class WhatIf:
    """What a pipeline gives on some number of vCPUs, and what a device makes of it.

    Each with what the measurement leaves open.
    """

    examples_per_s: float
    mxu_idle_fraction: float
    mxu_idle_low: float
    mxu_idle_high: float
    vcpus_needed: float
    vcpus_low: float
    vcpus_high: float


def what_if(
    *, batch_size: int, cpu_ms_per_example: float, vcpus: float, step_ms: float, scaling: Scaling
) -> WhatIf:
    """Predict the MXU's idle time where vCPUs are what limits the pipeline.

    Where the interpreter lock or slow reads are the limit it is wrong by far, so ask only where
    they are not.
    """
    # vCPUs that a device would keep busy if there were as many as when it was measured.
    load = batch_size * cpu_ms_per_example / step_ms
    held = batch_size * scaling.serial_ms / step_ms
    idle, needed = _predicted(load, held, vcpus, scaling, scaling.growth)
    ends = [
        _predicted(load * factor, held * factor, vcpus, scaling, growth)
        for factor in (scaling.cpu_low, scaling.cpu_high)
        for growth in (scaling.growth_low, scaling.growth_high)
    ]
    return WhatIf(
        examples_per_s=batch_size / step_ms * 1000 * (1 - idle),
        mxu_idle_fraction=idle,
        mxu_idle_low=min(idle for idle, _ in ends),
        mxu_idle_high=max(idle for idle, _ in ends),
        vcpus_needed=needed,
        vcpus_low=min(needed for _, needed in ends),
        vcpus_high=max(needed for _, needed in ends),
    )


def _predicted(
    load: float, held: float, vcpus: float, scaling: Scaling, growth: float
) -> tuple[float, float]:
    """The idle share of the MXU, and the vCPUs that it would take to keep it busy."""
    power, busy = math.log2(1 + growth), scaling.busy_vcpus
    dearer = (vcpus / busy) ** power
    taken = max(load * dearer / vcpus, held)
    needed = busy * (load / busy) ** (1 / (1 - power)) if held <= 1 else math.inf
    return _idle_fraction(1 / taken if taken else math.inf, scaling), needed


def _idle_fraction(room: float, scaling: Scaling) -> float:
    """The waiting of a device whose step takes `room` times as long as a batch."""
    if math.isinf(room):
        return 0.0
    spare = room - 1
    waits = max(0.0, -spare)
    if scaling.unevenness:
        steepness = 2 * scaling.batches_ahead / scaling.unevenness
        exponent = min(FARTHEST, steepness * spare)
        waits = spare / math.expm1(exponent) if exponent else 1 / steepness
    return waits / (room + waits)
