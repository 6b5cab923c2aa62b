import re
import shlex
from collections import Counter
from importlib import metadata
from pathlib import Path

import pytest

import tpuctl
from benchmarks import side_attribution, side_by_side, side_detection
from tests import pages
from tests.test_cli import parse
from tpuctl.cli.contents import CONTENTS

ROOT = Path(__file__).parents[1]


def test_the_readme_lists_every_command_as_its_help_does() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `tpuctl (\w+)` \| (.*) \|$", readme, re.MULTILINE)
    assert rows == [(entry.name, entry.help) for entry in CONTENTS]


def test_the_newest_version_in_the_changelog_is_the_packages() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## \[(.+?)\]", changelog, re.MULTILINE)
    assert versions[:2] == ["Unreleased", tpuctl.__version__]


def test_a_release_is_read_in_about_a_minute() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    for release in changelog.split("\n## ")[1:]:
        assert len(release.split()) <= 400, release.partition("\n")[0]


def test_the_readme_begins_with_a_picture_three_lines_and_two_commands() -> None:
    fold = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n---\n")[0]
    assert [line for line in fold.splitlines() if line.startswith("#")] == ["# tpuctl"]
    assert fold.count("![") == 1
    assert len(re.findall(r"^- ", fold, re.MULTILINE)) == 3
    (commands,) = re.findall(r"```sh\n(.*?)```", fold, re.DOTALL)
    assert commands.splitlines() == ["pip install tpuctl", "tpuctl doctor"]
    rest = re.sub(r"^(#|!|- |```|pip|tpuctl).*$", "", fold, flags=re.MULTILINE)
    assert rest.strip() == ""


def test_every_link_in_the_documents_leads_somewhere() -> None:
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    links = [
        (path, target)
        for path in documents
        for target in re.findall(r"\]\(([^)#]+)", path.read_text(encoding="utf-8"))
        if "://" not in target
    ]
    assert links
    # Generated pages exist in the site; building it checks their links.
    made = ("reference/", "failures/", "rules/")
    lost = [link for link in links if not (link[0].parent / link[1]).exists()]
    assert [link for link in lost if not link[1].startswith(made)] == []


def test_every_block_of_commands_is_executed_or_says_why_not() -> None:
    by_page = {page: test for test, names in pages.EXECUTED_BY.items() for page in names.split()}
    for test, names in pages.EXECUTED_BY.items():
        source = (ROOT / "tests" / test).read_text(encoding="utf-8")
        assert all(
            f'"{name}"' in source or f"{name}.md" in source or f'"{name}.md"' in source
            for name in names.split()
        ), test
    marked: Counter[str] = Counter()
    for page in pages.names():
        assert pages.indented(page) == [], f"{page}: use a fence, so that the block has a language"
        for block in pages.blocks(page):
            where = f"{page}.md:{block.line}"
            assert block.language in pages.COMMANDS + pages.OUTPUTS, where
            if block.reason:
                assert block.reason in pages.REASONS, where
                marked[block.reason] += 1
            elif block.language in pages.COMMANDS:
                assert page in by_page, f"{where}: no test executes it"
    # Each new mark is a promise less: raise these with a reason.
    assert marked == {
        "installs packages": 9,
        "needs an account": 3,
        "needs another program": 5,
        "needs other machines": 3,
        "runs until Ctrl-C": 1,
        "general form": 1,
    }


def test_commands_that_are_not_run_parse() -> None:
    marked = [each for page in pages.names() for each in pages.blocks(page) if each.reason]
    lines = [
        line.removeprefix("$ ")
        for block in marked
        if block.language != "python"
        for line in block.text.splitlines()
    ]
    commands = [shlex.split(line, comments=True) for line in lines if line.startswith("tpuctl ")]
    assert len(commands) > 10
    for words in commands:
        parse(words[1:])


def test_every_extra_that_is_named_anywhere_exists() -> None:
    known = set(metadata.metadata("tpuctl").get_all("Provides-Extra") or ())
    places = [
        path for folder in ("docs", "tpuctl", "templates") for path in (ROOT / folder).rglob("*")
    ]
    read = [
        *ROOT.glob("*.md"),
        *(path for path in places if path.suffix in {".md", ".ipynb", ".py"}),
    ]
    named = {
        (path.name, extra)
        for path in read
        for extras in re.findall(r"tpuctl\[([a-z,]+)\]", path.read_text(encoding="utf-8"))
        for extra in extras.split(",")
    }
    assert {extra for _, extra in named} >= {"gcp", "tf", "aot"}
    assert [each for each in sorted(named) if each[1] not in known] == []


def test_a_block_without_a_fence_or_with_an_unknown_mark_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "DOCS", tmp_path)
    (tmp_path / "a.md").write_text(
        "# A\n\n    tpuctl list\n\n<!-- not run: lazy -->\n```sh\ntpuctl\n```\n\n"
        "```python\n1\n```\n"
    )
    assert pages.indented("a") == [(3, "    tpuctl list")]
    assert [(each.language, each.reason) for each in pages.blocks("a")] == [
        ("sh", "lazy"),
        ("python", None),
    ]
    assert pages.executed("a", "python") == ["1\n"]
    assert pages.executed("a", "sh") == []


def test_every_module_on_the_map_exists() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    folders = [ROOT, ROOT / "tpuctl", *filter(Path.is_dir, (ROOT / "tpuctl").rglob("*"))]
    names = re.findall(r"`([\w/]+(?:\.py|/))`", page)
    assert len(names) > 40
    # After its first mention with a folder, a module is named alone.
    assert [name for name in names if not any((at / name).exists() for at in folders)] == []
    packages = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (.*?) \|", page, re.MULTILINE))))
    assert packages == {
        path.name for path in (ROOT / "tpuctl").iterdir() if (path / "__init__.py").is_file()
    }


def test_the_table_of_peers_is_the_one_that_the_bench_writes(tmp_path: Path) -> None:
    page = pages.DOCS / "peers.md"
    text = page.read_text(encoding="utf-8")
    parts = dict(re.findall(r"<!-- measured: ([\w-]+) -->\n(.*?)<!-- end -->", text, re.DOTALL))
    assert set(parts) == set(side_by_side.PARTS)
    heads = {"detection": side_detection.HEAD, "attribution": side_attribution.HEAD}
    measured = r"\nMeasured on \d{4}-\d\d-\d\d: .* vCPUs, Python [\d.]+, (quiet|busy)"
    for part, body in parts.items():
        if not body.startswith("\nNot measured: on 2026-"):
            assert re.match(measured, body), part
            assert "\n".join(heads.get(part, side_by_side.HEAD)) in body
    copy = tmp_path / "peers.md"
    copy.write_text(text, encoding="utf-8")
    side_by_side.write(copy, "detection", ["| one | row |"])
    written = copy.read_text(encoding="utf-8")
    assert "| one | row |" in written
    assert "\n".join(side_detection.HEAD) not in written
    assert parts["reading"] in written


def test_the_tests_of_the_attacks_are_there() -> None:
    page = (ROOT / "docs/security.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| .+ \| `(test_\w+\.py)::(.*) \|$", page, re.MULTILINE)
    assert len(rows) > 20
    for file, names in rows:
        tests = (ROOT / "tests" / file).read_text(encoding="utf-8")
        missing = [name for name in re.findall(r"test_\w+", names) if f"def {name}(" not in tests]
        assert missing == [], file
