"""`--verify`: what is kept, what is dropped and what is said, from measurements that never ran."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.pipeline_cases import measurement, phase, profile
from tpuctl.errors import TargetError
from tpuctl.profiling.models import Advice, Measurement, Profile
from tpuctl.profiling.request import Request, Target
from tpuctl.profiling.verify import verify_advice
from tpuctl.profiling.whatif import Change
from tpuctl.progress import silent

REQUEST = Request(Target("function", "a", "b"), 32, 224, 2.0, None, 5.0, 10.0)


@contextlib.contextmanager
def presized(
    request: Request, size: int, cpu_ms_per_example: float
) -> Iterator[tuple[Request, Request]]:
    """Two folders that nobody looks into; a size of 1 cannot be made."""
    if size == 1:
        raise TargetError("the disk is full")
    opened.append(size)
    yield (
        replace(request, target=Target("photos", "sample")),
        replace(request, target=Target("shards", "records")),
    )
    opened.remove(size)


opened: list[int] = []


def advice(code: str, predicted: float, trial: Change | None) -> Advice:
    return Advice(
        code=code, what="what", predicted_examples_per_s=predicted, change="change", trial=trial
    )


WAYS = {"records": "presize", "sample": "sample"}


def verified(rates: dict[str | None, float], *given: Advice) -> Profile:
    """Verify advice on a pipeline that gives so much with each way of changing it."""

    def measure(request: Request) -> Measurement:
        way = request.change.way if request.change else WAYS.get(request.target.place)
        assert request.device_step_ms is None
        if rates[way] < 0:
            raise TargetError("it broke")
        return measurement(phase(examples_per_s=rates[way]))

    start = replace(profile(measurement(phase(examples_per_s=100.0))), advice=given)
    return verify_advice(start, REQUEST, measure=measure, presize=presized, on_progress=silent)


def test_what_was_measured_stands_beside_what_was_predicted() -> None:
    result = verified({None: 200.0, "calls": 320.0}, advice("c", 170.0, Change("calls")))
    (found,) = result.advice
    # 1.6 times the rate that the profile had, which is that of a quieter moment.
    assert found.measured_examples_per_s == pytest.approx(
        1.6 * (result.pipeline_examples_per_s or 0), rel=0.1
    )
    assert found.error_fraction == pytest.approx(170 / found.measured_examples_per_s - 1)  # type: ignore[operator]


def test_advice_that_loses_is_dropped_and_named() -> None:
    result = verified({None: 100.0, "ratio": 60.0}, advice("scaled_decode", 150.0, Change("ratio")))
    assert result.advice == ()
    assert "scaled_decode was tried and is not advised: x0.6" in " ".join(result.notes)


def test_what_cannot_be_tried_stays_behind_what_was() -> None:
    result = verified(
        {None: 100.0, "cache": 120.0},
        advice("more_vcpus", 900.0, None),
        advice("cache", 150.0, Change("cache")),
    )
    assert [each.code for each in result.advice] == ["cache", "more_vcpus"]
    assert result.advice[1].measured_examples_per_s is None


def test_a_change_that_breaks_the_pipeline_is_said_and_the_advice_kept() -> None:
    result = verified({None: 100.0, "calls": -1.0}, advice("c", 170.0, Change("calls")))
    assert result.advice[0].measured_examples_per_s is None
    assert "c could not be tried: it broke" in result.notes


def test_presizing_is_compared_with_the_same_sample_of_photographs() -> None:
    presize = advice("presize", 500.0, Change("presize", 224))
    result = verified({None: 100.0, "sample": 50.0, "presize": 200.0}, presize)
    (found,) = result.advice
    assert found.measured_examples_per_s == pytest.approx(
        4 * (result.pipeline_examples_per_s or 0), rel=0.1
    )
    assert opened == []


def test_a_sample_that_cannot_be_made_is_said_and_the_rest_is_tried() -> None:
    result = verified(
        {None: 100.0, "cache": 120.0},
        advice("presize", 500.0, Change("presize", 1)),
        advice("cache", 150.0, Change("cache")),
    )
    assert [each.code for each in result.advice] == ["cache", "presize"]
    assert "presize could not be tried: the disk is full" in result.notes
