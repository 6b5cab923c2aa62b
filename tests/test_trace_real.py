"""Profiles of real accelerators, which lie beside the repository and not in it."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests import contract
from tpuctl.errors import InvalidInputError
from tpuctl.profiling.compare import diff
from tpuctl.profiling.models import Profile
from tpuctl.profiling.tpuprof import load, save
from tpuctl.profiling.trace.profile import profile_trace

SHARED = Path(os.environ.get("TPUCTL_SHARED") or Path(__file__).parents[2] / "shared")
TPU_V6E = "tpu_inference_2.xplane.pb"


def real(name: str) -> Path:
    place = SHARED / "xplane" / name
    if not place.exists():
        pytest.skip(f"{name} is not in {SHARED / 'xplane'}; TPUCTL_SHARED says where it is")
    return place


@pytest.fixture(scope="module")
def v6e() -> Profile:
    return profile_trace(real(TPU_V6E))


def test_the_chips_were_busy_85_percent_of_the_common_window(v6e: Profile) -> None:
    assert v6e.trace
    assert v6e.device_idle_fraction is not None
    assert 1 - v6e.device_idle_fraction == pytest.approx(0.852, abs=0.01)
    assert v6e.window.end_s - v6e.window.start_s == pytest.approx(92.5, abs=0.1)
    assert [each.name for each in v6e.trace.chips] == ["TPU:0", "TPU:1", "TPU:2", "TPU:3"]
    assert v6e.trace.accelerator == "TPU v6 Lite"


def test_its_idle_time_is_four_gaps_and_at_least_90_percent_assigned(v6e: Profile) -> None:
    assert v6e.trace
    assert v6e.trace.assigned_idle_fraction is not None
    long = [gap.end_s - gap.start_s for gap in v6e.trace.gaps if gap.end_s - gap.start_s > 1]
    assert sorted(long) == pytest.approx([2.05, 2.74, 3.35, 5.55], abs=0.01)
    assert v6e.trace.assigned_idle_fraction >= 0.9
    active = {each.code: each.active_share for each in v6e.trace.idle}
    assert active["from_device"] == pytest.approx(0.43, abs=0.01)
    assert active["dma_map"] == pytest.approx(0.35, abs=0.01)
    assert active["memory"] == pytest.approx(0.16, abs=0.01)
    assert active["none"] == pytest.approx(0.42, abs=0.01)


def test_all_of_it_lies_before_the_steps_so_that_the_verdict_is_startup(v6e: Profile) -> None:
    assert v6e.verdict == "startup"
    assert v6e.trace
    assert v6e.trace.steps.device_idle_fraction == pytest.approx(0, abs=1e-3)
    assert v6e.step_ms
    assert v6e.step_ms.p50 == pytest.approx(784, abs=1)


def test_a_counter_that_was_not_collected_is_null_and_bounded(v6e: Profile) -> None:
    assert v6e.mxu_utilization is None
    assert v6e.trace
    assert v6e.trace.flops_of_peak == pytest.approx(4.8e-6, rel=0.05)
    assert v6e.input_wait_fraction is None


def test_a_real_trace_is_saved_shown_and_compared(
    v6e: Profile, tmp_path: Path, tpuctl: Any
) -> None:
    save(v6e, tmp_path / "a.tpuprof")
    assert load(tmp_path / "a.tpuprof") == v6e
    result = tpuctl("profile", "show", tmp_path / "a.tpuprof", "--json")
    assert contract.problems(result.document, "profile show", contract.PROFILE) == []
    rows = {row.name: row for row in diff(v6e, v6e).rows}
    assert rows["device idle"].before == v6e.device_idle_fraction


@pytest.mark.parametrize(
    "name", ["gpu_input_bound.input_pipeline.pb", "cloud_tpu.overview_page.json"]
)
def test_an_analysis_is_not_taken_for_a_trace(name: str) -> None:
    with pytest.raises(InvalidInputError, match="is not a trace"):
        profile_trace(real(name))


@pytest.mark.parametrize("at", [0.02, 0.3, 0.6, 0.9, 0.999])
def test_a_real_trace_that_was_cut_off_is_read_as_far_as_it_goes(tmp_path: Path, at: float) -> None:
    whole = real(TPU_V6E).read_bytes()
    place = tmp_path / "cut.xplane.pb"
    place.write_bytes(whole[: int(len(whole) * at)])
    profile = profile_trace(place)
    assert profile.status == "partial"
    assert profile.trace
    assert profile.trace.chips


def test_a_real_trace_that_went_through_text_is_one_clear_error(tmp_path: Path) -> None:
    place = tmp_path / "text.xplane.pb"
    place.write_bytes(real(TPU_V6E).read_bytes().decode("utf-8", "replace").encode())
    with pytest.raises(InvalidInputError, match="U\\+FFFD"):
        profile_trace(place)
