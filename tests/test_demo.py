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

import tpuctl as library
from tests import contract
from tests.conftest import Tpuctl
from tests.training_runs import warm_launch
from tests.warm_child import start_warm_child
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


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda folder: folder.rmdir(), "not exist"),
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


# A fifth of the usual time is enough for the differences that are checked.
SHORT = """
from tpuctl.profiling import profile
from tpuctl.__main__ import main
profile.DEFAULT_SECONDS = 2.0
main()
"""


def test_an_interrupted_day_leaves_no_report_and_finishes_with_every_promise(
    photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flat, out = tmp_path / "photographs", tmp_path / "day"
    flat.mkdir()
    for path in photographs.rglob("*.jpg"):
        shutil.copy(path, flat)
    (flat / "broken & <img src=x>.jpg").write_bytes(b"")
    words = ["demo", "--images", str(flat), "--out", str(out)]
    with subprocess.Popen(
        [sys.executable, "-c", SHORT, *words],
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
    assert str(flat) in opening[0]
    assert day.returncode == 130
    assert "Traceback" not in stderr
    assert "Interrupted" in stderr
    assert not (out / "report.html").exists()

    # The command does no more than this.
    monkeypatch.setattr("tpuctl.profiling.profile.DEFAULT_SECONDS", 2.0)
    monkeypatch.setattr("tpuctl.profiling.profile.start_child", start_warm_child)
    warm_launch(monkeypatch, "tensorflow")
    finished = library.demo.run(flat, out, log=2)
    document = json.loads(envelope.success("demo", finished))
    data = document["data"]
    assert contract.problems(document, "demo", DAY) == []
    assert document["status"] == "attention"
    assert [bad["reason"] for bad in data["presize"]["quarantined"]] == ["empty"]
    assert (data["presize"]["images"], data["presize"]["written"]) == (9, 0)
    assert data["presize"]["resumed"] is True
    assert data["launch"]["result"]["task"] == "rotation"
    assert data["launch"]["result"]["devices"]
    before, after = data["before"], data["after"]
    assert 0 <= after["mxu_idle_fraction"] < before["mxu_idle_fraction"] <= 1
    assert data["next_command"].startswith(f"tpuctl data presize {flat} ")
    assert json.loads((out / "report.json").read_text()) == document
    page = (out / "report.html").read_text()
    assert "Next, on your data." in page
    assert "<img src=x" not in page
    # The chart library names the standards of SVG and XML; nothing is fetched from there.
    assert "://" not in page.partition("<script>")[0]
    assert len(page) < 1_000_000
    assert str(out) not in page
    assert "Loss" in page
    for figure in (before, after):
        assert f"{figure['mxu_idle_fraction'] * 100:.3g} %" in page
