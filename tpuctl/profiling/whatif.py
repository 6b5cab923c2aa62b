"""Predict rate and idle time for other numbers of vCPUs, and name the changes that can be tried."""

import math
from dataclasses import dataclass
from typing import Literal

Way = Literal["prefetch", "calls", "threads", "unordered", "cache", "ratio", "workers", "presize"]
# exp of a larger number overflows; the wait is zero long before.
FARTHEST = 500.0


@dataclass(frozen=True)
class Change:
    """A change that can be tried without editing the pipeline's code.

    `number` counts calls, threads, batches or workers, or is the image size; `location` is the
    function that is changed, or after which a cache is inserted.
    """

    way: Way
    number: int | None = None
    location: str | None = None


@dataclass(frozen=True)
class Scaling:
    """What a prediction is based on, besides the CPU time per example.

    That CPU time was measured with `busy_vcpus` vCPUs busy. It grows by `growth` with every
    doubling of them, between `growth_low` and `growth_high`; `cpu_low` and `cpu_high` are its
    extremes in slices of the window, relative to the mean. `unevenness` is the variance of the
    time per batch over its squared mean, `batches_ahead` how many batches can be ready before
    they are needed. `serial_ms` of each example hold the interpreter lock, so that more vCPUs do
    not divide them; if the lock could not be observed, at most `serial_high_ms` do.
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
    serial_high_ms: float = 0.0

    def __post_init__(self) -> None:
        growths = self.growth, self.growth_low, self.growth_high
        factors = self.busy_vcpus, self.cpu_low, self.cpu_high
        rest = self.unevenness, self.batches_ahead, self.serial_ms, self.serial_high_ms
        if not (
            min(factors) > 0 and min(rest) >= 0 and all(-0.9 < each < 0.99 for each in growths)
        ):
            raise ValueError("no measurement scales like this")


@dataclass(frozen=True)
class WhatIf:
    """The predicted rate on a number of vCPUs, and the device's idle time, with intervals."""

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
    """Predict the MXU's idle time of a pipeline that is limited by vCPUs.

    The prediction is far off if the interpreter lock or slow reads are the bottleneck.
    """
    # The vCPUs that the device's demand keeps busy, at the measured CPU cost.
    load = batch_size * cpu_ms_per_example / step_ms
    held = batch_size * scaling.serial_ms / step_ms
    held_most = max(held, batch_size * scaling.serial_high_ms / step_ms)
    idle, needed = _predicted(load, held, vcpus, scaling, scaling.growth)
    ends = [
        _predicted(load * factor, most * factor, vcpus, scaling, growth)
        for factor, most in ((scaling.cpu_low, held), (scaling.cpu_high, held_most))
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
    """The MXU's idle fraction, and the vCPUs that would keep it busy."""
    power, busy = math.log2(1 + growth), scaling.busy_vcpus
    cost_factor = (vcpus / busy) ** power
    taken = max(load * cost_factor / vcpus, held)
    needed = busy * (load / busy) ** (1 / (1 - power)) if held <= 1 else math.inf
    return _idle_fraction(1 / taken if taken else math.inf, scaling), needed


def _idle_fraction(room: float, scaling: Scaling) -> float:
    """The idle fraction of a device whose step takes `room` times as long as a batch."""
    if math.isinf(room):
        return 0.0
    spare = room - 1
    waits = max(0.0, -spare)
    if scaling.unevenness:
        # Varying batches queue up: the mean wait of a queue in heavy traffic, exponential in
        # the spare room and in the batches that can be buffered.
        steepness = 2 * scaling.batches_ahead / scaling.unevenness
        exponent = min(FARTHEST, steepness * spare)
        waits = spare / math.expm1(exponent) if exponent else 1 / steepness
    return waits / (room + waits)
