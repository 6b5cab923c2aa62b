"""docs/fit.md shows what its commands print."""

import re
from pathlib import Path

import pytest

from tests.fit_cases import compiles

pytestmark = compiles

PAGE = Path(__file__).parents[1] / "docs" / "fit.md"
COMMAND = re.compile(r"```console\n\$ tpuctl (.*)\n((?:.*\n)*?)```")
# How long it took is no promise.
TIMING = re.compile(r"^compiled .*$", re.MULTILINE)


def test_the_page_shows_what_its_commands_print(
    tpuctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name, program in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", page, re.DOTALL):
        (tmp_path / name).write_text(program, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "90")
    commands = COMMAND.findall(page)
    assert len(commands) == 4
    for words, shown in commands:
        result = tpuctl(*words.split())
        assert result.exit_code == ("does not fit a " in result.stdout)
        printed = "\n".join(line.rstrip() for line in result.stdout.splitlines()) + "\n"
        if request.config.getoption("--update-golden"):
            page = page.replace(f"$ tpuctl {words}\n{shown}", f"$ tpuctl {words}\n{printed}")
            PAGE.write_text(page, encoding="utf-8")
        else:
            assert TIMING.sub("", printed) == TIMING.sub("", shown)
