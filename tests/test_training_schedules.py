import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpuctl.errors import InvalidInputError
from tpuctl.training.schedules import (
    ANNEALINGS,
    OneCyclePlan,
    range_test_rate,
    read_range_test,
    scaled_rate,
    smooth,
)


@pytest.mark.parametrize("annealing", ANNEALINGS)
def test_one_cycle_starts_low_peaks_after_the_warm_up_and_stays_within_its_bounds(
    annealing: str,
) -> None:
    plan = OneCyclePlan(0.1, 100, annealing=annealing)
    rates = [plan.rate(step) for step in range(130)]
    assert rates[0] == pytest.approx(0.1 / 25)
    assert rates[30] == max(rates) == pytest.approx(0.1)
    assert rates[:31] == sorted(rates[:31])
    assert rates[30:] == sorted(rates[30:], reverse=True)
    last = 0.1 if annealing == "none" else 0.1 / 1e4
    assert rates[99] == rates[129] == pytest.approx(last)


def test_the_annealings_are_the_curves_that_bear_their_names() -> None:
    halfway = {name: way(1.0, 0.01, 0.5) for name, way in ANNEALINGS.items()}
    assert halfway == pytest.approx(
        {"none": 1.0, "linear": 0.505, "exponential": 0.1, "cosine": 0.505}
    )
    assert ANNEALINGS["cosine"](1.0, 0.0, 0.25) == pytest.approx((1 + math.sqrt(0.5)) / 2)


def test_momentum_moves_against_the_rate() -> None:
    plan = OneCyclePlan(0.1, 100, momentum=(0.95, 0.85))
    assert [round(plan.momentum_at(step), 3) for step in (0, 30, 99)] == [0.95, 0.85, 0.95]


@given(
    steps=st.integers(1, 500),
    warm_up=st.floats(0, 0.99),
    annealing=st.sampled_from(sorted(ANNEALINGS)),
)
def test_any_cycle_keeps_between_its_ends_and_its_peak(
    steps: int, warm_up: float, annealing: str
) -> None:
    plan = OneCyclePlan(1.0, steps, warm_up=warm_up, annealing=annealing)
    assert all(1e-4 * 0.999 <= plan.rate(step) <= 1.0 for step in range(steps + 3))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"max_rate": 0.0}, "max_rate must be positive"),
        ({"max_rate": math.nan}, "max_rate must be positive"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"warm_up": 1.0}, "warm_up must be between"),
        ({"start_divisor": 0.0}, "divisors"),
        ({"annealing": "cubic"}, "annealing must be one of none, linear"),
    ],
)
def test_an_impossible_cycle_is_refused_and_names_the_value(
    wrong: dict[str, object], says: str
) -> None:
    with pytest.raises(InvalidInputError, match=says):
        OneCyclePlan(**{"max_rate": 0.1, "steps": 10, **wrong})  # type: ignore[arg-type]


def test_a_range_test_multiplies_the_rate_by_the_same_factor_each_step() -> None:
    rates = [range_test_rate(step, 5, 1e-4, 1.0) for step in range(5)]
    assert rates == pytest.approx([1e-4, 1e-3, 1e-2, 1e-1, 1.0])


def test_smoothing_a_constant_changes_nothing() -> None:
    assert smooth([2.0] * 20) == pytest.approx([2.0] * 20)


def test_the_steepest_fall_and_the_lowest_loss_name_the_rates() -> None:
    rates = [range_test_rate(step, 401, 1e-6, 1e2) for step in range(401)]
    # A fall whose middle is at 1e-3, and a sharp rise from 1e0 on.
    losses = [
        2.0 - 1.5 / (1 + (1e-3 / rate) ** 2) + (max(0.0, math.log10(rate)) * 4) for rate in rates
    ]
    result = read_range_test(rates, losses)
    assert result.steepest == pytest.approx(1e-3, rel=1.0)
    assert result.largest == pytest.approx(0.1, rel=1.0)


@pytest.mark.parametrize(
    "losses", [[1.0] * 50, [float(i) for i in range(50)], [], [1.0], [math.nan]]
)
def test_a_loss_that_never_falls_names_no_rate(losses: list[float]) -> None:
    rates = [range_test_rate(step, 50, 1e-6, 1.0) for step in range(len(losses))]
    result = read_range_test(rates, losses)
    assert (result.steepest, result.largest) == (None, None)


def test_the_rate_scales_with_the_batch() -> None:
    assert scaled_rate(1e-3, batch_size=512, base_batch_size=64) == pytest.approx(8e-3)
    with pytest.raises(InvalidInputError, match="a batch of 0 against one of 64"):
        scaled_rate(1e-3, batch_size=0, base_batch_size=64)
