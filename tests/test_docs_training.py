"""docs/training.md: its commands and its code run."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests import pages
from tpuctl.training.catalog import list_templates

PAGE = (Path(__file__).parents[1] / "docs" / "training.md").read_text(encoding="utf-8")


COMMANDS = [line for block in pages.executed("training", "sh") for line in block.splitlines()]


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_of_the_page_runs(line: str, tpuctl) -> None:
    program, *arguments = shlex.split(line)
    assert program == "tpuctl"
    assert tpuctl(*arguments).exit_code == 0


def test_the_page_names_every_template() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \|", PAGE, re.MULTILINE)
    assert sorted(rows) == [template.name for template in list_templates().templates]


@pytest.mark.tf
@pytest.mark.slow
@pytest.mark.parametrize("name", ["training", "notebooks"])
def test_the_code_of_the_page_runs(name: str, tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    for code in pages.executed(name, "python"):
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
