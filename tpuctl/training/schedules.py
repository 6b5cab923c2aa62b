"""Learning-rate schedules as pure functions of the step, and the range test."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tpuctl.errors import InvalidInputError


def _linear(start: float, end: float, fraction: float) -> float:
    return start + (end - start) * fraction


def _exponential(start: float, end: float, fraction: float) -> float:
    return float(start * (end / start) ** fraction)


ANNEALINGS: dict[str, Callable[[float, float, float], float]] = {
    "none": lambda start, _, __: start,
    "linear": _linear,
    "exponential": _exponential,
    "cosine": lambda start, end, fraction: (
        end + (start - end) * (1 + math.cos(math.pi * fraction)) / 2
    ),
}
"""Interpolations between two values; `none` stays at the first."""


@dataclass(frozen=True)
class OneCyclePlan:
    """The one-cycle policy (Smith 2018, arXiv 1803.09820): up to `max_rate`, then nearly to zero.

    The rate rises from `max_rate / start_divisor` during the first `warm_up` of the `steps` and
    falls to `max_rate / end_divisor`; momentum moves in the opposite direction.
    """

    max_rate: float
    steps: int
    warm_up: float = 0.3
    start_divisor: float = 25.0
    end_divisor: float = 1e4
    annealing: str = "cosine"
    momentum: tuple[float, float] = (0.95, 0.85)

    def __post_init__(self) -> None:
        wrong = next((what for what, is_wrong in self._faults() if is_wrong), None)
        if wrong:
            raise InvalidInputError(f"Invalid one-cycle schedule: {wrong}.")

    def _faults(self) -> tuple[tuple[str, bool], ...]:
        known = ", ".join(ANNEALINGS)
        return (
            (f"max_rate must be positive, not {self.max_rate}", not self.max_rate > 0),
            (f"steps must be at least 1, not {self.steps}", self.steps < 1),
            (f"warm_up must be between 0 and 1, not {self.warm_up}", not 0 <= self.warm_up < 1),
            ("the divisors must be positive", min(self.start_divisor, self.end_divisor) <= 0),
            (
                f"annealing must be one of {known}, not {self.annealing!r}",
                self.annealing not in ANNEALINGS,
            ),
        )

    def rate(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0; constant after the last step."""
        low, end = self.max_rate / self.start_divisor, self.max_rate / self.end_divisor
        return self._at(step, (low, self.max_rate, end))

    def momentum_at(self, step: int) -> float:
        """Return the momentum, or Adam's first beta, of a step."""
        high, low = self.momentum
        return self._at(step, (high, low, high))

    def _at(self, step: int, values: tuple[float, float, float]) -> float:
        first, peak, last = values
        climb = round(self.warm_up * self.steps)
        if step < climb:
            # Without annealing, only the descent is flat; the warm-up is still a ramp.
            interpolate = _linear if self.annealing == "none" else ANNEALINGS[self.annealing]
            return interpolate(first, peak, step / climb)
        left = max(1, self.steps - 1 - climb)
        return ANNEALINGS[self.annealing](peak, last, min(1.0, (step - climb) / left))


def range_test_rate(step: int, steps: int, low: float, high: float) -> float:
    """Return the rate of a range-test step: from `low` to `high`, with a constant factor."""
    return _exponential(low, high, min(1.0, step / max(1, steps - 1)))


LEAST_DROP = 0.01
"""Relative drop in loss below which a range test suggests no rate."""


@dataclass(frozen=True)
class RangeTest:
    """The result of a range test: rates, smoothed losses and the suggested rates.

    `steepest` is where the loss falls fastest per decade of rate: a good constant rate. `largest`
    is a tenth of the rate at which the loss was lowest: a good peak for one cycle. Both are None
    if the loss never fell (Smith 2015, arXiv 1506.01186).
    """

    rates: tuple[float, ...]
    losses: tuple[float, ...]
    steepest: float | None
    largest: float | None


def smooth(losses: Sequence[float]) -> tuple[float, ...]:
    """The exponential moving average of the losses, corrected for its start at 0."""
    beta = 0.9
    average, smoothed = 0.0, []
    for count, loss in enumerate(losses, 1):
        average = beta * average + (1 - beta) * loss
        smoothed.append(average / (1 - beta**count))
    return tuple(smoothed)


def read_range_test(rates: Sequence[float], losses: Sequence[float]) -> RangeTest:
    """Choose learning rates from the raw losses of a range test."""
    finite = [(rate, loss) for rate, loss in zip(rates, losses, strict=True) if math.isfinite(loss)]
    kept = tuple(rate for rate, _ in finite)
    smoothed = smooth([loss for _, loss in finite])
    # The average of few losses is mostly noise, so the test's first tenth is ignored.
    first = len(kept) // 10
    slopes = {
        index: (smoothed[index + 1] - smoothed[index - 1])
        / (math.log10(kept[index + 1]) - math.log10(kept[index - 1]))
        for index in range(max(1, first), len(kept) - 1)
    }
    best = min(slopes, key=lambda index: slopes[index], default=None)
    lowest = min(range(first, len(kept)), key=lambda index: smoothed[index], default=first)
    if best is None or smoothed[first] - smoothed[lowest] < LEAST_DROP * abs(smoothed[first]):
        return RangeTest(kept, smoothed, None, None)
    return RangeTest(kept, smoothed, kept[best], kept[lowest] / 10)


def scaled_rate(base_rate: float, *, batch_size: int, base_batch_size: int) -> float:
    """Scale a rate linearly with the global batch (Goyal et al. 2017, arXiv 1706.02677)."""
    if batch_size < 1 or base_batch_size < 1:
        raise InvalidInputError(
            f"Could not scale the learning rate: a batch of {batch_size} against one of "
            f"{base_batch_size}; both must be at least 1."
        )
    return base_rate * batch_size / base_batch_size
