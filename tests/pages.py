"""The code blocks of the documentation, and which test executes each.

A block that no test executes says why in the line above, `<!-- not run: REASON -->`. Only reasons
in REASONS count. Outputs and files (`text`, `json`, `toml`, `yaml`) are not commands.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
COMMANDS = ("sh", "console", "python")
OUTPUTS = ("text", "json", "toml", "yaml")
REASONS = {
    "installs packages": "make smoke and make smoke-all install the wheel",
    "needs an account": "its emulated twin is executed on the same page or in the tutorial",
    "needs another program": "make test-clients or make test-hosted runs it",
    "needs other machines": "tests/test_remote_*.py run it on SSH servers of their own",
    "runs until Ctrl-C": "the tests of the command start and stop it",
    "general form": "stands for any name or script; the tests and the help of the command run it",
}
# The test that executes the blocks of a page.
EXECUTED_BY = {
    "test_tutorials.py": "choose-a-tpu cloud-tpus colab colab-and-kaggle compute-engine emulator"
    " gke how-detection-decides kaggle port-a-notebook tutorial workers",
    "test_docs_data.py": "data",
    "test_docs_profile.py": "profile",
    "test_docs_training.py": "notebooks training",
    "test_fit_docs.py": "fit",
    "test_lint_cli.py": "lint",
}
_MARK = re.compile(r"<!-- not run: (.+?) -->")


@dataclass(frozen=True)
class Block:
    """One block of a page; `name` is the file that the reader is told to save it as."""

    page: str
    line: int
    language: str
    text: str
    reason: str | None


def blocks(page: str) -> list[Block]:
    """Return the fenced blocks of a page."""
    return list(_read(page, (DOCS / f"{page}.md").read_text(encoding="utf-8")))


def _read(page: str, text: str) -> Iterator[Block]:
    lines = text.splitlines()
    start, above = None, ""
    for number, line in enumerate(lines):
        if line.startswith("```"):
            if start is None:
                start = number
                continue
            mark = _MARK.fullmatch(above)
            body = "\n".join(lines[start + 1 : number]) + "\n"
            language = lines[start].removeprefix("```").strip()
            yield Block(page, start + 1, language, body, mark[1] if mark else None)
            start, above = None, ""
        elif start is None and line.strip():
            above = line.strip()


def executed(page: str, language: str) -> list[str]:
    """Return the blocks of a language that have no mark, for the test that executes them."""
    return [each.text for each in blocks(page) if each.language == language and not each.reason]


def indented(page: str) -> list[tuple[int, str]]:
    """Return the lines of indented code, which has no language and cannot be checked."""
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    outside = re.sub(
        r"^```.*?^```$", lambda match: "\n" * match[0].count("\n"), text, flags=re.M | re.S
    )
    lines = outside.splitlines()
    return [
        (number + 1, line)
        for number, line in enumerate(lines)
        if line.startswith("    ")
        and number
        and (not lines[number - 1].strip() or lines[number - 1].startswith("    "))
    ]


def names() -> list[str]:
    """Return every page by its name without the suffix."""
    return sorted(path.relative_to(DOCS).with_suffix("").as_posix() for path in DOCS.rglob("*.md"))
