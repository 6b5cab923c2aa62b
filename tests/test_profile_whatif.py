"""What is predicted for other vCPUs and other devices."""

import math
import random
from array import array
from dataclasses import replace

import pytest

from tests.pipeline_cases import measurement, phase, profile, starving
from tpuctl.profiling.conclude import build_profile
from tpuctl.profiling.measure.loop import steps_to_fill, unevenness
from tpuctl.profiling.models import Device
from tpuctl.profiling.whatif import Scaling, WhatIf, what_if

PLAIN = Scaling(busy_vcpus=1.0)


def predicted(scaling: Scaling, *, vcpus: float = 2.0, step_ms: float = 64.0) -> WhatIf:
    """A batch of 16 takes 160 ms of CPU time."""
    return what_if(
        batch_size=16, cpu_ms_per_example=10.0, vcpus=vcpus, step_ms=step_ms, scaling=scaling
    )


@pytest.mark.parametrize(
    ("vcpus", "step_ms", "idle", "needed"),
    [(2, 64.0, 0.2, 2.5), (1, 64.0, 0.6, 2.5), (2, 80.0, 0.0, 2.0), (2, 400.0, 0.0, 0.4)],
)
def test_the_device_waits_for_what_its_vcpus_cannot_make(
    vcpus: float, step_ms: float, idle: float, needed: float
) -> None:
    found = predicted(PLAIN, vcpus=vcpus, step_ms=step_ms)
    assert found.mxu_idle_fraction == pytest.approx(idle)
    assert found.vcpus_needed == pytest.approx(needed)
    assert found.examples_per_s == pytest.approx(16_000 / step_ms * (1 - idle))


def test_an_example_takes_more_on_more_vcpus() -> None:
    scaling = replace(PLAIN, growth=0.1)
    assert predicted(scaling, vcpus=1, step_ms=160).mxu_idle_fraction == pytest.approx(0.0)
    assert predicted(scaling, vcpus=2, step_ms=64).mxu_idle_fraction == pytest.approx(1 - 0.8 / 1.1)
    assert predicted(scaling, vcpus=4, step_ms=32).mxu_idle_fraction == pytest.approx(
        1 - 0.8 / 1.21
    )


def test_what_holds_the_interpreter_lock_is_not_divided_over_vcpus() -> None:
    held = replace(PLAIN, serial_ms=6.0)
    alone = predicted(held, vcpus=1, step_ms=64).mxu_idle_fraction
    assert alone == predicted(PLAIN, vcpus=1, step_ms=64).mxu_idle_fraction
    for vcpus in (2, 64):
        found = predicted(held, vcpus=vcpus, step_ms=64)
        assert found.mxu_idle_fraction == pytest.approx(1 - 64 / (16 * 6.0))
    assert math.isinf(predicted(held, step_ms=64).vcpus_needed)
    assert predicted(held, step_ms=120).vcpus_needed == predicted(PLAIN, step_ms=120).vcpus_needed


def test_as_many_vcpus_as_it_says_are_enough_and_fewer_are_not() -> None:
    scaling = replace(PLAIN, growth=0.1)
    needed = predicted(scaling, step_ms=20).vcpus_needed
    assert needed > 8
    assert predicted(scaling, vcpus=needed, step_ms=20).mxu_idle_fraction < 1e-9
    assert predicted(scaling, vcpus=0.9 * needed, step_ms=20).mxu_idle_fraction > 0.05


def test_what_is_left_open_is_an_interval_around_the_prediction() -> None:
    scaling = Scaling(1.0, 0.04, growth_low=0.0, growth_high=0.1, cpu_low=0.95, cpu_high=1.05)
    found = predicted(scaling)
    assert found.mxu_idle_low == pytest.approx(1 - 0.8 / 0.95)
    assert found.mxu_idle_high == pytest.approx(1 - 0.8 / (1.05 * 1.1))
    assert found.mxu_idle_low < found.mxu_idle_fraction < found.mxu_idle_high
    assert found.vcpus_low < found.vcpus_needed < found.vcpus_high


def replayed(room: float, spread: float, ahead: int) -> float:
    """The idle share of a device, step by step, of batches that come as chance has it.

    So many may be ready before they are asked for.
    """
    chance = random.Random(1)
    begins: list[float] = []
    ready = waited = 0.0
    for number in range(40_000):
        full_until = begins[number - ahead - 1] if number > ahead else 0.0
        ready = max(ready, full_until) + max(0.0, chance.gauss(1.0, spread))
        free = begins[-1] + room if begins else 0.0
        begins.append(max(ready, free))
        waited += begins[-1] - free
    return waited / (begins[-1] + room)


@pytest.mark.parametrize("spread", [0.2, 0.5])
@pytest.mark.parametrize("room", [0.8, 0.95, 1.0, 1.05, 1.2, 1.6])
def test_uneven_batches_are_waited_for_as_a_replay_shows(room: float, spread: float) -> None:
    scaling = replace(PLAIN, unevenness=spread**2, batches_ahead=3)
    found = predicted(scaling, step_ms=80 * room).mxu_idle_fraction
    assert found == pytest.approx(replayed(room, spread, ahead=3), abs=0.02)
    assert found >= predicted(PLAIN, step_ms=80 * room).mxu_idle_fraction


def test_unevenness_is_the_variance_of_what_does_not_even_out() -> None:
    chance = random.Random(2)
    times = array("d", (chance.gauss(0.1, 0.03) for _ in range(4000)))
    assert unevenness(times) == pytest.approx(0.09, rel=0.15)
    assert unevenness(array("d", [0.05, 0.15] * 100)) == pytest.approx(0.0)
    assert unevenness(array("d", [0.1] * 15)) is None


@pytest.mark.parametrize(
    ("batch_s", "device_s", "steps"),
    [(0.1, 0.05, 2), (0.1, 0.1, 2), (0.1, 0.2, 5), (0.2, 0.25, 14), (0.0, 0.1, 2)],
)
def test_buffers_fill_with_what_the_pipeline_gives_beyond_the_device(
    batch_s: float, device_s: float, steps: int
) -> None:
    assert steps_to_fill(batch_s, device_s) == steps


def test_a_profile_predicts_from_the_vcpus_that_were_busy() -> None:
    alone = profile(measurement(phase(own=0.5, others=0.0)))
    beside = profile(measurement(phase(own=0.5, others=0.4)))
    assert alone.scaling is not None
    assert beside.scaling is not None
    assert alone.scaling.busy_vcpus == pytest.approx(1.0)
    assert beside.scaling.busy_vcpus == pytest.approx(1.8)


def test_a_python_stage_that_held_the_lock_on_one_vcpu_caps_what_more_are_said_to_bring() -> None:
    late = {"gil_overshoot_p50_ms": 5.0, "gil_overshoot_p90_ms": 5.5}
    one = {"vcpus_visible": 1, "vcpus_usable": 1.0, "own": 0.49, **late}
    measured = measurement(*starving(examples_per_s=133.0, **one), python="decode")
    found = profile(measured)
    decode = next(stage for stage in found.stages if stage.name == "decode")
    assert found.verdict == "vcpu"
    assert found.scaling is not None
    assert found.scaling.serial_ms == pytest.approx(decode.cpu_ms_per_example)
    assert found.vcpus.needed_to_saturate is None
    assert "holds the interpreter lock" in (found.vcpus.why_null or "")


def test_a_python_stage_whose_lock_was_not_seen_widens_what_more_vcpus_are_said_to_bring() -> None:
    one = {"vcpus_visible": 1, "vcpus_usable": 1.0, "own": 0.98}
    found = profile(measurement(*starving(examples_per_s=133.0, **one), python="decode"))
    decode = next(stage for stage in found.stages if stage.name == "decode")
    assert found.scaling is not None
    assert found.scaling.serial_ms == 0
    assert found.scaling.serial_high_ms == pytest.approx(decode.cpu_ms_per_example)
    assert "may hold the interpreter lock" in (found.vcpus.why_null or "")
    ask = what_if(
        batch_size=32, cpu_ms_per_example=10.0, vcpus=2, step_ms=200.0,
        scaling=replace(PLAIN, serial_high_ms=10.0),
    )  # fmt: skip
    assert ask.mxu_idle_fraction == 0
    assert ask.mxu_idle_high == pytest.approx(1 - 200 / 320)


def test_an_estimated_step_widens_the_interval_of_vcpus() -> None:
    measured = measurement(*starving())
    given = profile(measured).vcpus
    step_ms = measured.phases[1].device_busy_s / measured.phases[1].steps * 1e3
    guessed = build_profile(
        measured,
        target="photos",
        image_size=224,
        device=Device(step_ms, "compiled", low_ms=step_ms / 2, high_ms=step_ms * 2),
    ).vcpus
    assert guessed.low is not None
    assert guessed.high is not None
    assert given.low is not None
    assert given.high is not None
    assert guessed.low < 0.6 * given.low
    assert guessed.high > 1.9 * given.high
