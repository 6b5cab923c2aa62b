"""Profiles on disk and on screen: written whole, read with care, compared, shown."""

import base64
import hashlib
import json
import os
import stat
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests import contract
from tests.pipeline_cases import HOST, JPEG, measurement, phase, profile, starving
from tests.test_pipeline_verdicts import CASES
from tpuctl.errors import InvalidInputError, NotFoundError, TargetError, WriteError
from tpuctl.profiling.case import IN_TRAINING, name_idle
from tpuctl.profiling.compare import diff
from tpuctl.profiling.device_step import measure_training_step
from tpuctl.profiling.models import Device, Input, Profile
from tpuctl.profiling.reference import reference_step_ms
from tpuctl.profiling.tpuprof import load, save
from tpuctl.progress import silent
from tpuctl.reporters import profile as report
from tpuctl.reporters import profile_html

HOSTILE = '<script>alert(1)</script>[red]&".jpg'


@pytest.fixture
def before() -> Profile:
    return profile(measurement(*starving()))


@pytest.fixture
def after() -> Profile:
    cheap = {**JPEG, "decode": 0.5, "resize": 0.0}
    return profile(
        measurement(
            phase(active_ms=cheap, examples_per_s=1500.0),
            phase(active_ms=cheap, examples_per_s=530.0, device_s=32 / 532.0, wait=0.001, own=0.4),
            kind="shards",
        )
    )


def plain(renderable: Any, width: int = 100) -> str:
    console = Console(width=width, no_color=True, highlight=False)
    with console.capture() as capture:
        console.print(renderable)
    return "\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n"


def test_what_was_saved_is_what_is_loaded(tmp_path: Path, before: Profile) -> None:
    save(before, tmp_path / "a.tpuprof")
    assert load(tmp_path / "a.tpuprof") == before


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda text: text[: len(text) // 2], "damaged or cut off"),
        (lambda text: "", "not a (tpuctl )?profile"),
        (lambda text: "\x00\x01\x02", "not a (tpuctl )?profile"),
        (lambda text: "[1, 2]", "not a (tpuctl )?profile"),
        (lambda text: '{"schema": "tpuctl/1"}', "not a (tpuctl )?profile"),
        (lambda text: text.replace("tpuctl.profile/1", "tpuctl.profile/7"), "version 7"),
        (lambda text: '{"schema": "tpuctl.profile/1"}', "damaged"),
        (lambda text: text.replace('"verdict": "vcpu"', '"verdict": "moon"'), "verdict"),
        (lambda text: text.replace('"batch_size": 32', '"batch_size": "32"'), "batch_size"),
        (lambda text: text.replace('"stages": [', '"stages": 3, "x": ['), "stages"),
        (lambda text: "[" * 100_000, "not a (tpuctl )?profile"),
    ],
)
def test_a_file_that_is_no_whole_profile_is_one_clear_error(
    tmp_path: Path, before: Profile, damage: Callable[[str], str], words: str
) -> None:
    place = tmp_path / "a.tpuprof"
    save(before, place)
    place.write_text(damage(place.read_text()))
    with pytest.raises(InvalidInputError, match=words):
        load(place)


def test_a_missing_profile_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="gone"):
        load(tmp_path / "gone.tpuprof")


def test_a_folder_is_no_profile(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError):
        load(tmp_path)


def test_a_profile_that_cannot_be_written_leaves_the_old_one(
    tmp_path: Path, before: Profile, after: Profile
) -> None:
    folder = tmp_path / "full"
    folder.mkdir()
    place = folder / "a.tpuprof"
    save(before, place)
    if os.geteuid() == 0:
        pytest.skip("root may write into a read-only folder")
    folder.chmod(stat.S_IREAD | stat.S_IEXEC)
    with pytest.raises(WriteError):
        save(after, place)
    assert load(place) == before


def test_a_later_version_may_add_keys(tmp_path: Path, before: Profile) -> None:
    place = tmp_path / "a.tpuprof"
    save(before, place)
    document = json.loads(place.read_text())
    document["profile"]["novelty"] = 1
    place.write_text(json.dumps(document))
    assert load(place) == before


def test_a_comparison_says_what_became_better(before: Profile, after: Profile) -> None:
    rows = {row.name: row for row in diff(before, after).rows}
    assert rows["examples/s"].better
    assert rows["examples/s"].ratio == pytest.approx(1500 / 266, rel=0.01)
    assert rows["MXU would be idle"].better
    assert rows["MXU would be idle"].after == pytest.approx(0.004, abs=0.01)
    back = {row.name: row for row in diff(after, before).rows}
    assert back["examples/s"].better is False
    assert {row.better for row in diff(before, before).rows} == {None}


def test_profiles_that_do_not_compare_are_warned_about(before: Profile) -> None:
    elsewhere = replace(HOST, name="elsewhere")
    other = replace(before, batch_size=64, host=elsewhere, device=None)
    warnings = " ".join(diff(before, other).warnings)
    assert all(word in warnings for word in ("batch size", "machine", "device step"))
    assert diff(before, before).warnings == ()


def test_the_report_of_a_starving_pipeline(before: Profile, golden: Any) -> None:
    golden("profile_vcpu.txt", plain(report.render_profile(before)))


def test_the_report_without_a_device(golden: Any) -> None:
    golden("profile_no_device.txt", plain(report.render_profile(profile(measurement(phase())))))


def test_the_comparison_as_text(before: Profile, after: Profile, golden: Any) -> None:
    golden("profile_diff.txt", plain(report.render_profile_diff(diff(before, after))))


@pytest.mark.parametrize("case", CASES)
def test_no_report_is_wider_than_the_terminal(case: str) -> None:
    text = report.render_profile(profile(CASES[case][1]))
    for width in (40, 60, 80, 100):
        assert max(map(len, plain(text, width).splitlines())) <= width


@pytest.mark.parametrize("width", [40, 48, 57, 58, 60, 71, 72, 77, 78, 100])
def test_no_column_title_or_figure_of_a_stage_is_cut(before: Profile, width: int) -> None:
    lines = plain(report.render_profile(before), width).splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("stage "))
    title, *rows = lines[start : lines.index("", start)]
    known = {"stage", *(title for title, *_ in report._COLUMNS)}
    assert set(title.split()) <= known
    assert [row.split()[0] for row in rows[:3]] == ["read", "decode", "resize"]
    assert "81.5%" in rows[1]
    assert len({row.split()[0] for row in rows}) == len(rows)
    assert "…" not in title + "".join(row for row in rows if width < 78)


def test_a_wide_terminal_shows_every_column(before: Profile) -> None:
    title = next(
        line for line in plain(report.render_profile(before)).splitlines() if "ms/ex" in line
    )
    assert title.split() == ["stage", "CPU", "ms/ex", "calls", "alone/s", "where"]


def test_stages_as_csv_have_a_header_and_a_line_each(before: Profile) -> None:
    header, *lines = report.profile_csv(before).splitlines()
    assert header.startswith("index,name,op,location,examples_per_s_alone")
    assert len(lines) == len(before.stages)


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.handlers: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href")]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]


def hostile_page(before: Profile) -> str:
    stage = replace(before.stages[0], name=HOSTILE, location=HOSTILE)
    hostile = replace(
        before,
        target=HOSTILE,
        headline=HOSTILE,
        evidence=(HOSTILE,),
        stages=(stage,),
        input=Input(1, 1, 1, ((HOSTILE, HOSTILE),), 1),
        notes=(HOSTILE,),
        advice=(replace(before.advice[0], what=HOSTILE, change=HOSTILE),),
    )
    return profile_html.profile_page(hostile)


def test_the_page_needs_nothing_else_and_runs_only_our_script(before: Profile) -> None:
    page = hostile_page(before)
    parsed = Tags()
    parsed.feed(page)
    place = Path(profile_html.__file__).parent
    script = "".join((place / name).read_text() for name in ("chartist.js", "report.js"))
    checksum = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert parsed.tags.count("script") == 1
    assert f"<script>{script}</script>" in page
    assert f"default-src 'none'; script-src 'sha256-{checksum}';" in page
    assert parsed.links == parsed.handlers == []
    assert "&lt;script&gt;" in page
    # The library names the standards of SVG and XML; nothing is fetched from there.
    assert "://" not in page.replace(script, "")


def test_the_page_check_would_notice_a_script() -> None:
    parsed = Tags()
    parsed.feed(f"<p>{HOSTILE}<img src=x onerror=alert(1)>")
    assert "script" in parsed.tags
    assert parsed.links == ["x"]
    assert parsed.handlers == ["onerror"]


def test_a_hostile_name_cannot_style_the_terminal(before: Profile) -> None:
    assert "[red]" in plain(
        report.render_profile(replace(before, target=HOSTILE, evidence=(HOSTILE,)))
    )


def test_show_prints_json_that_keeps_the_contract(
    tmp_path: Path, before: Profile, tpuctl: Any
) -> None:
    save(before, tmp_path / "a.tpuprof")
    document = tpuctl("profile", "show", tmp_path / "a.tpuprof", "--json").document
    assert contract.problems(document, "profile show", contract.PROFILE) == []
    assert document["data"]["mxu_utilization"] is None


def test_show_writes_the_page(tmp_path: Path, before: Profile, tpuctl: Any) -> None:
    save(before, tmp_path / "a.tpuprof")
    result = tpuctl("profile", "show", tmp_path / "a.tpuprof", "--html", tmp_path / "new/a.html")
    assert result.exit_code == 0
    assert "Written" not in result.stdout
    assert (tmp_path / "new" / "a.html").read_text().startswith("<!doctype html>")


def test_diff_prints_json(tmp_path: Path, before: Profile, after: Profile, tpuctl: Any) -> None:
    save(before, tmp_path / "a.tpuprof")
    save(after, tmp_path / "b.tpuprof")
    result = tpuctl("profile", "diff", tmp_path / "a.tpuprof", tmp_path / "b.tpuprof", "--json")
    assert result.exit_code == 0
    assert [row["name"] for row in result.data["rows"]][:2] == ["examples/s", "CPU per example"]


def test_a_damaged_profile_exits_1_and_names_the_file(tmp_path: Path, tpuctl: Any) -> None:
    (tmp_path / "a.tpuprof").write_text("no")
    result = tpuctl("profile", "show", tmp_path / "a.tpuprof")
    assert result.exit_code == 1
    assert "a.tpuprof" in result.stderr
    assert "→" in result.stderr


def test_the_reference_step_scales_with_the_batch_and_names_its_source() -> None:
    step_ms, sentence = reference_step_ms(512)
    assert step_ms == pytest.approx(156.9)
    assert "v2-8" in sentence
    assert "tensorflow/profiler" in sentence


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--device-step-ms", "5", "--train"), 2),
        (("--batch-size", "0"), 2),
        (("--device-step-ms", "-1"), 2),
        (("--device-step-ms", "0"), 2),
        (("--device-step-ms", "nan"), 2),
        (("--device-step-ms", "inf"), 2),
        (("--seconds", "nan"), 2),
        (("--seconds", "inf"), 2),
        (("--nonsense",), 2),
    ],
)
def test_wrong_options_fail_before_anything_is_measured(
    tmp_path: Path, tpuctl: Any, words: tuple[str, ...], code: int
) -> None:
    result = tpuctl("profile", "run", tmp_path, *words)
    assert result.exit_code == code
    assert result.stderr.startswith("Error: ")
    assert words[0] in result.stderr
    assert "→" in result.stderr


@pytest.mark.parametrize("flag", ["--out", "--html"])
@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("folder", "it is a folder"),
        ("file/x.tpuprof", "a file, not a folder"),
        ("file/deep/x.tpuprof", "a file, not a folder"),
        ("pipe", "a device or a pipe"),
        ("a" * 300, "too long"),
    ],
)
def test_a_place_that_cannot_be_written_fails_before_anything_is_measured(
    tmp_path: Path, tpuctl: Any, flag: str, place: str, reason: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    result = tpuctl("profile", "run", tmp_path / "gone", flag, tmp_path / place)
    assert result.exit_code == 1
    assert f"Could not write {tmp_path / place}: " in result.stderr
    assert reason in result.stderr


def test_a_place_that_can_be_written_is_left_as_it_was(tmp_path: Path, tpuctl: Any) -> None:
    (tmp_path / "old.tpuprof").write_text("old")
    for place in ("old.tpuprof", "new/x.tpuprof"):
        result = tpuctl("profile", "run", tmp_path / "gone", "--out", tmp_path / place)
        assert "to profile" in result.stderr
    assert (tmp_path / "old.tpuprof").read_text() == "old"
    assert list((tmp_path / "new").iterdir()) == []


def test_a_training_step_is_measured_with_the_template(tmp_path: Path) -> None:
    template = tmp_path / "images.py"
    template.write_text(
        "import json, sys, pathlib\n"
        "given = dict(zip(sys.argv[1::2], sys.argv[2::2]))\n"
        "assert given['--data'] == 'fake' and given['--batch-size'] == '16', given\n"
        "result = {'step_ms': {'mean': 9.0, 'p50': 7.5}}\n"
        "pathlib.Path(given['--out'], 'result.json').write_text(json.dumps(result))\n"
    )
    device = measure_training_step(template, batch_size=16, on_progress=silent)
    assert device.step_ms == 7.5
    assert "images.py" in device.source


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("raise SystemExit('no accelerator here')", "no accelerator here"),
        ("pass", "left no step time"),
        (
            "import sys, pathlib; out = sys.argv[sys.argv.index('--out') + 1];"
            "pathlib.Path(out, 'result.json').write_text('{\"step_ms\": {\"p50\": 0}}')",
            "a step of 0.0 ms",
        ),
    ],
)
def test_a_template_that_fails_is_one_clear_error(tmp_path: Path, script: str, words: str) -> None:
    template = tmp_path / "images.py"
    template.write_text(script)
    with pytest.raises(TargetError, match=words) as caught:
        measure_training_step(template, batch_size=16, on_progress=silent)
    assert "images.py" in str(caught.value)


@pytest.mark.parametrize(
    ("source", "has_tpu", "name"),
    [
        ("given", False, "MXU would be idle"),
        (IN_TRAINING, False, "device idle"),
        (IN_TRAINING, True, "MXU idle"),
    ],
)
def test_the_mxu_is_named_only_where_there_is_one_or_would_be(
    source: str, has_tpu: bool, name: str
) -> None:
    assert name_idle(Device(1.0, source), replace(HOST, has_tpu=has_tpu)) == name
