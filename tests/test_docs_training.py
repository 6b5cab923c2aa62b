"""docs/training.md: its commands and its code run."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tpuctl.training.catalog import list_templates

PAGE = (Path(__file__).parents[1] / "docs" / "training.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


COMMANDS = [line for block in blocks("sh") for line in block.splitlines()]


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
def test_the_code_of_the_page_runs() -> None:
    (code,) = blocks("python")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
