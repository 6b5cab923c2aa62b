"""Options that every command has, and those that the commands for Cloud TPUs share."""

import os
import re
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of a TPU.")]
Project = Annotated[str | None, typer.Option(help="Google Cloud project, if not the one set.")]
Zone = Annotated[str | None, typer.Option(help="Zone, if not the one set; - for all of them.")]
Timeout = Annotated[str | None, typer.Option(help="Longest wait, such as 90s or 1h30m.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without a question.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done, do nothing.")]

_DIGITS = {int: re.compile(r"-?[0-9]{1,18}"), float: re.compile(r"-?[0-9]{1,18}(\.[0-9]{1,18})?")}

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
    take_plain_values(command)


def take_plain_values(command: Any) -> None:
    """Keep typer from validating what needs no validation, the help option included."""
    for parameter in command.params:
        _take_plain_value(parameter)
    make_help = command.get_help_option

    def help_option(ctx: Any) -> Any:
        option = make_help(ctx)
        return option and _take_plain_value(option)

    command.get_help_option = help_option


def _take_plain_value(parameter: Any) -> Any:
    """Let text, plain paths, flags, numbers and what was not given be what they are.

    typer otherwise loads pydantic to look at them: a quarter of the time of a short command.
    """
    process = parameter.process_value
    if getattr(process, "takes_plain_values", False):
        return parameter

    def unless_plain(ctx: Any, value: Any) -> Any:
        plain, taken = _as_plain(parameter, value)
        if not plain:
            return process(ctx, value)
        return parameter.callback(ctx, parameter, taken) if parameter.callback else taken

    unless_plain.takes_plain_values = True  # type: ignore[attr-defined]
    parameter.process_value = unless_plain
    return parameter


def _as_plain(parameter: Any, value: Any) -> tuple[bool, Any]:
    """Whether a value needs no validation, and what it is then."""
    kind, info = parameter.type_descriptor.annotation, parameter.type_descriptor.parameter_info
    if info.parser is not None:
        return False, None
    if parameter.nargs == 1 and not parameter.multiple:
        if value is None:
            return not parameter.required, None
        if kind is str:
            return isinstance(value, str), value
        if kind is Path:
            return _is_plain_path(info, value), Path(value)
        if kind is bool:
            return isinstance(value, bool), value
        if kind in (int, float):
            return _as_plain_number(kind, info, value)
    elif kind == list[str]:
        if not value:
            return not parameter.required, ()
        return all(isinstance(item, str) for item in value), list(value)
    return False, None


def _as_plain_number(kind: Any, info: Any, value: Any) -> tuple[bool, Any]:
    """Whether a value is a number within its bounds, in digits if it is text, and which."""
    if not (isinstance(value, kind) or (isinstance(value, str) and _DIGITS[kind].fullmatch(value))):
        return False, None
    number = kind(value)
    too_small = info.min is not None and number < info.min
    too_large = info.max is not None and number > info.max
    return not (too_small or too_large), number


def _is_plain_path(info: Any, value: Any) -> bool:
    """Whether typer would find nothing to say about a path, which it reads only where it must."""
    odd = info.exists or info.writable or info.resolve_path or info.allow_dash or info.path_type
    return not odd and info.file_okay and info.dir_okay and os.access(value, os.R_OK)
