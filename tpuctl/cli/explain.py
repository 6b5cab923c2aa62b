"""`tpuctl explain`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from tpuctl.cli import output
from tpuctl.diagnosis.explain import explain as explain_text
from tpuctl.errors import UsageError
from tpuctl.reporters import explain as report

app = typer.Typer(add_completion=False)

Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="[TEXT...]", help="An error, a code, or a log file; else stdin."),
]


@app.command()
def explain(words: Words = None) -> None:
    """Find an error, or everything a log shows, in the catalogue of failures."""
    output.show(explain_text(_given(words or [])), report.text)


def _given(words: list[str]) -> str:
    """The text of the arguments, of the file that they name, or of standard input."""
    if len(words) == 1 and _is_file(words[0]):
        return Path(words[0]).read_text(encoding="utf-8", errors="replace")
    text = " ".join(words) or _piped()
    if not text.strip():
        raise UsageError(
            "There is no text to explain.",
            hint="Pass the error, or pipe a log: python train.py 2>&1 | tpuctl explain",
        )
    return text


def _piped() -> str:
    if sys.stdin is None or sys.stdin.isatty():
        return ""
    return sys.stdin.buffer.read().decode(errors="replace")


def _is_file(word: str) -> bool:
    # A long error message is no path, and asking for one of that length raises.
    return len(word) < 256 and "\n" not in word and "\0" not in word and Path(word).is_file()
