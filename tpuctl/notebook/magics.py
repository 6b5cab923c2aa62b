"""`%load_ext tpuctl`: the command line as a magic."""

import shlex
from collections.abc import Callable
from functools import partial
from typing import Any

from tpuctl.errors import TpuctlError
from tpuctl.notebook.doctor import doctor

_FLAGS = {"--deep": "deep", "--numerics": "numerics"}
_VALUES = {"--record": "record", "--replay": "replay"}


def load_ipython_extension(shell: Any) -> None:
    """Give a notebook the magics `%tpuctl` and `%%tpuprofile`."""
    shell.register_magic_function(tpuctl, magic_kind="line", magic_name="tpuctl")

    def tpuprofile(line: str, cell: str) -> Any:
        """Run a cell and say what its training waited for."""
        return profile_cell(shell, line, cell)

    shell.register_magic_function(tpuprofile, magic_kind="cell", magic_name="tpuprofile")


def profile_cell(shell: Any, line: str, cell: str) -> Any:
    """Run a cell inside `tpuctl.profile()`; `%%tpuprofile NAME` keeps the profile as NAME."""
    from tpuctl.cli import output
    from tpuctl.notebook.profile import Card
    from tpuctl.profiling.program.inside import profile

    with profile() as block:
        shell.run_cell(cell)
    try:
        card = Card(block.result)
    except TpuctlError as error:
        output.fail(error.code, str(error), error.hint)
        return None
    if name := line.strip():
        shell.push({name: block.result})
    return card


def tpuctl(line: str) -> Any:
    """Run a tpuctl command; `%tpuctl doctor` and `%tpuctl data show DST` show a card."""
    words = shlex.split(line)
    show = _card(words)
    if show is None:
        return _run(words)
    try:
        return show()
    except TpuctlError as error:
        from tpuctl.cli import output

        output.fail(error.code, str(error), error.hint)
        return None


def _card(words: list[str]) -> Callable[[], Any] | None:
    """What shows a command as more than text; None where that is nothing of ours."""
    if words[:1] == ["doctor"] and (options := _options(words[1:])) is not None:
        return partial(doctor, **options)
    if words[:2] == ["data", "show"] and len(words) == 3 and not words[2].startswith("-"):
        from tpuctl.notebook.data_set import show_data_set

        return partial(show_data_set, words[2])
    return None


def _options(words: list[str]) -> dict[str, Any] | None:
    """Read the options that the card can show; None sends the command to the command line."""
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
