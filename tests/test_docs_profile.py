"""docs/profile.md: its commands and its code run, and it names every verdict."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from tests import pages
from tests.conftest import Tpuctl
from tests.warm_child import start_warm_child
from tpuctl.profiling.models import Verdict

PAGE = (Path(__file__).parents[1] / "docs" / "profile.md").read_text(encoding="utf-8")


@pytest.mark.tf
@pytest.mark.slow
def test_the_commands_of_the_page_run(
    tpuctl: Tpuctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tpuctl.profiling.profile.start_child", start_warm_child)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    Path("input.py").write_text(pages.executed("profile", "python")[0], encoding="utf-8")
    program = "from input import make_dataset\nfor batch in make_dataset().take(12): pass\n"
    Path("train.py").write_text(program, encoding="utf-8")
    for line in [line for block in pages.executed("profile", "sh") for line in block.splitlines()]:
        tool, *arguments = shlex.split(line, comments=True)
        assert tool == "tpuctl"
        assert tpuctl(*arguments).exit_code == 0, line
    assert Path("before.html").exists()


@pytest.mark.slow
def test_the_code_of_the_page_runs(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(pages.executed("profile", "python")[1], encoding="utf-8")
    done = subprocess.run(
        [sys.executable, program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    # Which verdict follows depends on what else runs here.
    assert re.fullmatch(r"Device idle \d+%\. [A-Z].+\.\n", done.stdout)


def test_the_page_names_every_verdict() -> None:
    assert re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE) == list(get_args(Verdict))
