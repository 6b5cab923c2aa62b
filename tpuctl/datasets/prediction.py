"""How large and how long, from a sample: a mean, and how far it may be off."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

# Two-sided 95 % of Student's t for 1 to 10 degrees of freedom, then every tenth; then 1.96.
_T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
_T95_BY_TENS = (2.09, 2.05, 2.02, 2.01, 2.00)


@dataclass(frozen=True)
class Interval:
    """A total: most likely, and the ends of its 95 % interval."""

    low: float
    mean: float
    high: float


def predict_total(sample: Sequence[float], count: int) -> Interval:
    """Predict the sum over `count` items of which `sample` is a part; it counts as it is.

    Mean ± t · s/√n of Student's distribution for what is not sampled yet.
    """
    known, left = sum(sample), max(0, count - len(sample))
    mean = known / len(sample)
    if len(sample) < 2:
        return Interval(known, known + left * mean, known + left * 2 * mean)
    spread = statistics.stdev(sample) / math.sqrt(len(sample)) * _t95(len(sample) - 1)
    low, high = max(0.0, mean - spread), mean + spread
    return Interval(known + left * low, known + left * mean, known + left * high)


def _t95(freedom: int) -> float:
    if freedom <= len(_T95):
        return _T95[freedom - 1]
    tens = freedom // 10 - 1
    return _T95[-1] if tens < 1 else _T95_BY_TENS[tens - 1] if tens <= 5 else 1.96
