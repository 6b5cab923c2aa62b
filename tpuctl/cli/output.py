"""What a command says: one result on stdout, everything else on stderr."""

import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import typer

from tpuctl.cli.contents import CONTENTS
from tpuctl.errors import UsageError, WriteError
from tpuctl.outcome import Outcome
from tpuctl.reporters import envelope

STDERR = 2
REPORT_COLUMNS = 100
_COMMON_FLAGS = {"--json", "-v", "--verbose", "--debug"}

_RESUMES = "The same command again goes on from what is complete."
_FOLLOWS = "What was asked for goes on without us; the same command again follows it."
_AFTER_INTERRUPTION = {
    "demo": _RESUMES,
    "data presize": _RESUMES,
    "data serve": "The service has ended.",
    "delete": _FOLLOWS,
    "gc": _FOLLOWS,
    "wait": _FOLLOWS,
    "logs": "The job goes on; tpuctl stop ends it.",
    "watch": "The job goes on, and nobody looks after it; the same command again does.",
}


@dataclass
class _Mode:
    command: str = "tpuctl"
    as_json: bool = False
    verbose: bool = False
    debug: bool = False
    stdout_is_lost: bool = False


_mode = _Mode()


def prepare(arguments: list[str]) -> None:
    """Read how to speak from the arguments, before anything can go wrong with them."""
    ours = arguments[: arguments.index("--")] if "--" in arguments else arguments
    _mode.stdout_is_lost = False
    _mode.command = _command_words(ours)
    _mode.as_json = "--json" in ours
    _mode.verbose = "-v" in ours or "--verbose" in ours
    _mode.debug = "--debug" in ours


def as_json() -> bool:
    """Whether stdout belongs to one JSON document."""
    return _mode.as_json


def show(result: Outcome, text: Callable[[Any], Any]) -> None:
    """Print a command's result and leave with its exit code.

    `text` turns the result into something rich can print; it is not called for `--json`.
    """
    if _mode.as_json:
        typer.echo(envelope.success(_mode.command, result))
    else:
        _print(text(result))
        for warning in result.warnings:
            note(f"Warning: {warning}")
        for failure in result.failures:
            _note_error(str(failure), failure.hint)
    if _mode.verbose:
        for reason in result.reasons:
            note(f"why: {reason}")
    if result.exit_code:
        raise typer.Exit(result.exit_code)


def _print(report: Any) -> None:
    """Print plain text as it is, so that it can be pasted; let rich lay out the rest."""
    if report is None:
        return
    if isinstance(report, str):
        typer.echo(report)
    else:
        from rich.console import Console

        # A command or a snippet may be longer than a line: it is to be copied, so never cut.
        Console(highlight=False, width=_width()).print(report, crop=False)


def _width() -> int | None:
    """As wide as the terminal is, or COLUMNS says; as reports are designed for where there is none.

    Else rich lays out for 80.
    """
    return None if sys.stdout.isatty() or "COLUMNS" in os.environ else REPORT_COLUMNS


def result_is_out() -> None:
    """Let the result reach a pipe at once; what a command that goes on says is for stderr."""
    sys.stdout.flush()
    _mode.as_json = False


def note(message: str) -> None:
    """Say something that is not part of the result."""
    typer.echo(message, err=True)


def step(number: int, what: str) -> None:
    """Say which step of a long command begins."""
    note(f"[{number}] {what}")


def script_log() -> int | None:
    """Where the words of a script that we run belong: stdout, unless that is one document."""
    return STDERR if _mode.as_json else None


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something is changed, deleted or paid for; `--yes` answers for scripts.

    Raises UsageError where nobody can answer, and stops the program on "no".
    """
    if yes:
        return
    if not sys.stdin.isatty() or _mode.as_json:
        raise UsageError(
            f"This needs an answer and there is no terminal to ask: {question}",
            hint="Add --yes to the same command.",
        )
    if not typer.confirm(question, err=True):
        note("Nothing was done.")
        raise typer.Exit(1)


def fail(code: str, message: str, hint: str | None) -> None:
    """Report an error in the form that the user asked for."""
    if _mode.as_json and not _mode.stdout_is_lost:
        typer.echo(envelope.failure(_mode.command, code, message, hint))
    else:
        _note_error(message, hint)
    error = sys.exc_info()[1]
    while _mode.verbose and error and (error := error.__cause__):
        note(f"why: {type(error).__name__}: {error}")
    if _mode.debug and sys.exc_info()[0]:
        note(traceback.format_exc().rstrip())


def _note_error(message: str, hint: str | None) -> None:
    note(f"Error: {message}")
    if hint:
        note(f"  → {hint}")


def fail_full(error: OSError) -> None:
    """Report that what we print finds no place; where stdout is full, only stderr is left."""
    _mode.stdout_is_lost = True
    close_stdout()
    hint = "Free some space, or send the output somewhere else."
    fail(WriteError.code, f"Could not write the output: {error.strerror}.", hint)


def fail_interrupted() -> None:
    """Report Ctrl-C, and what the next command can build on."""
    fail("interrupted", "Interrupted.", _AFTER_INTERRUPTION.get(_mode.command))


def fail_usage(error: typer.TyperException) -> None:
    """Report wrong arguments, with the command that explains the right ones."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "tpuctl"
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    if type(error).__name__ == "NoArgsIsHelpError":
        typer.echo(message)
    else:
        fail(UsageError.code, message, f"See: {command} --help")


def fail_bug(error: Exception) -> None:
    """Report a mistake of ours."""
    message = f"{type(error).__name__}: {error}"
    fail("bug", f"This is a bug in tpuctl: {message}", "Please report it with what --debug prints.")


def close_stdout() -> None:
    """Stop writing to a pipe whose reader has gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _command_words(arguments: list[str]) -> str:
    """The command that is meant: in a group, the word behind it, unless an option comes first."""
    words = [word for word in arguments if word not in _COMMON_FLAGS]
    first = next((word for word in words if not word.startswith("-")), "")
    entry = next((entry for entry in CONTENTS if entry.name == first), None)
    if entry is None:
        return "tpuctl"
    below = words[words.index(first) + 1 :][:1] if entry.is_group else []
    return " ".join([first, *(word for word in below if not word.startswith("-"))])
