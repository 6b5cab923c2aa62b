"""What a command prints: one result on stdout, everything else on stderr."""

import codecs
import errno
import os
import select
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TextIO

import typer

from tpuctl import settings
from tpuctl.cli.contents import CONTENTS
from tpuctl.errors import NotFoundError, UsageError, WriteError
from tpuctl.outcome import Outcome
from tpuctl.printable import printable, printable_json, printable_result, worker_text
from tpuctl.progress import MESSAGE, Progress
from tpuctl.reporters import envelope, layout

STDERR = 2
REPORT_COLUMNS = 100
_TERMINAL_SIZE = {"COLUMNS": 500, "LINES": 500, "TERMINAL_WIDTH": 500}
_LEAST_SIZE = 20
# typer has had a name for its own errors since 0.27.2, and Colab has 0.27.1.
USAGE_ERROR: type[Exception] = getattr(typer, "TyperException", typer.BadParameter.__mro__[2])
_COMMON_FLAGS = {"--json", "-v", "--verbose", "--debug"}

_RESUMES = "Run the same command again to resume."
_CONTINUES = "The request continues in the cloud; run the same command again to follow it."
# Ctrl-C may come before anything was requested, or after.
_DELETES = (
    "What was requested is still deleted, the rest is not; run the same command again to follow it."
)
_AFTER_INTERRUPTION = {
    "demo": _RESUMES,
    "data presize": _RESUMES,
    "data serve": "The service has stopped.",
    "create": "If it was requested, it may exist and cost money. To see it: tpuctl list",
    "delete": _DELETES,
    "gc": _DELETES,
    "wait": _CONTINUES,
    "logs": "The job keeps running; to stop it: tpuctl stop NAME",
    "watch": "What was started keeps running, unsupervised, and costs money. To resume: the same "
    "command; to stop paying: tpuctl delete NAME",
}

_OF_THE_SYSTEM = {
    errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EACCES, errno.EPERM, errno.EROFS, errno.EFBIG,
    errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR,
    errno.ELOOP, errno.ESTALE, errno.ENODEV, errno.ENXIO,
}  # fmt: skip


@dataclass
class _Mode:
    command: str = "tpuctl"
    as_json: bool = False
    verbose: bool = False
    debug: bool = False
    stdout_is_lost: bool = False
    has_answered: bool = False


_mode = _Mode()


def prepare(arguments: list[str]) -> None:
    """Read the common options before the arguments are parsed, so that errors respect them."""
    ours = arguments[: arguments.index("--")] if "--" in arguments else arguments
    _mode.stdout_is_lost = _mode.has_answered = False
    _mode.command = _command_words(ours)
    _mode.as_json = "--json" in ours
    _mode.verbose = "-v" in ours or "--verbose" in ours
    _mode.debug = "--debug" in ours
    ignored: set[str] = set()

    def warn_once(text: str) -> None:
        if text not in ignored:
            ignored.add(text)
            warn(text)

    settings.on_ignored = warn_once
    for name, most in _TERMINAL_SIZE.items():
        _limit_size(name, most)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # A character that the terminal does not know is shown as a question mark.
            stream.reconfigure(errors="replace")


def _limit_size(name: str, most: int) -> None:
    """Keep a size in the environment only if something can be laid out in it."""
    text = os.environ.get(name, "")
    size = int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else 0
    if size > most:
        os.environ[name] = str(most)
    elif name in os.environ and size < _LEAST_SIZE:
        del os.environ[name]


def open_closed_streams() -> None:
    """Open /dev/null as each standard stream that is closed, so that no file takes its place."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            # The lowest number that is free is this one.
            os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115


def as_json() -> bool:
    """Whether stdout belongs to one JSON document."""
    return _mode.as_json


def show(result: Outcome, text: Callable[[Any], Any] | None = None, *, err: bool = False) -> None:
    """Print a command's result and leave with its exit code.

    `text` turns the result into something rich can print, where that is not its own report. With
    `err` it goes to stderr, because stdout is that of the user's program.
    """
    if _mode.as_json:
        _write_json(envelope.success(_mode.command, result))
    else:
        from tpuctl.reporters.display import command_and_report

        report = text(printable_result(result)) if text else command_and_report(result)[1]
        print_report(report, err=err)
        for warning in result.warnings:
            warn(warning)
        for failure in result.failures:
            _note_error(str(failure), failure.hint)
    if _mode.verbose:
        for reason in result.reasons:
            note(f"why: {reason}")
    if result.exit_code:
        raise typer.Exit(result.exit_code)


def print_report(report: Any, *, err: bool = False) -> None:
    """Print plain text as it is, so that it can be pasted; let rich lay out the rest."""
    if report is None:
        return
    if isinstance(report, str):
        typer.echo(printable(report, lines=True), err=err)
    else:
        # Reports are designed for 100 columns; without a terminal rich would lay out for 80.
        is_sized = sys.stdout.isatty() or "COLUMNS" in os.environ
        width = terminal_width() if is_sized else REPORT_COLUMNS
        console = layout.console(width=width, stderr=err)
        # A command or a snippet may be longer than a line: it is to be copied, so never cut.
        console.print(layout.Printable(report), crop=False)


def terminal_width() -> int:
    """Return the width of the terminal, within what can be laid out."""
    columns = shutil.get_terminal_size().columns
    return min(columns, _TERMINAL_SIZE["COLUMNS"]) if columns >= _LEAST_SIZE else 80


def _write_json(document: str) -> None:
    encoding = codecs.lookup(getattr(sys.stdout, "encoding", None) or "utf-8").name
    typer.echo(document if encoding == "utf-8" else printable_json(document, ascii_only=True))
    _mode.has_answered = True


def show_early(result: Outcome) -> None:
    """Show the result of a command that keeps running; what it prints later is for stderr."""
    show(result)
    sys.stdout.flush()
    _mode.as_json = False


def note(message: str) -> None:
    """Print something that is not part of the result; further lines of it are indented."""
    try:
        typer.echo(printable(message, lines=True).replace("\n", "\n    "), err=True)
    except OSError:
        # The reader has closed stderr: the command must not stop for that.
        _redirect_to_null(sys.stderr)


def warn(message: str) -> None:
    """Print a warning."""
    note(f"Warning: {message}")


def note_message(progress: Progress) -> None:
    """Print the messages of a long operation, but not its progress."""
    if progress.task == MESSAGE:
        note(progress.note)


def worker_sink() -> Callable[[int, bytes], None]:
    """Return where the output of workers goes: stdout and stderr, or with --json only stderr."""
    files = {1: sys.stderr if _mode.as_json else sys.stdout, 2: sys.stderr}
    return lambda stream, data: worker_text(files[stream]).write(data)


def script_log() -> int | None:
    """Return the file descriptor for the output of a script: with --json stderr, or the default."""
    return STDERR if _mode.as_json else None


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something is changed, deleted or paid for; `--yes` answers for scripts.

    Raises UsageError without a terminal, and stops the program on "no".
    """
    if yes:
        return
    if not sys.stdin.isatty() or _mode.as_json:
        raise UsageError(
            f"This needs confirmation, and there is no terminal to ask: {question}",
            hint="Add --yes to the same command.",
        )
    if not typer.confirm(printable(question, lines=True), err=True):
        note("Nothing was done.")
        raise typer.Exit(1)


def ask(question: str) -> str:
    """Return the answer typed on the terminal; KeyboardInterrupt at Ctrl-C and at its end."""
    typer.echo(question, nl=False, err=True)
    heard, wake = os.pipe()
    os.set_blocking(wake, False)
    before = signal.set_wakeup_fd(wake)
    try:
        # input() goes on waiting after a Ctrl-C that comes just before it reads.
        select.select([sys.stdin, heard], [], [])
    finally:
        signal.set_wakeup_fd(before)
        os.close(heard)
        os.close(wake)
    if line := sys.stdin.readline():
        return line.strip()
    raise KeyboardInterrupt


def confirm_plan(ask: Callable[[Any], str], plan: Any, *, yes: bool) -> None:
    """Ask whether to carry out a plan, with the question that `ask` makes of it."""
    if not yes:
        confirm(ask(printable_result(plan)), yes=False)


def announce_and_confirm(question: str, *, yes: bool) -> None:
    """Ask, or only print the question where `--yes` has answered it."""
    if yes:
        note(question)
    confirm(question, yes=yes)


def fail(code: str, message: str, hint: str | None) -> None:
    """Report an error: as a JSON document, or as text, also after the one document of a command."""
    if _mode.as_json and not (_mode.stdout_is_lost or _mode.has_answered):
        try:
            _write_json(envelope.failure(_mode.command, code, message, hint))
        except BrokenPipeError:
            close_stdout()
    else:
        _note_error(message, hint, "" if code == "interrupted" else "Error: ")
    error = sys.exc_info()[1]
    while _mode.verbose and error and (error := error.__cause__):
        note(f"why: {type(error).__name__}: {error}")
    if _mode.debug and sys.exc_info()[0]:
        note(traceback.format_exc().rstrip())


def _note_error(message: str, hint: str | None, mark: str = "Error: ") -> None:
    note(f"{mark}{message}")
    if hint:
        note(f"  → {hint}")


def fail_system(error: OSError) -> None:
    """Report an error of the system: with stdout, or with a file that no command expected."""
    what, why = error.filename or "the output or a temporary file", error.strerror
    message = f"Could not use {what}: {why}."
    hint = "Check the path, its permissions and free space, and run the same command again."
    if error.errno == errno.ENOENT and _is_current_folder_gone():
        fail(NotFoundError.code, "The current folder was deleted.", "Change to another: cd ~")
        return
    if error.errno == errno.ENOENT and str(why).startswith("No usable temporary directory"):
        # Python names the folders: full, read-only or missing ones.
        message = f"{why}."
        hint = "Free some space there, or set TMPDIR to a folder that can be written to."
    elif error.errno not in _OF_THE_SYSTEM:
        fail_bug(error)
        return
    try:
        sys.stdout.flush()
        fail(WriteError.code, message, hint)
    except OSError:
        _mode.stdout_is_lost = True
        close_stdout()
        hint = "Free some space, or redirect the output to another place."
        fail(WriteError.code, f"Could not write the output: {why}.", hint)


def _is_current_folder_gone() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def fail_interrupted() -> None:
    """Report Ctrl-C, and how to continue."""
    fail("interrupted", "Interrupted.", _AFTER_INTERRUPTION.get(_mode.command))


def fail_usage(error: Exception) -> None:
    """Report wrong arguments, with the command that explains the right ones."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "tpuctl"
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    message = message.replace(": Value error, ", ": ", 1)  # typer's, from pydantic
    if type(error).__name__ == "NoArgsIsHelpError":
        typer.echo(message)
    else:
        fail(UsageError.code, message, f"See: {command} --help")


def fail_bug(error: Exception) -> None:
    """Report an unexpected exception."""
    message = f"{type(error).__name__}: {error}"
    hint = "Please report it, with the output of --debug."
    fail("bug", f"This is a bug in tpuctl: {message}", hint)


def close_stdout() -> None:
    """Stop writing to a pipe whose reader has gone."""
    _redirect_to_null(sys.stdout)


def _redirect_to_null(stream: TextIO) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _command_words(arguments: list[str]) -> str:
    """Return the words that name the command: two in a group, unless an option comes first."""
    words = [word for word in arguments if word not in _COMMON_FLAGS]
    first = next((word for word in words if not word.startswith("-")), "")
    entry = next((entry for entry in CONTENTS if entry.name == first), None)
    if entry is None:
        return "tpuctl"
    below = words[words.index(first) + 1 :][:1] if entry.is_group else []
    return " ".join([first, *(word for word in below if not word.startswith("-"))])
