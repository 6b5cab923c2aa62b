"""Scenes with a known cause, written as traces and read back: idle time, steps, stages, verdict."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests import xspaces
from tests.xspaces import Event, Line, Plane, Stat, chip, host, iterator, pipeline, training
from tpuctl.profiling.models import Profile
from tpuctl.profiling.trace.devices import drop_partial
from tpuctl.profiling.trace.idle import host_classes
from tpuctl.profiling.trace.profile import profile_trace

SECOND = 10**12


@pytest.fixture
def read(tmp_path: Path):
    def write_and_read(planes: Sequence[Plane]) -> Profile:
        place = tmp_path / "host.xplane.pb"
        place.write_bytes(xspaces.space(planes))
        return profile_trace(place)

    return write_and_read


def shares(profile: Profile) -> dict[str, float]:
    assert profile.trace
    return {each.code: each.share_of_idle for each in profile.trace.idle}


@pytest.mark.parametrize(
    ("wait", "code"),
    [
        ("Iterator::Root", "input"),
        ("IteratorGetNext:IteratorGetNext", "input"),
        ("tpu::System::TransferToDevice", "to_device"),
        ("tpu::System::TransferFromDevice=>IssueEvent", "from_device"),
        ("np.asarray(jax.Array)", "from_device"),
        ("MapDmaBuffer", "dma_map"),
        ("TfrtTpuClient::DefragmentMemory", "memory"),
        ("XlaLinearize", "layout"),
        ("TransposePlan::ExecuteTyped", "layout"),
        ("backend_compile", "compile"),
        ("TfrtTpuCompiler::Compile", "compile"),
        ("LoadProgramCacheMiss", "load"),
        ("SaveV2:SaveV2", "checkpoint"),
        ("Iterator::Root::Prefetch::ParallelMapV2", "input_work"),
        ("PjitFunction(step)", "dispatch"),
        ("$train.py:12 log_metrics", "python"),
        ("Something unheard of", "other"),
        ("ThreadpoolListener::Record", "none"),
    ],
)
def test_idle_time_belongs_to_what_the_host_did_meanwhile(read, wait: str, code: str) -> None:
    profile = read(training(8, wait_ms=40, wait=wait))
    assert shares(profile) == {code: pytest.approx(1.0)}
    assert profile.trace.idle_s == pytest.approx(0.32, rel=0.01)
    assigned = profile.trace.assigned_idle_fraction
    assert assigned == pytest.approx(0.0 if code == "other" else 1.0)


def test_every_class_can_be_reached() -> None:
    codes = [each.code for each in host_classes().classes]
    assert len(set(codes)) == len(codes) >= 10


def test_of_two_things_at_once_the_more_specific_has_the_time(read) -> None:
    waits = [Event("PjitFunction(f)", 100 * i, 40) for i in range(4)]
    copies = [Event("TransferToDevice", 100 * i + 10, 20) for i in range(4)]
    profile = read([*training(4, wait_ms=40)[:1], host(waits, copies)])
    assert shares(profile) == {
        "to_device": pytest.approx(0.5, abs=0.01),
        "dispatch": pytest.approx(0.5, abs=0.01),
    }
    active = {each.code: each.active_share for each in profile.trace.idle}
    assert active["dispatch"] == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize(
    ("wait", "verdict"),
    [
        ("TransferToDevice", "transfer"),
        ("backend_compile", "startup"),
        ("Iterator::Root", "unknown"),
        ("PjitFunction(f)", "unknown"),
    ],
)
def test_a_cause_with_most_of_the_idle_time_is_the_verdict(read, wait: str, verdict: str) -> None:
    assert read(training(8, wait_ms=40, wait=wait)).verdict == verdict


def test_devices_that_never_wait_are_the_limit(read) -> None:
    profile = read(training(8))
    assert profile.verdict == "device"
    assert profile.mxu_idle_fraction == pytest.approx(0.0, abs=1e-3)
    assert profile.advice == ()


def test_idle_time_before_the_steps_is_a_slow_start(read) -> None:
    steps = [(1000 + 100 * i, 1100 + 100 * i) for i in range(10)]
    marks = Line("Steps", [Event(str(i), a, b - a) for i, (a, b) in enumerate(steps)])
    compile_it = Event("backend_compile", 0, 1000)
    profile = read([chip(0, [(0, 1), *steps], marks), host([compile_it])])
    assert profile.verdict == "startup"
    assert profile.device_idle_fraction == pytest.approx(0.5, abs=0.01)
    assert profile.trace.steps.device_idle_fraction == pytest.approx(0.0, abs=0.01)


def test_an_input_wait_is_told_and_without_an_input_pipeline_unknown(read) -> None:
    assert read(training(8, wait_ms=40)).input_wait_fraction == pytest.approx(0.4, abs=0.01)
    assert read(training(8, wait_ms=40, wait="Work")).input_wait_fraction is None


def test_infeed_is_waiting_and_not_work(read) -> None:
    ops = [Event("%fusion.1", 0, 60), Event("%infeed.1", 60, 40), Event("%fusion.1", 100, 60)]
    profile = read([Plane("/device:TPU:0", [Line("XLA Ops", ops)]), host([])])
    assert profile.device_idle_fraction == pytest.approx(0.25)
    assert shares(profile) == {"infeed": pytest.approx(1.0)}
    assert profile.input_wait_fraction == pytest.approx(0.25)


def test_chips_that_wait_for_other_chips_are_told_apart(read) -> None:
    profile = read([chip(0, [(0, 100)]), chip(1, [(0, 50)])])
    assert profile.device_idle_fraction == pytest.approx(0.25)
    assert shares(profile) == {"others_busy": pytest.approx(1.0)}
    assert profile.verdict == "unknown"


def test_a_chip_that_starts_late_was_idle_until_then(read) -> None:
    profile = read([chip(0, [(0, 100)]), chip(1, [(50, 100)])])
    assert [each.busy_fraction for each in profile.trace.chips] == [1.0, 0.5]


def test_operations_inside_others_are_not_counted_twice(read) -> None:
    ops = [Event("%while", 0, 50), Event("%fusion", 10, 20), Event("%fusion", 90, 10)]
    profile = read([Plane("/device:TPU:0", [Line("XLA Ops", ops)])])
    assert profile.device_idle_fraction == pytest.approx(0.4)


def test_cut_off_steps_are_dropped() -> None:
    whole = [(i * 120 * SECOND, (i + 1) * 120 * SECOND) for i in range(4)]
    assert drop_partial([*whole, (480 * SECOND, 480 * SECOND)]) == (whole, 1)
    assert drop_partial([(-30 * SECOND, 0), *whole, (480 * SECOND, 510 * SECOND)]) == (whole, 2)


def test_a_short_step_in_the_middle_stays() -> None:
    steps = [(0, 100), (100, 150), (150, 250), (250, 350)]
    assert drop_partial(steps) == (steps, 0)


def test_steps_of_a_truncated_capture_have_the_right_mean(read) -> None:
    steps = [(i * 120.3, (i + 1) * 120.3) for i in range(4)] + [(481.2, 481.9)]
    marks = Line("Steps", [Event(str(i), a, b - a) for i, (a, b) in enumerate(steps)])
    profile = read([chip(0, [(0, 481.9)], marks)])
    assert profile.step_ms.mean == pytest.approx(120.3)
    assert profile.trace.steps.dropped == 1


def test_steps_that_the_program_marked_are_found(read) -> None:
    marks = [Event("train", 50 * i, 5, {"step_num": i}) for i in range(6)]
    profile = read([chip(0, [(0, 300)]), host(marks)])
    assert profile.step_ms.p50 == pytest.approx(50)
    assert "step_num" in profile.trace.steps.source


def test_unmarked_steps_are_counted_by_launches_and_said_so(read) -> None:
    launches = Line("XLA Modules", [Event(f"jit_f({i})", 80 * i, 70) for i in range(5)])
    profile = read([chip(0, [(0, 400)], launches)])
    assert profile.step_ms.p50 == pytest.approx(80)
    assert "not marked" in profile.trace.steps.source


@pytest.mark.parametrize(("value", "expected"), [(0.0, None), (48.8, 0.488), (-1.0, None)])
def test_a_counter_that_stands_at_zero_was_not_collected(read, value: float, expected) -> None:
    plane = Plane("/host:CPU", [Line("main")], {"matrix_unit_utilization_percent": value})
    profile = read([chip(0, [(0, 100)]), plane])
    assert profile.mxu_utilization == (expected and pytest.approx(expected))


def test_flops_bound_the_use_of_the_matrix_unit(read) -> None:
    ops = [Event("%dot", 0, 50), Event("%dot", 50, 50), Event("%while", 0, 100)]
    stats: dict[str, dict[str, Stat]] = {
        "%dot": {"flops": 10**12},
        "%while": {"flops": 2 * 10**12, "hlo_category": "while"},
    }
    peak = {"peak_teraflops_per_second": 100.0}
    profile = read([Plane("/device:TPU:0", [Line("XLA Ops", ops)], peak, stats)])
    assert profile.trace.flops_of_peak == pytest.approx(2 / (100 * 0.1))
    assert profile.mxu_utilization is None


def test_a_gpu_has_no_matrix_unit_and_its_copies_are_no_work(read) -> None:
    lines = [
        Line("Stream #13(Compute)", [Event("sgemm", 0, 40), Event("sgemm", 60, 40)]),
        Line("Stream #14(MemcpyH2D)", [Event("MemcpyH2D", 40, 20)]),
        Line("XLA Ops", [Event("fusion", 0, 100)]),
    ]
    profile = read([Plane("/device:GPU:0", lines), host([])])
    assert profile.device_idle_fraction == pytest.approx(0.2)
    assert profile.mxu_idle_fraction is None
    assert shares(profile) == {"to_device": pytest.approx(1.0)}


def test_a_sparse_core_is_no_chip(read) -> None:
    busy = Line("XLA Ops", [Event("x", 0, 100)])
    profile = read([chip(0, [(0, 50), (99, 100)]), Plane("/device:TPU:0 SparseCore 0", [busy])])
    assert len(profile.trace.chips) == 1
    assert profile.device_idle_fraction == pytest.approx(0.49)


def test_work_is_followed_from_the_stage_to_the_thread_that_did_it(read) -> None:
    profile = read(pipeline(40, batch=8, decode_ms=6, resize_ms=2))
    stages = {each.name: each for each in profile.stages}
    assert stages["DecodeJpeg"].share_of_cpu == pytest.approx(0.75, abs=0.01)
    assert stages["ResizeBilinear"].share_of_cpu == pytest.approx(0.25, abs=0.01)
    assert stages["DecodeJpeg"].cpu_ms_per_example == pytest.approx(6.0)
    assert stages["DecodeJpeg"].is_bottleneck
    assert stages["DecodeJpeg"].index < stages["ResizeBilinear"].index
    assert profile.batch_size == 8
    assert profile.input_wait_fraction == pytest.approx(1.0, abs=0.01)


def test_a_trace_refuses_to_count_vcpus_and_says_why(read) -> None:
    vcpus = read(pipeline()).vcpus
    assert vcpus.needed_to_saturate is None
    assert "CPU time" in (vcpus.why_null or "")


def loop(operation: str, *, vcpus: int, threads: int, wait_ms: float = 90) -> list[Plane]:
    """A loop that waits nearly all the time, while so many threads run one operation."""
    path = "Root::Prefetch::ParallelMapV2"
    marks = [Event("train", 100 * i, 100, {"step_num": i}) for i in range(6)]
    root = [iterator("Root", 100 * i, wait_ms, cpu_budget=vcpus) for i in range(6)]
    below = [
        part
        for i in range(6)
        for thread in range(threads)
        for part in (
            Event("ParallelMapProduce", 100 * i + thread, 0.5),
            iterator(f"{path}::TensorSlice", 100 * i + thread, 0.1),
            Event("FunctionRun", 100 * i + thread + 0.2, 0.1, {"_p": 100 * i + thread}),
            iterator(path, 100 * i + thread + 0.6, 0.1, parallelism=threads),
        )
    ]
    pool = [
        [
            part
            for i in range(6)
            for part in (
                Event("ExecutorState::Process", 100 * i, 99, {"_c": 100 * i + thread}),
                Event(f"f/{operation}:{operation}", 100 * i, 98),
            )
        ]
        for thread in range(threads)
    ]
    return [host(marks, root, below, *pool)]


@pytest.mark.parametrize(
    ("operation", "vcpus", "threads", "wait_ms", "verdict"),
    [
        ("DecodeJpeg", 2, 2, 90, "vcpu"),
        ("DecodeJpeg", 8, 2, 90, "unknown"),
        ("ReadFile", 2, 2, 90, "io"),
        ("PyFunc", 2, 2, 90, "unknown"),
        ("DecodeJpeg", 2, 2, 1, "device"),
    ],
)
def test_why_the_input_is_late_is_said_only_where_a_trace_shows_it(
    read, operation: str, vcpus: int, threads: int, wait_ms: float, verdict: str
) -> None:
    profile = read(loop(operation, vcpus=vcpus, threads=threads, wait_ms=wait_ms))
    assert profile.verdict == verdict
    if verdict not in ("device", "unknown"):
        assert profile.confidence < 0.9


def test_one_busy_thread_with_nothing_beside_it_is_serial(read) -> None:
    path = "Root::Map"
    marks = [Event("train", 100 * i, 100, {"step_num": i}) for i in range(6)]
    root = [
        part
        for i in range(6)
        for part in (iterator("Root", 100 * i, 95, cpu_budget=4), iterator(path, 100 * i, 95))
    ]
    profile = read([host(marks, root)])
    assert profile.verdict == "serial"
