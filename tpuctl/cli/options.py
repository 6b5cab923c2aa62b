"""Options that every command has."""

from typing import Any

import typer
from typer.core import TyperGroup

_common = typer.Typer(add_completion=False)


@_common.command()
def _every_command(
    as_json: bool = typer.Option(
        False,
        "--json",
        help="Print one JSON document on stdout and nothing else.",
        expose_value=False,
    ),
    verbose: bool = typer.Option(False, "--verbose", "-v", help="Show why.", expose_value=False),
    debug: bool = typer.Option(
        False, "--debug", help="Show the traceback of an error.", expose_value=False
    ),
) -> None:
    """Carry the options that all commands share."""


def add_common_options(command: Any) -> None:
    """Give a command, and every command below it, the options that all have.

    Their effect is read from the arguments before parsing (`output.prepare`), so that an error in
    the arguments themselves already comes in the wanted form.
    """
    if isinstance(command, TyperGroup):
        for below in command.commands.values():
            add_common_options(below)
        if not command.invoke_without_command:
            return
    command.params.extend(typer.main.get_command(_common).params)
