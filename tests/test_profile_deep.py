"""The deep look: its budget, how traced work finds its stage, and a real trace of tf.data."""

import os
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.pipeline_cases import JPEG, measurement, nodes, phase, profile, write_target
from tests.warm_child import start_warm_child
from tpuctl.errors import TargetError
from tpuctl.profiling.align import match_trace
from tpuctl.profiling.attribution import TRACED
from tpuctl.profiling.measure.host_trace import (
    MOST_BYTES,
    MOST_S,
    ProfilerError,
    capture,
)
from tpuctl.profiling.models import Measurement, Profile
from tpuctl.profiling.profile import profile_target
from tpuctl.profiling.trace.host_trace import merge, read_host_traces
from tpuctl.profiling.trace.models import Deep, TracedNode
from tpuctl.profiling.trace.stages import InputPipeline, StageWork
from tpuctl.profiling.windows import NodeCost, Phase
from tpuctl.reporters.profile import deep_summary, operation_lines, profile_csv
from tpuctl.reporters.profile_html import profile_page


class Recorder:
    """A profiler that writes files of a given size, and burns CPU when it is stopped."""

    def __init__(self, size_bytes: int = 1000, stop_cpu_s: float = 0.0, breaks_at: int = -1):
        self.size_bytes, self.stop_cpu_s, self.breaks_at = size_bytes, stop_cpu_s, breaks_at
        self.folders: list[Path] = []
        self.is_on = False

    def start(self, folder: Path) -> None:
        if len(self.folders) == self.breaks_at:
            raise ProfilerError("no permission.")
        self.folders.append(folder)
        self.is_on = True

    def stop(self) -> Path:
        self.is_on = False
        end_s = time.thread_time() + self.stop_cpu_s
        while time.thread_time() < end_s:
            pass
        # Named after the second, as profilers do.
        place = self.folders[-1] / "2026_11_21_20_00_00.xplane.pb"
        place.touch()
        os.truncate(place, self.size_bytes)  # To write them would cost, and that is what counts.
        return place


def captured(
    recorder: Recorder, folder: Path, *, others: float | None = None
) -> tuple[Deep, tuple[str, ...]]:
    """Trace a pipeline on paper."""

    def measure(seconds: float) -> Phase:
        others_cpu_s = None if others is None else others * 2 * seconds
        window = phase(own=0.5, wall_s=seconds, other_cpu_s=others_cpu_s)
        return replace(window, start_s=0.0, end_s=seconds)

    return capture(measure, lambda: None, recorder, folder)


def test_a_cheap_trace_is_taken_in_full_and_each_capture_has_its_folder(tmp_path: Path) -> None:
    deep, files = captured(Recorder(), tmp_path)
    assert deep.ended is None
    assert deep.note is None
    assert deep.overhead_fraction is not None
    assert deep.overhead_fraction < 0.05
    assert MOST_S - 0.2 <= deep.traced_s <= MOST_S
    assert len(set(files)) == len(files) >= 2
    assert all(Path(file).exists() for file in files)


def test_a_trace_that_costs_too_much_stops_itself_and_says_so(tmp_path: Path) -> None:
    deep, files = captured(Recorder(stop_cpu_s=0.1), tmp_path)
    assert deep.captures == 1
    assert files == ()
    assert deep.overhead_fraction is not None
    assert deep.overhead_fraction > 0.05
    assert "than the allowed 5%" in (deep.note or "")


def test_the_fixed_cost_of_a_capture_counts_by_its_share_of_a_whole_one(tmp_path: Path) -> None:
    deep, files = captured(Recorder(stop_cpu_s=0.02), tmp_path)
    assert deep.ended is None
    assert files


@pytest.mark.parametrize(("others", "is_crowded"), [(None, False), (0.1, False), (0.7, True)])
def test_neighbours_make_a_traces_times_no_measure_of_work(
    tmp_path: Path, others: float | None, is_crowded: bool
) -> None:
    deep, files = captured(Recorder(), tmp_path, others=others)
    assert deep.others_fraction == (None if others is None else pytest.approx(others))
    assert deep.is_crowded is is_crowded
    assert ("used 70% of the vCPUs" in (deep.note or "")) is is_crowded
    assert files


def test_a_full_budget_of_bytes_ends_it_with_what_there_is(tmp_path: Path) -> None:
    deep, files = captured(Recorder(size_bytes=MOST_BYTES // 2), tmp_path)
    assert deep.captures == 2
    assert len(files) == 1
    assert deep.traced_bytes <= MOST_BYTES


def test_without_a_profiler_there_is_a_reason_in_place_of_a_trace(tmp_path: Path) -> None:
    deep, files = captured(Recorder(breaks_at=0), tmp_path)
    assert (deep.captures, files) == (0, ())
    assert deep.note == "No host trace: no permission."


def test_a_profiler_that_breaks_later_leaves_what_it_gave(tmp_path: Path) -> None:
    deep, files = captured(Recorder(breaks_at=2), tmp_path)
    assert len(files) == 1
    assert deep.note == "The host trace was stopped early: no permission."


def test_a_pipeline_that_fails_beside_the_trace_leaves_what_there_was(tmp_path: Path) -> None:
    recorder = Recorder()

    def measure(seconds: float) -> Phase:
        if len(recorder.folders) == 3:
            raise TargetError("The pipeline failed while giving a batch: no such file")
        return replace(phase(wall_s=seconds, own=0.5, other_cpu_s=None), nodes=())

    deep, files = capture(measure, lambda: None, recorder, tmp_path)
    assert not recorder.is_on
    assert len(files) == 1
    assert "no such file" in (deep.note or "")


def pipeline(*stages: StageWork) -> InputPipeline:
    return InputPipeline(list(stages), 0, [], {}, 0, 1, shortened=False, work_while_waiting_ps=0)


def test_the_report_says_what_the_trace_took_and_what_is_inside() -> None:
    deep = Deep(
        captures=3,
        traced_s=3.0,
        traced_bytes=300_000,
        overhead_fraction=0.007,
        linked_fraction=0.99,
    )
    measured = measurement(phase(), traced=traced_as(JPEG), deep=deep)
    found = profile(measured)
    assert deep_summary(deep) == (
        "3.0 s, 293 KiB; 0.7 % of the vCPUs meanwhile; 99 % of the work linked to a stage"
    )
    assert operation_lines(found) == ["decode: OpDecode 75%"]
    assert "OpDecode 75%" in profile_page(found)
    assert "OpDecode 75%" in profile_csv(found)


def test_shares_are_from_a_trace_only_where_no_neighbour_stretched_it() -> None:
    def method(others: float) -> str:
        deep = Deep(captures=3, others_fraction=others)
        return profile(measurement(phase(), traced=traced_as(JPEG), deep=deep)).stages[0].method

    assert method(0.1) == TRACED
    assert method(0.7) != TRACED


def test_the_epochs_of_a_repeated_stage_are_one() -> None:
    stages = [
        StageWork(
            f"Iterator::Root::Map::ForeverRepeat[{epoch}]::TensorSlice",
            elements=3,
            work_ps=10**12,
            operations=Counter({"ReadFile": 10**12}),
        )
        for epoch in range(2)
    ]
    (node,) = merge([pipeline(stages[0]), pipeline(stages[1])])
    assert node.path == ("Root", "Map", "ForeverRepeat", "TensorSlice")
    assert (node.work_s, node.elements) == (2.0, 6)
    assert dict(node.operations) == {"ReadFile": 2.0}


def test_inputs_that_a_trace_cannot_tell_apart_share_as_the_model_says() -> None:
    costs = [
        NodeCost(("Root", "Zip"), 0.0, 1, 0, None, 1.0),
        NodeCost(("Root", "Zip", "Map"), 1.0, 1, 0, None, 1.0),
        NodeCost(("Root", "Zip", "Map#1"), 3.0, 1, 0, None, 1.0),
    ]
    found = match_trace(costs, [TracedNode(("Root", "Zip", "Map"), 8.0, 1)])
    assert found.work_s == {("Root", "Zip", "Map"): 2.0, ("Root", "Zip", "Map#1"): 6.0}
    assert found.fits


def test_a_trace_of_another_pipeline_is_not_used() -> None:
    traced = (TracedNode(("Root", "Shuffle"), 5.0, 1),)
    measured = measurement(phase(), traced=traced)
    assert not match_trace(measured.phases[0].nodes, traced).fits
    assert all("trace" not in stage.method for stage in profile(measured).stages)


def traced_as(work_s: dict[str, float]) -> tuple[TracedNode, ...]:
    """A trace of the usual pipeline, in which a stage worked so long."""
    paths = dict(zip(JPEG, (cost.path for cost in nodes(JPEG, 320)[1:]), strict=False))
    return tuple(
        TracedNode(paths[name], seconds, 1, ((f"Op{name.title()}", 0.75 * seconds),))
        for name, seconds in work_s.items()
    )


def shares(measured: Measurement) -> dict[str, float]:
    stages = profile(measured).stages
    total = sum(stage.cpu_ms_per_example for stage in stages)
    return {stage.name: stage.cpu_ms_per_example / total for stage in stages}


def test_shares_are_those_of_the_trace_and_not_of_the_model() -> None:
    measured = measurement(phase(), traced=traced_as({"decode": 1.0, "resize": 3.0}))
    assert shares(replace(measured, traced=()))["decode"] > 0.7
    found = shares(measured)
    assert found["decode"] == pytest.approx(0.25)
    assert found["resize"] == pytest.approx(0.75)


def test_the_sum_stays_what_the_process_took() -> None:
    measured = measurement(phase(), traced=traced_as({"decode": 1.0, "resize": 3.0}))
    costs = [
        sum(stage.cpu_ms_per_example for stage in profile(each).stages)
        for each in (measured, replace(measured, traced=()))
    ]
    assert costs[0] == pytest.approx(costs[1])


def test_operations_are_named_with_their_share_of_the_stage() -> None:
    measured = measurement(phase(), traced=traced_as({"decode": 1.0, "resize": 3.0}))
    decode = next(stage for stage in profile(measured).stages if stage.name == "decode")
    (found,) = decode.operations
    assert (found.name, found.share_of_stage) == ("OpDecode", 0.75)


def test_a_pipeline_without_a_model_gets_its_stages_from_the_trace() -> None:
    without = replace(measurement(phase()), phases=(replace(phase(), nodes=()),))
    assert profile(without).stages == ()
    named = [s.name for s in profile(replace(without, traced=traced_as(JPEG))).stages]
    assert "decode" in named
    assert "resize" in named


def test_a_trace_file_that_cannot_be_read_is_a_note(tmp_path: Path) -> None:
    place = tmp_path / "vm.xplane.pb"
    place.write_bytes(b"nonsense")
    measured = measurement(phase(), deep=Deep(captures=1), trace_files=(str(place),))
    found = profile(read_host_traces(measured))
    assert any("No host trace" in note and "not a trace" in note for note in found.notes)


@pytest.fixture(scope="module")
def fused(tmp_path_factory: pytest.TempPathFactory) -> Profile:
    """A real pipeline, profiled deeply, whose last map TensorFlow fuses with the batch."""
    place = write_target(
        tmp_path_factory.mktemp("fused"),
        """
        def work(index):
            square = tf.random.stateless_uniform((600, 600), seed=tf.stack([index, index]))
            for _ in range(3):
                square = tf.linalg.matmul(square, square)
            return square[0]

        def make():
            return tf.data.Dataset.range(1 << 40).map(work, num_parallel_calls=2).batch(4)
        """,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tpuctl.profiling.profile.start_child", start_warm_child)
        return profile_target(place, seconds=1, deep=True)


@pytest.mark.tf
def test_the_operation_inside_a_fused_stage_is_named(fused: Profile) -> None:
    assert fused.deep
    assert fused.deep.missing is None
    work = next(stage for stage in fused.stages if stage.name.startswith("work"))
    assert work.operations[0].name == "MatMul", fused.deep
    # Whoever else is on this machine, in another test perhaps, decides which shares are the better.
    assert ("trace" in work.method) is not fused.deep.is_crowded
    assert bool(fused.notes) is fused.deep.is_crowded


@pytest.mark.tf
def test_what_the_trace_took_is_in_the_report(fused: Profile) -> None:
    assert fused.deep
    assert fused.deep.captures >= 2
    assert fused.deep.traced_bytes > 0
    assert fused.deep.overhead_fraction is not None
    assert fused.deep.linked_fraction is not None
