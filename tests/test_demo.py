"""The whole day, for real, on a handful of photographs."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

import tpuctl as library
from tests import contract
from tests.conftest import Result, Tpuctl
from tpuctl.cli.app import app
from tpuctl.demo.demo import assemble_photographs
from tpuctl.reporters import envelope

NEEDS = ("cv2", "skimage", "tensorflow")
pytestmark = [
    pytest.mark.tf,
    pytest.mark.slow,
    # Looked for, not imported: every run collects this module, few run it.
    pytest.mark.skipif(not all(map(find_spec, NEEDS)), reason=f"needs {', '.join(NEEDS)}"),
]

DAY = {
    "doctor": contract.DOCTOR,
    "before": contract.PROFILE,
    "presize": contract.PRESIZE,
    "after": contract.PROFILE,
    "launch": contract.PLAN,
    **contract.keys("images out verify show sheet diff seconds report_html report_json"),
}


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Eight photographs in eight class folders."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TPUCTL_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield assemble_photographs(1)


@pytest.fixture(scope="module")
def flat_day(photographs: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    """One run of the command on flat photographs and a broken one."""
    place = tmp_path_factory.mktemp("flat")
    flat, out = place / "photographs", place / "day"
    flat.mkdir()
    for path in photographs.rglob("*.jpg"):
        shutil.copy(path, flat)
    (flat / "broken & <img src=x>.jpg").write_bytes(b"")
    done = CliRunner().invoke(app, ["demo", "--images", str(flat), "--out", str(out), "--json"])
    return Result(done.exit_code, done.stdout, done.stderr), out


def test_a_day_on_eight_flat_photographs_keeps_every_promise(
    flat_day: tuple[Result, Path],
) -> None:
    result, out = flat_day
    assert contract.problems(result.document, "demo", DAY) == []
    assert result.document["status"] == "attention"
    assert [bad["reason"] for bad in result.data["presize"]["quarantined"]] == ["empty"]
    assert result.data["presize"]["images"] == 9
    assert result.data["launch"]["result"]["task"] == "rotation"
    assert result.data["launch"]["result"]["devices"]
    before, after = result.data["before"], result.data["after"]
    assert 0 <= after["mxu_idle_fraction"] < before["mxu_idle_fraction"] <= 1
    assert json.loads((out / "report.json").read_text()) == result.document
    page = (out / "report.html").read_text()
    assert "<img src=x" not in page
    # The chart library names the standards of SVG and XML; nothing is fetched from there.
    assert "://" not in page.partition("<script>")[0]
    assert len(page) < 1_000_000
    assert str(out) not in page
    assert "Loss" in page
    for figure in (before, after):
        assert f"{figure['mxu_idle_fraction'] * 100:.3g} %" in page


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda folder: folder.rmdir(), "no folder|not exist|There is no"),
        (lambda folder: None, "no pictures|no images|No photographs|no photographs"),
        (lambda folder: (folder / "a.jpg").write_bytes(b""), "."),
    ],
)
def test_a_useless_folder_is_one_error_before_any_work(
    tpuctl: Tpuctl, tmp_path: Path, prepare: Callable[[Path], object], message: str
) -> None:
    folder = tmp_path / "photographs"
    folder.mkdir()
    prepare(folder)
    result = tpuctl("demo", "--images", str(folder), "--out", str(tmp_path / "out"), "--json")
    assert result.exit_code == 1
    (error,) = result.document["errors"]
    assert str(folder) in error["message"]
    assert not (tmp_path / "out" / "shards").exists()
    assert error["hint"]


def test_an_interrupted_day_leaves_no_report_and_python_finishes_it_as_the_command_would(
    photographs: Path, tmp_path: Path, flat_day: tuple[Result, Path]
) -> None:
    out = tmp_path / "day"
    command = [sys.executable, "-m", "tpuctl", "demo", "--images", str(photographs)]
    command += ["--out", str(out)]
    with subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as day:
        assert day.stderr is not None
        opening: list[str] = []
        for line in day.stderr:
            opening += [line] if line.startswith("Profiles ") else []
            if line.startswith("[4]"):
                os.killpg(day.pid, signal.SIGINT)
                break
        stderr = day.stderr.read()
    assert len(opening) == 1
    assert str(photographs) in opening[0]
    assert day.returncode == 130
    assert "Traceback" not in stderr
    assert "Interrupted" in stderr
    assert not (out / "report.html").exists()
    document = json.loads(envelope.success("demo", library.demo.run(photographs, out, log=2)))
    assert contract.problems(document, "demo", DAY) == []
    only_there = ["data.show.quarantined.empty"]  # The broken photograph of the other day.
    assert contract.other_keys(flat_day[0].data, document["data"]) == only_there
    next_command = document["data"]["next_command"]
    assert next_command.startswith(f"tpuctl data presize {photographs} ")
    assert document["data"]["presize"]["resumed"] is True
    assert document["data"]["presize"]["written"] == 0
    assert "Next, on your data." in (out / "report.html").read_text()
