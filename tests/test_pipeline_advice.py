"""Advice fits the verdict, predicts a gain, and names the next command."""

from dataclasses import replace
from typing import Any

import pytest

from tests.pipeline_cases import BATCH, JPEG, measurement, phase, profile, starving
from tests.test_pipeline_verdicts import CASES, counted
from tpuctl.profiling.advice import advise
from tpuctl.profiling.advice_tf_data import _several_at_once
from tpuctl.profiling.case import AdviceInputs, Finding, build_case
from tpuctl.profiling.conclude import build_profile
from tpuctl.profiling.models import ChainNode, Device, Input, Profile, Vcpus
from tpuctl.profiling.windows import Spread


def codes(result: Profile) -> list[str]:
    return [advice.code for advice in result.advice]


def test_photographs_on_busy_vcpus_should_be_presized() -> None:
    result = profile(measurement(*starving()))
    presize = next(advice for advice in result.advice if advice.code == "presize")
    assert presize.change == "tpuctl data presize photos photos-224 --size 224"
    assert presize.predicted_examples_per_s is not None
    assert result.pipeline_examples_per_s
    assert presize.predicted_examples_per_s > 3 * result.pipeline_examples_per_s
    assert presize.predicted_mxu_idle_fraction == 0.0
    assert presize.measured_examples_per_s is presize.error_fraction is None


@pytest.mark.parametrize(
    "measured",
    [
        measurement(*starving(), kind="shards"),
        measurement(*starving(active_ms={**JPEG, "decode": 0.5, "augment": 6.0})),
    ],
    ids=["shards", "little decoding"],
)
def test_presize_is_not_offered_for(measured: object) -> None:
    assert "presize" not in codes(profile(measured))  # type: ignore[arg-type]


def test_a_device_that_is_the_limit_needs_no_advice() -> None:
    assert profile(CASES["a device slower than the pipeline"][1]).advice == ()


def test_a_cache_is_offered_only_where_it_fits_in_memory() -> None:
    fits = measurement(*starving(), input=Input(200, 200, 1))
    large = measurement(*starving(), input=Input(200, 1_000_000, 1))
    unknown = measurement(*starving(), input=Input(200, None, 1))
    assert "cache" in codes(profile(fits))
    assert "cache" not in codes(profile(large))
    assert "cache" not in codes(profile(unknown))


def test_a_cache_goes_below_a_shuffle_or_says_that_it_keeps_the_order() -> None:
    for at, told in ((3, False), (5, True)):
        order = list(JPEG)
        order.insert(at, "shuffle")
        active = {name: JPEG.get(name, 0.01) for name in order}
        result = profile(measurement(*starving(active_ms=active), input=Input(200, 200, 1)))
        cache = next(each for each in result.advice if each.code == "cache")
        assert ("then shuffle" in cache.change) == told
        assert "after shuffle" not in cache.what


def test_what_is_in_memory_already_needs_no_cache() -> None:
    active = {"prefetch": 0.01, "batch": 6.0}
    result = profile(measurement(*starving(active_ms=active), input=Input(0, 200, 0)))
    assert "cache" not in codes(result)


def test_python_functions_are_not_for_other_machines() -> None:
    assert "data_service" in codes(profile(measurement(*starving())))
    assert "data_service" not in codes(profile(measurement(*starving(), python="augment")))


def test_a_thread_that_is_too_slow_alone_is_not_helped_by_more_vcpus() -> None:
    taken = {"own": 0.5, "others": 0.48, "examples_per_s": 136.0, "run_delay_s": 6.0}
    alone = profile(measurement(*starving(calls=None, **taken)))
    assert alone.verdict == "stolen"
    assert alone.vcpus.needed_to_saturate is None
    assert "one thread runs decode" in (alone.vcpus.why_null or "")
    assert "parallel_calls" in codes(alone)
    together = profile(measurement(*starving(**taken)))
    assert together.vcpus.needed_to_saturate
    assert "parallel_calls" not in codes(together)


def test_threads_of_a_program_are_not_said_to_be_one() -> None:
    for delay_s, told in ((0.1, True), (12.0, False)):
        row = ("decode", "Python", 0.99, 0.8)
        case = build_case(counted(row, others=0.3, run_delay_s=delay_s))
        finding = Finding("stolen", 0.9, (), 0)
        advice = advise(AdviceInputs(case, finding, Vcpus(2.0), "t.py:make", 224))
        assert ("workers" in [each.code for each in advice]) == told


def test_large_photographs_can_be_decoded_smaller() -> None:
    result = profile(measurement(*starving()))
    scaled = next(advice for advice in result.advice if advice.code == "scaled_decode")
    assert "ratio=4" in scaled.change


OWN = {"kind": "tf.data"}
BOX = {"batch": 0.2, "resize": 0.5, "augment": 0.3, "decode": 6.0, "read": 0.3}


@pytest.mark.parametrize(
    ("given", "offered"),
    [
        ({}, ["Decode at 1/2 of the size: only 448 pixels are needed."]),
        ({"active_ms": BOX}, []),
        ({"active_ms": {"batch": 0.2, "augment": 0.3, "decode": 6.0, "read": 0.3}}, []),
    ],
    ids=["resized", "cut out by a random box", "resized at random"],
)
def test_images_are_decoded_smaller_only_where_the_pipeline_needs_no_more(
    given: dict[str, Any], offered: list[str]
) -> None:
    measured = measurement(*starving(**given), **OWN, **given)
    result = build_profile(measured, target="t.py", image_size=0, device=Device(60.0, "given"))
    assert [a.what for a in result.advice if a.code == "scaled_decode"] == offered


@pytest.mark.parametrize(
    ("case", "code"),
    [
        ("neighbours on the vCPUs", "neighbours"),
        ("a quota that holds back", "quota"),
        ("a Python function that holds the lock", "python_to_ops"),
        ("reads that wait, as many as are allowed", "parallel_calls"),
        ("reads that wait and fill the thread pool", "threadpool"),
        ("one thread for everything", "parallel_calls"),
        ("batches that come unevenly", "prefetch"),
        ("a copy to the device in every step", "fewer_bytes"),
        ("one process that never rests", "workers"),
        ("one process that holds the lock", "workers"),
        ("one process that waits for its reads", "parallel_calls"),
        ("as many processes as vCPUs", "cached_variants"),
    ],
)
def test_each_cause_has_its_own_advice(case: str, code: str) -> None:
    assert code in codes(profile(CASES[case][1]))


@pytest.mark.parametrize(
    "case", ["reads that wait and fill the thread pool", "one thread for everything"]
)
def test_more_vcpus_are_never_the_advice_where_they_would_not_help(case: str) -> None:
    assert "more_vcpus" not in codes(profile(CASES[case][1]))


def test_more_vcpus_come_with_the_workers_that_use_them() -> None:
    processes = profile(CASES["as many processes as vCPUs"][1])
    for result, is_fixed in ((processes, True), (profile(measurement(*starving())), False)):
        more = next(each for each in result.advice if each.code == "more_vcpus")
        assert ("workers instead of 2" in more.what) is is_fixed


@pytest.mark.parametrize(("delay_s", "gain"), [(3.75, 4.0), (8.75, 8.0)])
def test_one_thread_gains_no_more_than_a_vcpu_from_neighbours_that_go(
    delay_s: float, gain: float
) -> None:
    waits = counted(("f", "Python", 0.95, 0.25), others=0.875, run_delay_s=delay_s)
    result = profile(waits)
    advice = next(each for each in result.advice if each.code == "neighbours")
    assert result.pipeline_examples_per_s
    assert advice.predicted_examples_per_s == pytest.approx(gain * result.pipeline_examples_per_s)


def test_advice_is_ranked_by_cost_then_predicted_gain_and_never_loses() -> None:
    result = profile(measurement(*starving()))
    costs_money = [advice.code in ("more_vcpus", "data_service") for advice in result.advice]
    assert costs_money == sorted(costs_money)
    assert set(costs_money) == {True, False}
    free = result.advice[: costs_money.index(True)]
    rates = [min(532.0, advice.predicted_examples_per_s or 0.0) for advice in free]
    assert len(rates) >= 2
    assert result.advice[0].code == "presize"
    assert rates == sorted(rates, reverse=True)
    assert result.pipeline_examples_per_s
    assert min(rates) > result.pipeline_examples_per_s


def test_a_folder_with_a_space_makes_a_command_that_can_be_pasted() -> None:
    built = build_profile(
        measurement(*starving()),
        target="my photos/",
        image_size=224,
        device=Device(1e3 * BATCH / 532, "given"),
    )
    presize = next(advice for advice in built.advice if advice.code == "presize")
    assert presize.change == "tpuctl data presize 'my photos' 'my photos-224' --size 224"


def test_tiny_elements_should_be_batched_first() -> None:
    small = {name: cost / 10 for name, cost in JPEG.items()}
    result = profile(measurement(phase(active_ms=small), kind="tf.data"))
    assert "vectorise" in codes(result)
    fused = {"parse + batch": 0.6}
    result = profile(measurement(phase(active_ms=fused), active_ms=fused, kind="tf.data"))
    assert "vectorise" in codes(result)


def test_where_vcpus_gain_nothing_elements_should_be_batched_and_no_machine_is_offered() -> None:
    found = profile(CASES["small elements that fill all vCPUs and gain nothing"][1])
    assert "passing single elements" in found.headline
    assert codes(found) == ["vectorise", "prefetch"]
    assert found.vcpus.needed_to_saturate is None


def test_what_cannot_be_predicted_is_not_given_a_number() -> None:
    (advice,) = profile(CASES["batches that come unevenly"][1]).advice
    assert advice.predicted_examples_per_s is None
    assert advice.predicted_mxu_idle_fraction is None


@pytest.mark.parametrize(("step_s", "far"), [(BATCH / 500, False), (BATCH / 3000, True)])
def test_a_prediction_far_from_what_was_measured_says_so(step_s: float, far: bool) -> None:
    result = profile(measurement(phase(), phase(device_s=step_s, wait=0.5)))
    more = next(advice for advice in result.advice if advice.code == "more_vcpus")
    assert ("extrapolated" in more.what) is far


def test_heavy_augmentation_can_be_kept_in_variants_and_says_how_large_they_are() -> None:
    costs = {**JPEG, "decode": 0.5, "augment": 6.0}
    result = profile(measurement(*starving(active_ms=costs), input=Input(200, 1_000_000, 1)))
    variants = next(each for each in result.advice if each.code == "cached_variants")
    assert "2.19 TiB of disk" in variants.what
    assert not variants.change.endswith("without its repeat")
    costs = {"repeat": 0.01, **costs}
    endless = profile(measurement(*starving(active_ms=costs), active_ms=costs))
    variants = next(each for each in endless.advice if each.code == "cached_variants")
    assert variants.change.endswith("--variants 4, without its repeat")
    light = profile(measurement(*starving()))
    assert "cached_variants" not in codes(light)


def test_random_functions_are_kept_in_variants_and_others_once() -> None:
    crop = "RandomResizedCrop"
    for names, changes in ((("decode", crop), " --variants 4"), (("decode", "ToTensor"), "")):
        made = counted(*((name, "Python", 0.99, 0.97) for name in names), lanes=2)
        costs = [replace(c, is_random=c.name == crop) for c in made.phases[0].costs]
        phases = [replace(each, costs=tuple(costs)) for each in made.phases]
        result = profile(replace(made, kind="torch", phases=tuple(phases)))
        advice = next(each for each in result.advice if each.code == "cached_variants")
        assert advice.change == f"tpuctl data cache TARGET DST{changes}"
        assert (f"4 times, since {crop} is random" in advice.what) == bool(changes)


@pytest.mark.parametrize(
    ("target", "cached"),
    [
        ("my input.py:make", "'my input.py:make'"),
        ("package.module:make", "package.module:make"),
        ("photos", "TARGET"),
        ("gs://bucket/photos", "TARGET"),
    ],
)
def test_only_a_function_can_be_cached_as_it_is(target: str, cached: str) -> None:
    heavy = starving(active_ms={**JPEG, "decode": 0.5, "augment": 6.0})
    built = build_profile(
        measurement(*heavy, input=Input(200, 1_000_000, 1)),
        target=target,
        image_size=224,
        device=Device(1e3 * BATCH / 532, "given"),
    )
    variants = next(each for each in built.advice if each.code == "cached_variants")
    assert variants.change == f"tpuctl data cache {cached} DST --variants 4"


def test_other_machines_are_counted_by_the_vcpus_that_are_missing() -> None:
    result = profile(measurement(*starving()))
    service = next(each for each in result.advice if each.code == "data_service")
    assert "1 more machine of 8 vCPUs" in service.what


def test_a_cache_above_a_shuffle_is_said_to_freeze_it() -> None:
    made = measurement(*starving())
    frozen = ChainNode("Cache", "cache", inputs=(made.chain,))
    result = profile(replace(made, chain=frozen))
    order = next(each for each in result.advice if each.code == "order")
    assert "first output of augment" in order.what
    assert "order" not in codes(profile(made))


def test_threads_that_work_need_a_vcpu_each_and_not_more_of_them() -> None:
    result = profile(CASES["work on a pool of one thread, and a vCPU that nobody uses"][1])
    [advice] = [each for each in result.advice if each.code == "threadpool"]
    assert advice.change.startswith("options.threading.private_threadpool_size = 2")
    assert result.pipeline_examples_per_s
    assert advice.predicted_examples_per_s == pytest.approx(
        2 * result.pipeline_examples_per_s, rel=0.05
    )


def test_maps_in_one_thread_are_run_in_parallel_together() -> None:
    long = {**JPEG, "decode": 3.0, "augment": 2.0}
    measured = measurement(*starving(own=0.5, calls=None, active_ms=long, examples_per_s=160.0))
    [advice] = [each for each in profile(measured).advice if each.code == "parallel_calls"]
    assert advice.what.startswith("decode, resize, augment run on one thread")
    assert advice.change == (
        "num_parallel_calls=tf.data.AUTOTUNE in /home/me/train.py:6 and /home/me/train.py:7"
    )


@pytest.mark.parametrize(
    ("op", "change"),
    [
        ("TextLineDataset", "tf.data.TextLineDataset(paths, num_parallel_reads=tf.data.AUTOTUNE)"),
        ("FlatMap", "interleave(..., num_parallel_calls=tf.data.AUTOTUNE) instead of flat_map"),
        ("BatchV2", "batch(..., num_parallel_calls=tf.data.AUTOTUNE)"),
        ("Shuffle", None),
    ],
)
def test_what_one_thread_reads_or_batches_has_its_own_way_to_be_parallel(
    op: str, change: str | None
) -> None:
    stage = replace(profile(measurement(*starving())).stages[0], name=op, op=op, parallelism=None)
    found = _several_at_once(stage, [stage])
    assert (found is None) if change is None else (found or "").startswith(change)


def test_a_py_dataset_gets_threads_where_the_lock_is_free_and_processes_where_it_is_held() -> None:
    settings = {"loader": "py_dataset", "loader_class": "Photos"}
    case = replace(CASES["one thread for everything"][1], settings=settings)
    free = next(each for each in profile(case).advice if each.code == "workers")
    assert free.change == "set .workers = 2 on the Photos before fit"
    held = [
        replace(
            each, signals=replace(each.signals, gil_overshoot_p50_ms=4.0, gil_overshoot_p90_ms=5.0)
        )
        for each in case.phases
    ]
    held_case = replace(case, phases=tuple(held))
    found = next(each for each in profile(held_case).advice if each.code == "workers")
    assert found.change.endswith("use_multiprocessing = True on the Photos before fit")


def test_a_shuffle_buffer_that_every_epoch_fills_again_is_said_to_be_why_batches_are_late() -> None:
    late = Spread(128, 0.0255, 0.0006, 0.0025, 0.8, 0.81)
    names = {"prefetch": 0.01, "batch": 0.2, "shuffle": 0.1, "augment": 0.3}
    starved = starving(examples_per_s=800.0, own=0.97, active_ms=names)
    phases = (replace(each, step_times=late) for each in starved)
    measured = measurement(*phases, active_ms=names, input=Input(1, 1000, 1))
    [advice] = [each for each in profile(measured).advice if each.code == "prefetch"]
    assert ".repeat()" in advice.change
    endless = replace(measured, input=Input(1, None, 1))
    [advice] = [each for each in profile(endless).advice if each.code == "prefetch"]
    assert "prefetch(8)" in advice.change
