"""Options that every command has, and those that the commands for Cloud TPUs share."""

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of a TPU.")]
Project = Annotated[str | None, typer.Option(help="Google Cloud project, if not the one set.")]
Zone = Annotated[str | None, typer.Option(help="Zone, if not the one set; - for all of them.")]
Timeout = Annotated[str | None, typer.Option(help="Longest wait, such as 90s or 1h30m.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without a question.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done, do nothing.")]

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


def common_options() -> list[Any]:
    """Build the options that all commands share.

    Their effect is read from the arguments before parsing (`output.prepare`), so that an error in
    the arguments themselves already comes in the wanted form.
    """
    return list(typer.main.get_command(_common).params)


def add_common_options(command: Any) -> None:
    """Add the common options to a command and to every command below it."""
    if isinstance(command, TyperGroup):
        for below in command.commands.values():
            add_common_options(below)
    command.params.extend(common_options())
