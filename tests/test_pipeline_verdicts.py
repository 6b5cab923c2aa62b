"""Every verdict from built measurements, and beside each a near miss that must not get it."""

import math
from dataclasses import replace
from typing import Any

import pytest

from tests.pipeline_cases import BATCH, JPEG, OPS, measurement, phase, profile, starving
from tpuctl.profiling.models import Measurement, Verdict
from tpuctl.profiling.windows import CopyingStage, IsolatedStage, Phase, Spread, StageCost

SLOW_READ = {**JPEG, "read": 25.0}
WAITING: dict[str, Any] = {
    "own": 0.4,
    "examples_per_s": 75.0,
    "active_ms": SLOW_READ,
    "run_delay_s": 0.1,
}
READ_IS_CHEAP = tuple(
    IsolatedStage(depth, cost / 1e3)
    for depth, cost in ((5, 0.4), (4, 6.4), (3, 6.9), (2, 7.2), (1, 7.4))
)
PYTHON: dict[str, Any] = {
    "own": 0.6,
    "examples_per_s": 40.0,
    "active_ms": {**JPEG, "augment": 20.0},
}
ONE_THREAD: dict[str, Any] = {"own": 0.5, "examples_per_s": 136.0, "calls": None}
HANDED_ON: dict[str, Any] = {
    "examples_per_s": 200.0,
    "active_ms": {"batch": 0.008},
    "calls": None,
    "busiest_thread": 0.54,
    "second_thread": 0.52,
}
FITS: dict[str, Any] = {"examples_per_s": 800.0, "own": 0.97, "active_ms": {**JPEG, "decode": 0.8}}

# Elements of a tenth of a millisecond, on all vCPUs and on half of them.
TINY = {"batch": 0.002, "decode": 0.15}
SMALL: dict[str, Any] = {"own": 0.85, "examples_per_s": 8e3, "active_ms": TINY}


def halved(slower: float, **changes: Any) -> Measurement:
    """All vCPUs are so many times faster than half of them, for which the others take the rest."""
    half = phase(**{**SMALL, "examples_per_s": 8e3 / slower, "others": 0.0, **changes})
    free = {**SMALL, "own": changes.get("own", 0.85)}
    rows = phase(**free), phase(**free, device_s=BATCH / 16e3, wait=0.5)
    return measurement(*rows, active_ms=TINY, kind="tf.data", halved=half)


LATE = Spread(128, 0.0255, 0.0006, 0.0025, 0.8, 0.81)


def counted(*rows: tuple[str, str, float, float], lanes: int = 1, **changes: Any) -> Measurement:
    """A pipeline of Python functions: name, kind, and how much of the window each ran and waited.

    Of the vCPU time of five seconds, and of the same seconds of each of its threads.
    """
    costs = tuple(
        StageCost(name, op, f"/me/t.py:{len(name)}", 100, 5 * wall, 5 * cpu, lanes, "clock")
        for name, op, wall, cpu in rows
    )
    own = sum(cpu for _, _, _, cpu in rows) / 2
    given = {"own": own, "gil_overshoot_p90_ms": 0.2, "run_delay_s": 0.05, **changes}
    free, device = (replace(each, costs=costs, nodes=()) for each in starving(**given))
    settings = {"num_workers": lanes if lanes > 1 else 0}
    return measurement(
        free,
        device,
        kind="torch",
        lanes=lanes,
        runs_ahead=lanes > 1,
        settings=settings,
        threadpool_size=0,
    )


def device_phase(**changes: Any) -> Phase:
    return phase(**{"device_s": BATCH / 532.0, "wait": 0.1, "examples_per_s": 480.0, **changes})


CASES: dict[str, tuple[Verdict, Measurement]] = {
    "small elements that more vCPUs do not make faster": ("serial", halved(1.1)),
    "small elements that fill all vCPUs and gain nothing": ("serial", halved(0.8, own=0.97)),
    "a device slower than the pipeline": (
        "device",
        measurement(phase(), phase(device_s=BATCH / 100.0, wait=0.005, examples_per_s=99.0)),
    ),
    "a pipeline that uses all vCPUs": ("vcpu", measurement(*starving())),
    "all vCPUs, without a device": ("vcpu", measurement(phase())),
    "neighbours on the vCPUs": (
        "stolen",
        measurement(*starving(own=0.5, others=0.48, examples_per_s=136.0, run_delay_s=5.0)),
    ),
    "neighbours that came with the device": (
        "stolen",
        measurement(phase(), phase(device_s=BATCH / 532.0, wait=0.7, others=0.4, own=0.6)),
    ),
    "fast enough, but for neighbours that come with the device": (
        "stolen",
        measurement(
            phase(**{**FITS, "own": 0.2}, p99=0.4),
            device_phase(wait=0.3, own=0.2, others=0.7, run_delay_s=2.0),
        ),
    ),
    "one thread that neighbours hardly let run": (
        "stolen",
        measurement(*starving(**{**ONE_THREAD, "own": 0.2}, others=0.8, run_delay_s=3.0)),
    ),
    "a quota that holds back": (
        "throttled",
        measurement(*starving(own=0.5, throttled_s=2.0, vcpus_usable=1.0)),
    ),
    "a Python function that holds the lock": (
        "gil",
        measurement(
            *starving(**PYTHON, gil_overshoot_p90_ms=5.1),
            python="augment",
        ),
    ),
    "reads that wait, as many as are allowed": (
        "io",
        measurement(*starving(**WAITING), isolated=READ_IS_CHEAP),
    ),
    "reads that wait and fill the thread pool": (
        "threadpool",
        measurement(*starving(**{**WAITING, "calls": 16}), isolated=READ_IS_CHEAP),
    ),
    "work on a pool of one thread, and a vCPU that nobody uses": (
        "threadpool",
        measurement(
            *starving(own=0.5, examples_per_s=136.0, calls=8, run_delay_s=0.1), threadpool_size=1
        ),
    ),
    "one thread for everything": ("serial", measurement(*starving(**ONE_THREAD))),
    "one thread for everything, beside neighbours": (
        "serial",
        measurement(*starving(**ONE_THREAD, others=0.45, run_delay_s=3.0)),
    ),
    "batches that come unevenly, beside neighbours that are not in the way": (
        "bursty",
        measurement(phase(**FITS, p99=0.4), device_phase(wait=0.3, others=0.4, run_delay_s=0.3)),
    ),
    "batches that come unevenly": (
        "bursty",
        measurement(phase(**FITS, p99=0.4), device_phase()),
    ),
    "a first batch that takes a minute": (
        "startup",
        measurement(phase(**FITS), device_phase(wait=0.001), first_batch_s=60.0),
    ),
    "a copy to the device in every step": (
        "transfer",
        counted(("transfer", "Transfer", 0.8, 0.7), ("load", "Python", 0.15, 0.1)),
    ),
    "one process that never rests": (
        "serial",
        counted(("decode", "Python", 0.7, 0.7), ("augment", "Python", 0.28, 0.27)),
    ),
    "one process that holds the lock": (
        "gil",
        counted(("decode", "Python", 0.98, 0.95), gil_overshoot_p90_ms=5.0),
    ),
    "one process that waits for its reads": ("io", counted(("read", "Python", 0.98, 0.1))),
    "one process that waits, and neighbours that delay whoever measures it": (
        "io",
        counted(
            ("read", "Python", 0.98, 0.1), run_delay_s=4.0, busiest_thread=0.2, other_cpu_s=9.0
        ),
    ),
    "as many processes as vCPUs": ("vcpu", counted(("decode", "Python", 1.98, 1.95), lanes=2)),
    "three workers on eight vCPUs": (
        "serial",
        counted(("decode", "Python", 2.95, 2.9), lanes=3, vcpus_usable=8.0, vcpus_visible=8),
    ),
    "one thread that hands tiny elements on": (
        "serial",
        measurement(
            *starving(
                own=0.5,
                examples_per_s=200.0,
                active_ms={"batch": 0.008},
                calls=None,
                run_delay_s=0.1,
                busiest_thread=0.97,
                second_thread=0.05,
            ),
            active_ms={"batch": 0.008},
        ),
    ),
    "one batch in a hundred that takes very long": (
        "bursty",
        measurement(
            replace(phase(**FITS), step_times=Spread(200, 0.05, 0.04, 0.045, 0.05, 2.0)),
            replace(device_phase(), waits=Spread(75, 0.0067, 0.0, 0.0, 0.4, 0.5)),
        ),
    ),
    "two threads that hand tiny elements to each other": (
        "serial",
        measurement(*starving(**HANDED_ON, own=0.55), active_ms={"batch": 0.008}),
    ),
    "few batches that take nearly all the time, and a starving device": (
        "bursty",
        measurement(
            *(replace(each, step_times=LATE) for each in starving(own=0.5, examples_per_s=136.0))
        ),
    ),
    "idle vCPUs and nothing to blame": (
        "unknown",
        measurement(*starving(own=0.3, examples_per_s=82.0)),
    ),
    "fast enough on average and even, yet late": (
        "unknown",
        measurement(phase(**FITS), device_phase()),
    ),
}

NEAR_MISSES: dict[str, tuple[Verdict, Measurement]] = {
    "small elements that more vCPUs make faster": ("serial", halved(1.7)),
    "small elements, half of the vCPUs in use by others": ("serial", halved(1.1, others=0.4)),
    "the device waits a little too long": (
        "device",
        measurement(phase(), phase(device_s=BATCH / 250.0, wait=0.06, examples_per_s=235.0)),
    ),
    "neighbours take little": ("stolen", measurement(*starving(own=0.9, others=0.1))),
    "a quota that hardly holds back": ("throttled", measurement(*starving(throttled_s=0.1))),
    "a late sleep without Python in the pipeline": (
        "gil",
        measurement(*starving(**PYTHON, gil_overshoot_p90_ms=5.1)),
    ),
    "Python in the pipeline and sleeps in time": (
        "gil",
        measurement(*starving(**PYTHON, gil_overshoot_p90_ms=0.4), python="augment"),
    ),
    "a probe that neighbours make late now and then": (
        "gil",
        measurement(
            *starving(**PYTHON, gil_overshoot_p50_ms=0.3, gil_overshoot_p90_ms=12.0),
            python="augment",
        ),
    ),
    "a late probe and threads that together do not want one vCPU": (
        "gil",
        measurement(
            *starving(
                **{**PYTHON, "own": 0.2},
                run_delay_s=0.5,
                gil_overshoot_p50_ms=6.0,
                gil_overshoot_p90_ms=12.0,
            ),
            python="augment",
        ),
    ),
    "a late probe beside neighbours, and little Python": (
        "gil",
        measurement(
            *starving(
                **{**PYTHON, "own": 0.1},
                others=0.9,
                run_delay_s=9.0,
                gil_overshoot_p50_ms=6.0,
                gil_overshoot_p90_ms=12.0,
            ),
            python="augment",
        ),
    ),
    "a loop over a queue that its own threads fill, beside mild neighbours": (
        "serial",
        counted(
            ("queue", "Python", 0.98, 0.95),
            own=0.65,
            others=0.3,
            run_delay_s=3.0,
            busiest_thread=0.98,
            second_thread=0.97,
        ),
    ),
    "one thread that neighbours hardly let run": (
        "serial",
        measurement(*starving(**{**ONE_THREAD, "own": 0.2}, others=0.8, run_delay_s=3.0)),
    ),
    "one thread that is always at it and mostly waits": (
        "serial",
        measurement(
            *starving(**{**ONE_THREAD, "own": 0.1, "run_delay_s": 2.2}, others=0.9),
        ),
    ),
    "waiting for a vCPU and not for data": (
        "io",
        measurement(*starving(**{**WAITING, "run_delay_s": 9.0}), isolated=READ_IS_CHEAP),
    ),
    "work on a pool of one thread, and neighbours on the other vCPU": (
        "threadpool",
        measurement(
            *starving(own=0.5, others=0.5, examples_per_s=136.0, calls=8), threadpool_size=1
        ),
    ),
    "work of more calls at a time than the pool has threads": (
        "threadpool",
        measurement(*starving(own=0.8, examples_per_s=220.0, calls=8), threadpool_size=1),
    ),
    "a pool with a thread for every call": (
        "threadpool",
        measurement(
            *starving(**{**WAITING, "calls": 16}), isolated=READ_IS_CHEAP, threadpool_size=16
        ),
    ),
    "one thread that is idle half of the time": (
        "serial",
        measurement(*starving(**{**ONE_THREAD, "own": 0.26, "examples_per_s": 70.0})),
    ),
    "one thread on the only vCPU": (
        "serial",
        measurement(*starving(**{**ONE_THREAD, "own": 0.48, "vcpus_usable": 1.0})),
    ),
    "a copy to the device now and then": (
        "transfer",
        counted(("transfer", "Transfer", 0.3, 0.3), ("load", "Python", 0.68, 0.65)),
    ),
    "three workers that wait on eight vCPUs": (
        "serial",
        counted(("read", "Python", 2.95, 0.3), lanes=3, vcpus_usable=8.0, vcpus_visible=8),
    ),
    "workers that hold a lock each of their own": (
        "gil",
        counted(("decode", "Python", 1.9, 1.7), lanes=2, gil_overshoot_p90_ms=5.0),
    ),
    "threads that all want a vCPU, beside neighbours that make the probe late": (
        "gil",
        replace(
            counted(
                ("decode", "Python", 3.9, 0.3),
                lanes=4,
                gil_overshoot_p90_ms=9.0,
                others=0.8,
                run_delay_s=18.0,
            ),
            settings={},
        ),
    ),
    "a busy thread among many that want a vCPU": (
        "serial",
        measurement(*starving(own=0.5, busiest_thread=0.97, second_thread=0.95, run_delay_s=9.0)),
    ),
    "busy neighbours and a pipeline that hardly wants a vCPU": (
        "stolen",
        measurement(*starving(own=0.05, others=0.9, examples_per_s=20.0, run_delay_s=3.2)),
    ),
    "a window that got faster beside neighbours": (
        "startup",
        measurement(*(replace(each, warming_up=True) for each in starving(others=0.5, own=0.5))),
    ),
    "uneven batches, late by what neighbours took": (
        "bursty",
        measurement(
            phase(**{**FITS, "own": 0.2}, p99=0.4),
            device_phase(wait=0.3, own=0.2, others=0.7, run_delay_s=2.0),
        ),
    ),
    "uneven batches, half of it by what neighbours took": (
        "bursty",
        measurement(
            phase(**{**FITS, "own": 0.2}, p99=0.4),
            device_phase(wait=0.3, own=0.2, others=0.7, run_delay_s=1.0),
        ),
    ),
    "tiny elements beside neighbours that rule": (
        "serial",
        measurement(
            *starving(**HANDED_ON, own=0.2, others=0.8, run_delay_s=3.0),
            active_ms={"batch": 0.008},
        ),
    ),
    "few batches that take nearly all the time beside neighbours that rule": (
        "bursty",
        measurement(
            *(
                replace(each, step_times=LATE)
                for each in starving(own=0.2, others=0.8, run_delay_s=3.0, examples_per_s=136.0)
            )
        ),
    ),
    "uneven batches and no vCPU left": ("bursty", measurement(*starving(p99=0.4))),
    "a first batch as slow as a warm-up": (
        "startup",
        measurement(phase(**FITS), device_phase(wait=0.001), first_batch_s=3.0),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_verdict_names(case: str) -> None:
    expected, measured = CASES[case]
    assert profile(measured).verdict == expected


@pytest.mark.parametrize("case", NEAR_MISSES)
def test_the_verdict_is_another_when(case: str) -> None:
    excluded, measured = NEAR_MISSES[case]
    assert profile(measured).verdict != excluded


@pytest.mark.parametrize(
    ("verdict", "most", "free"),
    [
        ("vcpu", 0.5, {"own": 0.85, "others": 0.0}),
        ("vcpu", 0.5, {"own": 0.79, "others": 0.08}),
        ("vcpu", 0.5, {"own": 0.8, "others": 0.17}),
        ("serial", 0.5, {"own": 0.45, "others": 0.0}),
        ("unknown", 0.0, {"own": 0.3, "others": 0.0}),
        ("unknown", 0.0, {"own": 0.3, "others": 0.55}),
    ],
)
def test_the_cause_that_comes_nearest_is_said_to_be_likely(
    verdict: str, most: float, free: dict[str, Any]
) -> None:
    rate = 266.0 * free["own"]
    later = phase(own=free["own"], examples_per_s=rate, device_s=BATCH / 532.0, wait=0.5)
    result = profile(measurement(phase(examples_per_s=rate, **free), later))
    assert result.verdict == verdict
    assert result.confidence <= most
    assert ("probably" in result.headline) == (verdict != "unknown")
    if verdict != "unknown":
        assert result.advice
        assert any(stage.is_bottleneck for stage in result.stages)


def test_a_lambda_is_named_by_its_line() -> None:
    result = profile(
        measurement(*starving(active_ms={"<lambda>": 6.0}), active_ms={"<lambda>": 6.0})
    )
    assert [stage.name for stage in result.stages] == ["tensor_slice", "lambda at line 8"]
    assert "lambda at line 8 uses most" in result.headline


def test_every_verdict_has_a_case() -> None:
    assert {verdict for verdict, _ in CASES.values()} == {
        "device", "vcpu", "stolen", "throttled", "gil", "io", "threadpool", "serial", "transfer",
        "bursty", "startup", "unknown",
    }  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_confidence_and_evidence_come_with(case: str) -> None:
    verdict, measured = CASES[case]
    result = profile(measured)
    assert result.evidence
    assert (result.confidence == 0) == (verdict == "unknown")
    assert 0 <= result.confidence <= 1


def test_vcpus_needed_are_batch_times_cpu_over_step_time_and_a_little_more() -> None:
    result = profile(measurement(*starving()))
    cpu_s = (0.98 * 2 * 5.0 - 0.01) / (266.0 * 5.0)
    assert result.scaling
    assert result.vcpus.low is not None
    assert result.vcpus.high is not None
    assert result.vcpus.needed_to_saturate is not None
    doublings = math.log2(result.vcpus.needed_to_saturate / result.scaling.busy_vcpus)
    dearer = (1 + result.scaling.growth) ** doublings
    assert 1.0 < dearer < 1.1
    assert result.vcpus.needed_to_saturate == pytest.approx(532.0 * cpu_s * dearer, rel=0.01)
    assert result.vcpus.low < result.vcpus.needed_to_saturate < result.vcpus.high


@pytest.mark.parametrize(
    "case", ["one thread for everything", "reads that wait, as many as are allowed"]
)
def test_vcpus_needed_are_refused_with_the_reason_outside_cpu_regimes(case: str) -> None:
    verdict, measured = CASES[case]
    vcpus = profile(measured).vcpus
    assert vcpus.needed_to_saturate is None
    assert verdict in (vcpus.why_null or "")


def test_without_a_device_only_the_rate_of_the_pipeline_is_said() -> None:
    result = profile(measurement(phase()))
    assert result.pipeline_examples_per_s == pytest.approx(266.0)
    assert result.step_ms is None
    assert result.input_wait_fraction is result.mxu_idle_fraction is None
    assert result.device_examples_per_s is result.vcpus.needed_to_saturate is None
    assert "--device-step-ms" in (result.why_no_device or "")


def test_mxu_utilization_that_nobody_collected_is_null() -> None:
    assert profile(measurement(*starving())).mxu_utilization is None


def test_shares_and_residual_add_up_to_the_cpu_time() -> None:
    result = profile(measurement(*starving(own=1.0)))
    assert result.residual
    total = sum(stage.share_of_cpu for stage in result.stages) + result.residual.share_of_cpu
    assert total == pytest.approx(1.0)
    assert [stage.name for stage in result.stages][-5:] == list(JPEG)[::-1][1:]


def test_cpu_that_no_stage_claims_is_shown_as_residual() -> None:
    half = {name: cost / 2 for name, cost in JPEG.items()}
    result = profile(measurement(*starving(active_ms=half)))
    assert result.residual
    assert result.residual.share_of_cpu == pytest.approx(0.5, abs=0.02)


def test_a_stage_that_waits_gets_the_cpu_that_the_others_leave() -> None:
    result = profile(CASES["reads that wait, as many as are allowed"][1])
    read = next(stage for stage in result.stages if stage.name == "read")
    assert read.is_bottleneck
    assert read.cpu_ms_per_example < 0.2 * read.active_ms_per_example
    decode = max(result.stages, key=lambda stage: stage.cpu_ms_per_example)
    assert decode.name == "decode"


def test_without_the_re_run_elapsed_time_would_mislead() -> None:
    measured = replace(CASES["reads that wait, as many as are allowed"][1], isolated=())
    costliest = max(profile(measured).stages, key=lambda stage: stage.cpu_ms_per_example)
    assert costliest.name == "read"


def test_epochs_too_short_to_be_seen_whole_do_not_inflate_the_cpu_per_example() -> None:
    free = phase()
    seen = tuple(
        replace(node, elements=node.elements // 50, active_s=node.active_s / 50)
        for node in free.nodes
    )
    whole, partly = profile(measurement(free)), profile(measurement(replace(free, nodes=seen)))
    assert partly.cpu_ms_per_example == pytest.approx(whole.cpu_ms_per_example)


def test_a_window_of_few_large_batches_counts_what_was_worked_on() -> None:
    free = replace(phase(), steps=2, elements=2, examples=64)
    assert profile(measurement(free)).pipeline_examples_per_s == pytest.approx(266, rel=0.05)


def test_a_headline_names_no_stage_where_most_time_goes_between_them() -> None:
    handed_on = profile(CASES["one thread that hands tiny elements on"][1])
    assert handed_on.headline.endswith("is spent on passing single elements between stages.")
    one_thread = profile(CASES["one thread for everything"][1])
    assert one_thread.headline.endswith("decode does not run in parallel.")


def test_python_that_waits_unprobed_may_wait_for_the_lock() -> None:
    windows = starving(**WAITING)
    parts = [
        replace(each, signals=replace(each.signals, gil_overshoot_p90_ms=None)) for each in windows
    ]
    python, native = (
        profile(measurement(*parts, isolated=READ_IS_CHEAP, python=name)) for name in ("read", "")
    )
    assert (python.verdict, native.verdict) == ("io", "io")
    assert python.confidence <= 0.5 < native.confidence
    assert "too short to tell" in python.evidence[-1]


def test_a_runtime_in_python_can_hold_the_lock_as_the_users_functions_do() -> None:
    held: dict[str, Any] = {"gil_overshoot_p90_ms": 28.0, "gil_overshoot_p50_ms": 11.0, "own": 0.5}
    measured = replace(counted(("read", "Source", 0.1, 0.1), **held), kind="grain")
    found = profile(measured)
    assert found.verdict == "gil"
    assert "passing elements" in found.evidence[-1]
    in_workers = replace(measured, settings={"num_workers": 2})
    assert profile(in_workers).verdict != "gil"


def test_a_function_and_its_decoding_are_one_when_the_longest_is_named() -> None:
    rows = [("image decode in load", 0.35), ("load", 0.2), ("blur", 0.4)]
    found = profile(counted(*((name, "Python", part, part) for name, part in rows)))
    assert found.verdict == "serial"
    assert "image decode in load does not run in parallel" in found.headline


def test_the_training_of_a_program_is_not_time_between_stages() -> None:
    measured = measurement(*starving(own=0.5, active_ms={"batch": 0.01}, examples_per_s=200.0))
    assert "between stages" in " ".join(profile(measured).evidence)
    found = profile(replace(measured, program="train.py"))
    assert "between stages" not in " ".join((found.headline, *found.evidence))
    busy = measurement(*starving(active_ms={"batch": 0.01}, examples_per_s=200.0))
    assert "batch uses most" in profile(busy).headline
    assert "the training uses most" in profile(replace(busy, program="train.py")).headline


def test_work_that_the_model_misses_is_found_in_ever_longer_parts() -> None:
    free, device = starving(own=0.5, calls=None, active_ms={**JPEG, "decode": 0.5})
    plain = measurement(free, device, active_ms={**JPEG, "decode": 0.5})
    upto = ((6, 2.3), (5, 2.6), (4, 3.1), (3, 3.6), (2, 3.9), (1, 4.1))
    isolated = tuple(IsolatedStage(depth, ms / 1e3) for depth, ms in upto)
    found = profile(replace(plain, isolated=isolated))
    source = next(stage for stage in found.stages if stage.op == "TensorSlice")
    assert source.cpu_ms_per_example == pytest.approx(2.3, rel=0.1)
    assert source.method.startswith("CPU time of ever longer parts")
    assert (found.residual.share_of_cpu if found.residual else 1) < 0.05
    assert found.verdict == "serial"


def test_what_listing_files_costs_alone_is_not_per_example(monkeypatch: Any) -> None:
    monkeypatch.setitem(OPS, "read", "ParallelInterleave")
    free, device = starving(own=0.5, calls=None, active_ms={**JPEG, "decode": 0.5})
    plain = measurement(free, device, active_ms={**JPEG, "decode": 0.5})
    upto = ((6, 50.0), (5, 2.6), (4, 3.1), (3, 3.6), (2, 3.9), (1, 4.1))
    isolated = tuple(IsolatedStage(depth, ms / 1e3) for depth, ms in upto)
    found = profile(replace(plain, isolated=isolated)).stages
    costs = {stage.name: stage.cpu_ms_per_example for stage in found}
    assert costs["read"] + costs["tensor_slice"] == pytest.approx(2.6, rel=0.1)
    assert costs["decode"] == pytest.approx(0.5, rel=0.1)


def test_a_batch_gives_what_it_cannot_have_copied_to_those_that_it_reads_from() -> None:
    costs = {"batch": 0.002, "decode": 0.03}
    free = phase(own=0.5, examples_per_s=8e3, active_ms=costs)
    isolated = tuple(IsolatedStage(depth, ms / 1e3) for depth, ms in ((1, 0.02), (0, 0.12)))
    batch = next(node.path for node in free.nodes if node.op == "BatchV2")
    plain = measurement(free, kind="tf.data", active_ms=costs, isolated=isolated)
    copying = (CopyingStage(batch, 0.002 * BATCH / 1e3),)
    before, after = (profile(each).stages for each in (plain, replace(plain, copying=copying)))
    assert before[-1].cpu_ms_per_example > 5 * before[-2].cpu_ms_per_example
    assert after[-1].cpu_ms_per_example == pytest.approx(0.002)
    assert after[-2].cpu_ms_per_example > 0.1


def test_threads_of_a_worker_process_that_uses_one_vcpu_wait_for_its_lock() -> None:
    rows = [("blur", "Map", 9.0, 1.0)]
    measured = replace(counted(*rows, lanes=16), kind="grain", settings={"num_workers": 1})
    assert profile(measured).verdict == "gil"
    rows = [("fetch", "Map", 9.0, 0.3)]
    waits = replace(counted(*rows, lanes=16), kind="grain", settings={"num_workers": 1})
    assert profile(waits).verdict == "io"


def test_threads_that_wait_for_vcpus_of_others_do_not_wait_for_data() -> None:
    rows = [("blur", "Map", 13.0, 1.0)]
    others = {"other_cpu_s": 5.0, "run_delay_s": 40.0}
    measured = replace(counted(*rows, lanes=32, **others), settings={"num_workers": 2})
    assert profile(measured).verdict == "stolen"
