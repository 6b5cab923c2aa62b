"""`tpuctl profile trace` as a user meets it: reports, JSON, saved, compared, with limits."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests import contract, xspaces
from tests.test_profile_files import HOSTILE, Tags, plain
from tests.xspaces import Plane, pipeline, training
from tpuctl.errors import UsageError
from tpuctl.profiling.compare import FIGURES, check, diff, parse_limits
from tpuctl.profiling.models import Profile
from tpuctl.profiling.tpuprof import load, save
from tpuctl.profiling.trace.profile import profile_trace
from tpuctl.reporters import profile as report
from tpuctl.reporters import profile_html

SCENES: dict[str, list[Plane]] = {
    "transfer": training(8, wait_ms=40, wait="TransferToDevice"),
    "input": training(8, wait_ms=40) + pipeline(32),
    "host": pipeline(32),
    "device": training(8),
}


def write(folder: Path, planes: Sequence[Plane]) -> Path:
    place = folder / "plugins" / "profile" / "2026_11_21_12_00_00" / "host-a.xplane.pb"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(xspaces.space(planes))
    return place


@pytest.fixture
def read(tmp_path: Path):
    def write_and_read(scene: str) -> Profile:
        profile = profile_trace(write(tmp_path, SCENES[scene]))
        return replace(profile, target="logs", created="2026-11-21T00:00:00+00:00")

    return write_and_read


@pytest.mark.parametrize("scene", SCENES)
def test_the_report_of_a_trace(read, scene: str, golden: Any) -> None:
    golden(f"profile_trace_{scene}.txt", plain(report.render_profile(read(scene))))


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("width", [40, 60, 80])
def test_no_report_is_wider_than_the_terminal(read, scene: str, width: int) -> None:
    assert max(map(len, plain(report.render_profile(read(scene)), width).splitlines())) <= width


@pytest.mark.parametrize("scene", SCENES)
def test_a_trace_keeps_the_contract_of_a_profile(tmp_path: Path, tpuctl: Any, scene: str) -> None:
    write(tmp_path, SCENES[scene])
    document = tpuctl("profile", "trace", tmp_path, "--json").document
    assert contract.problems(document, "profile trace", contract.PROFILE) == []
    data = document["data"]
    assert data["kind"] == "trace"
    assert data["mxu_utilization"] is None
    assert data["vcpus"]["needed_to_saturate"] is None
    assert data["vcpus"]["why_null"]


@pytest.mark.parametrize("scene", SCENES)
def test_a_trace_is_saved_and_loaded_whole(read, tmp_path: Path, scene: str) -> None:
    profile = read(scene)
    save(profile, tmp_path / "a.tpuprof")
    assert load(tmp_path / "a.tpuprof") == profile


def test_trace_writes_a_profile_that_show_shows(tmp_path: Path, tpuctl: Any) -> None:
    place, saved = write(tmp_path, SCENES["transfer"]), tmp_path / "a.tpuprof"
    made = tpuctl("profile", "trace", place, "--out", saved, "--html", tmp_path / "a.html")
    shown = tpuctl("profile", "show", saved)
    assert made.exit_code == shown.exit_code == 0
    assert made.stdout == shown.stdout
    assert (tmp_path / "a.html").read_text().startswith("<!doctype html>")


def test_two_traces_are_compared_by_idle_time_and_steps(read) -> None:
    before, after = read("transfer"), read("device")
    rows = {row.name: row for row in diff(before, after).rows}
    assert rows["device idle"].before == pytest.approx(0.4, abs=0.01)
    assert rows["device idle"].better
    assert rows["device idle time"].after == pytest.approx(0.0, abs=0.01)
    assert rows["step, median"].after == pytest.approx(100)
    assert "MXU utilization" not in rows
    assert diff(before, after).warnings == ()


def test_csv_of_a_trace_is_its_idle_time_or_its_stages(read) -> None:
    header, row = report.profile_csv(read("transfer")).splitlines()
    assert header == "code,what,idle_s,share_of_idle,active_share"
    assert row.startswith("to_device,copying from the host to the device,0.3")
    assert report.profile_csv(read("host")).startswith("index,name,op")


@pytest.mark.parametrize("scene", SCENES)
def test_the_page_of_a_trace_is_safe_and_has_a_timeline(read, scene: str) -> None:
    page = profile_html.profile_page(replace(read(scene), target=HOSTILE))
    parsed = Tags()
    parsed.feed(page)
    assert parsed.tags.count("script") == 1
    assert parsed.links == parsed.handlers == []
    assert ("Timeline" in page) == (scene != "host")


def test_a_missing_trace_exits_1_and_says_how_to_take_one(tmp_path: Path, tpuctl: Any) -> None:
    result = tpuctl("profile", "trace", tmp_path)
    assert result.exit_code == 1
    assert f"No .xplane.pb file found in {tmp_path}" in result.stderr
    assert "jax.profiler.trace" in result.stderr


def test_a_damaged_trace_is_partial_and_warns(tmp_path: Path, tpuctl: Any) -> None:
    place = write(tmp_path, SCENES["transfer"])
    place.write_bytes(place.read_bytes()[:-200])
    document = tpuctl("profile", "trace", place, "--json").document
    assert document["status"] == "partial"
    assert any("bytes are missing" in warning for warning in document["warnings"])


@pytest.mark.parametrize(
    ("limit", "fails"),
    [
        ("idle>0.1", True),
        ("idle > 10 %", True),
        ("idle>=0.5", False),
        ("idle<0.5", True),
        ("mxu_idle<=10%", False),
        ("step_ms>99", True),
        ("step_ms>101", False),
    ],
)
def test_a_limit_decides_the_exit_code(
    tmp_path: Path, tpuctl: Any, limit: str, fails: bool
) -> None:
    place = write(tmp_path, SCENES["transfer"])
    result = tpuctl("profile", "trace", place, "--fail-if", limit)
    assert result.exit_code == int(fails)
    assert (limit in result.stderr) == fails
    assert "MXU idle 40%" in result.stdout


def test_a_figure_that_is_not_known_cannot_pass_a_limit(tmp_path: Path, tpuctl: Any) -> None:
    place = write(tmp_path, SCENES["transfer"])
    document = tpuctl("profile", "trace", place, "--fail-if", "mxu<0.4", "--json").document
    assert document["errors"][0]["code"] == "limit_passed"
    assert "unknown" in document["errors"][0]["message"]
    assert document["data"]["verdict"] == "transfer"


def test_a_limit_on_a_saved_profile_is_not_saved_with_it(read, tmp_path: Path) -> None:
    failed = check(read("transfer"), parse_limits(["idle>0.1", "idle>0.9"]))
    assert len(failed.failures) == 1
    save(failed, tmp_path / "a.tpuprof")
    assert load(tmp_path / "a.tpuprof").failures == ()


@pytest.mark.parametrize("text", ["", "idle", "idle>", ">0.1", "moon>0.1", "idle=0.1", "idle>-1"])
def test_what_is_no_limit_is_wrong_usage_and_names_the_figures(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_limits([text])
    assert all(name in (caught.value.hint or "") for name in FIGURES)


def test_a_wrong_limit_fails_before_anything_is_measured(tmp_path: Path, tpuctl: Any) -> None:
    result = tpuctl("profile", "run", tmp_path / "gone", "--fail-if", "nonsense")
    assert result.exit_code == 2
    assert "nonsense" in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("scene", SCENES)
def test_a_profile_is_drawn_as_a_picture(read, tmp_path: Path, tpuctl: Any, scene: str) -> None:
    image = pytest.importorskip("PIL.Image")
    save(read(scene), tmp_path / "a.tpuprof")
    assert (
        tpuctl("profile", "show", tmp_path / "a.tpuprof", "--png", tmp_path / "a.png").exit_code
        == 0
    )
    with image.open(tmp_path / "a.png") as picture:
        colours = {colour for _, colour in picture.convert("RGB").getcolors(1 << 20)}
        assert picture.size[0] == 1125
    assert (0x1F, 0x5F, 0xBF) in colours
