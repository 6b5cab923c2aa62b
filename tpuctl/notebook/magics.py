"""`%load_ext tpuctl`: the command line as a magic."""

import shlex
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any, NoReturn

from tpuctl.errors import TargetError, TpuctlError

_FLAGS = {"--deep": "deep", "--numerics": "numerics"}
_VALUES = {"--record": "record", "--replay": "replay"}
_NOT_PROFILED = (
    "tpuctl: this cell is not profiled, because it has await outside a function. "
    "Put its training inside: with tpuctl.profile() as p: ...\n"
)


def load_ipython_extension(shell: Any) -> None:
    """Give a notebook the magics `%tpuctl`, `%%tpuprofile` and `%%tpulint`."""
    shell.register_magic_function(tpuctl, magic_kind="line", magic_name="tpuctl")

    def tpuprofile(line: str, cell: str) -> Any:
        """Run a cell and say what its training waited for."""
        return profile_cell(shell, line, cell)

    shell.register_magic_function(tpuprofile, magic_kind="cell", magic_name="tpuprofile")
    leave = partial(_leave_awaiting_cells, shell)
    shell.input_transformers_cleanup.append(leave)

    def tpulint(line: str, cell: str) -> None:
        """Check a cell for a TPU without running it; `%%tpulint colab` names the runtime."""
        from tpuctl.linting.own_notebook import lint_cell
        from tpuctl.reporters.lint import render_lint

        def report() -> None:
            names = {k: v for k, v in shell.user_ns.items() if k not in shell.user_ns_hidden}
            sys.stdout.write(render_lint(lint_cell(cell, names, runtime=line.strip() or None)))

        _or_message(report)

    shell.register_magic_function(tpulint, magic_kind="cell", magic_name="tpulint")


def _leave_awaiting_cells(shell: Any, lines: list[str]) -> list[str]:
    """Let a cell with `await` run without `%%tpuprofile`: a magic cannot wait for it."""
    if lines and lines[0].split()[:1] == ["%%tpuprofile"]:
        plain = shell.transform_cell("".join(lines[1:]))
        if shell.should_run_async(plain, transformed_cell=plain):
            return [f"__import__('sys').stderr.write({_NOT_PROFILED!r});\n", *lines[1:]]
    return lines


def profile_cell(shell: Any, line: str, cell: str) -> Any:
    """Run a cell inside `tpuctl.profile()`; `%%tpuprofile NAME` keeps the profile as NAME."""
    from tpuctl.profiling.program.inside import profile

    with profile() as block:
        ran = shell.run_cell(cell)

    def report() -> Any:
        if name := line.strip():
            shell.push({name: block.result})
        return block.result

    if error := ran.error_before_exec or ran.error_in_exec:
        display: Any = import_module("IPython.display").display
        with suppress(TargetError):
            display(report())
        _raise_shown(shell, error)
    return _or_message(report)


def _raise_shown(shell: Any, error: BaseException) -> NoReturn:
    """Raise an error that has been shown, so that the cell fails without showing it again."""
    show = shell.showtraceback

    def show_others(*arguments: Any, **named: Any) -> None:
        shell.showtraceback = show
        if sys.exc_info()[1] is not error:
            show(*arguments, **named)

    shell.showtraceback = show_others
    raise error


def tpuctl(line: str) -> Any:
    """Run a tpuctl command; `%tpuctl doctor` and `%tpuctl data show DST` return a report."""
    words = shlex.split(line)
    report = _report(words)
    return _run(words) if report is None else _or_message(report)


def _or_message(report: Callable[[], Any]) -> Any:
    try:
        return report()
    except TpuctlError as error:
        from tpuctl.cli import output

        output.fail(error.code, str(error), error.hint)
        return None


def _report(words: list[str]) -> Callable[[], Any] | None:
    """Return what makes the report of a command that has one; None sends it to the command line."""
    if words[:1] == ["doctor"] and (options := _doctor_options(words[1:])) is not None:
        from tpuctl.api.machine import doctor

        return partial(doctor, **options)
    if words[:2] == ["data", "show"] and len(words) == 3 and not words[2].startswith("-"):
        from tpuctl.api.data import show

        return partial(show, words[2])
    return None


def _doctor_options(words: list[str]) -> dict[str, Any] | None:
    options: dict[str, Any] = {}
    rest = iter(words)
    for word in rest:
        if word in _FLAGS:
            options[_FLAGS[word]] = True
        elif word in _VALUES and (value := next(rest, None)):
            options[_VALUES[word]] = value
        else:
            return None
    return options


def _run(words: list[str]) -> None:
    from tpuctl.cli.app import app

    try:
        app(words)
    except SystemExit:
        # The command has said what happened; a notebook has no exit code to set.
        return
