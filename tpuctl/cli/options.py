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


def add_common_options(command: Any) -> None:
    """Give a command, and every command below it, the options that all have.

    Their effect is read from the arguments before parsing (`output.prepare`), so that an error in
    the arguments themselves already comes in the wanted form.
    """
    if isinstance(command, TyperGroup):
        for below in command.commands.values():
            add_common_options(below)
    command.params.extend(typer.main.get_command(_common).params)
    leave_unset_options_alone(command)


def leave_unset_options_alone(command: Any) -> None:
    """Keep typer from validating what was not given, the help option included."""
    for parameter in command.params:
        _leave_unset_alone(parameter)
    make_help = command.get_help_option

    def help_option(ctx: Any) -> Any:
        option = make_help(ctx)
        return option and _leave_unset_alone(option)

    command.get_help_option = help_option


def _leave_unset_alone(parameter: Any) -> Any:
    """Let an option that was not given be None without further ado.

    typer otherwise loads pydantic to validate the None: a quarter of the time of a short command.
    """
    process = parameter.process_value
    if getattr(process, "leaves_unset_alone", False):
        return parameter

    def unless_unset(ctx: Any, value: Any) -> Any:
        plain = parameter.nargs == 1 and not parameter.multiple and not parameter.required
        if value is not None or not plain:
            return process(ctx, value)
        return parameter.callback(ctx, parameter, None) if parameter.callback else None

    unless_unset.leaves_unset_alone = True  # type: ignore[attr-defined]
    parameter.process_value = unless_unset
    return parameter
