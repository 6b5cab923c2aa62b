"""docs/data.md: its commands and its code run, on photographs in a folder and in a bucket."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("google.cloud.tpu_v2", reason="google-cloud-tpu is not installed")

from benchmarks import presize_before_after
from tests import pages
from tests.conftest import Tpuctl
from tests.pictures import fill
from tests.warm_child import start_warm_child
from tpuctl.storage import open_storage

PAGE = (Path(__file__).parents[1] / "docs" / "data.md").read_text(encoding="utf-8")


@pytest.mark.tf
@pytest.mark.slow
def test_the_commands_and_the_code_of_the_page_run(
    practice: Any, tpuctl: Tpuctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tpuctl.profiling.profile.start_child", start_warm_child)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", practice({"buckets": {"bucket": {}}}).emulator.http)
    fill(tmp_path / "photos", 36, classes=2, width=64)
    bucket = open_storage("gs://bucket/photos")
    for path in (tmp_path / "photos").rglob("*.jpg"):
        bucket.write(path.relative_to(tmp_path / "photos").as_posix(), path.read_bytes())
    for name, text in re.findall(r"Save as `(\S+)`:\n\n```python\n(.*?)```", PAGE, re.DOTALL):
        Path(name).write_text(text, encoding="utf-8")
    for block in pages.executed("data", "sh"):
        for line in block.splitlines():
            program, *words = shlex.split(line, comments=True)
            assert program == "tpuctl"
            result = tpuctl(*words)
            assert result.exit_code == 0, (words, result.stdout)
    for code in pages.executed("data", "python"):
        exec(compile(code, "docs/data.md", "exec"), {})


def test_the_table_is_the_one_that_the_bench_prints() -> None:
    names = [f"presized, `{encode}`" for encode in presize_before_after.ENCODINGS]
    table = PAGE[PAGE.index(presize_before_after.HEAD[0]) :].split("\n\n")[0].splitlines()
    assert tuple(table[:2]) == presize_before_after.HEAD
    assert [line.split(" | ")[0].removeprefix("| ") for line in table[2:]] == [
        "images",
        *names,
    ]
