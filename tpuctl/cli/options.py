"""Options that every command has, options that several share, and how a command is registered."""

import inspect
import math
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from tpuctl.cli import completion
from tpuctl.errors import InvalidArgumentError
from tpuctl.units import parse_duration_s

T = TypeVar("T")

_MAX_NUMBER = 1e9


def Option(*declaration: Any, metavar: str | None = None, **settings: Any) -> Any:
    """An option that the shell completes if its metavar names something that is known here."""
    complete = completion.by_metavar(metavar)
    return typer.Option(*declaration, metavar=metavar, autocompletion=complete, **settings)


def Argument(*declaration: Any, metavar: str | None = None, **settings: Any) -> Any:
    """An argument that the shell completes if its metavar names something that is known here."""
    complete = completion.by_metavar(metavar)
    return typer.Argument(*declaration, metavar=metavar, autocompletion=complete, **settings)


class Command(TyperCommand):
    """A command whose usage line shows every argument as its metavar."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the usage line; typer would put brackets around the metavars."""
        arguments = (each for each in self.params if each.param_type_name == "argument")
        return [self.options_metavar or "", *(each.metavar or "" for each in arguments)]


def parser(parse: Callable[[str], T]) -> Callable[[Any], T]:
    """Make the parser of an option: what cannot be read is wrong usage, with the option's name."""

    def read(value: Any) -> T:
        if not isinstance(value, str):
            # A default.
            return value  # type: ignore[no-any-return]
        try:
            return parse(value)
        except InvalidArgumentError as error:
            raise typer.BadParameter(f"{error} {error.hint or ''}".rstrip()) from error

    return read


def _parse_positive_duration_s(text: str) -> float:
    if not (seconds := parse_duration_s(text)):
        raise InvalidArgumentError(f"{text!r} is not longer than 0 s.")
    return seconds


def _parse_number(text: str, least: float) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (0 < number <= _MAX_NUMBER and number >= least):
        limits = f"from {least:g}" if least else "greater than 0"
        raise InvalidArgumentError(f"{text!r} is not a number {limits} up to {_MAX_NUMBER:,.0f}.")
    return number


def _parse_name(text: str) -> str:
    # Loaded here: help needs nothing of the cloud.
    from tpuctl.cloud.models import segment

    return segment("TPU", text)


def _parse_zones(text: str) -> str:
    from tpuctl.cloud.models import segment

    return ",".join(zone and segment("zone", zone) for zone in text.split(","))


def time_option(help: str, *flag: str, may_be_zero: bool = False) -> Any:
    """An option that is a duration; its default is part of the help."""
    parse = parse_duration_s if may_be_zero else _parse_positive_duration_s
    return Option(*flag, parser=parser(parse), metavar="TIME", show_default=False, help=help)


def zone_option(help: str, *, flag: str = "--zone", metavar: str = "ZONE") -> Any:
    """An option that is a zone, or several."""
    # Without its flag, typer 0.27.1 (Colab's) loses an option whose metavar is its name.
    return Option(flag, parser=parser(_parse_zones), metavar=metavar, help=help)


def positive_option(metavar: str, help: str, *flag: str, least: float = 0) -> Any:
    """An option that is a finite number greater than 0, or from `least` on."""
    parse = partial(_parse_number, least=least)
    return Option(*flag, parser=parser(parse), metavar=metavar, help=help)


_name = parser(_parse_name)

Name = Annotated[str, Argument(parser=_name, metavar="NAME", help="Name of the TPU.")]
Names = Annotated[
    list[str] | None, Argument(parser=_name, metavar="NAME...", help="Names of the TPUs.")
]
Project = Annotated[
    str | None,
    Option(
        "--project", metavar="PROJECT", help="Google Cloud project. Default: the project setting."
    ),
]
Zone = Annotated[
    str | None,
    zone_option("Zone such as us-central1-a; - for all zones. Default: the zone setting."),
]
Provider = Annotated[
    str | None,
    Option(
        "--provider",
        metavar="PROVIDER",
        help="Provider such as cloud-tpu or colab. Default: all in use.",
    ),
]
Timeout = Annotated[
    float | None, time_option("Maximum wait, such as 90s or 1h30m.", "--timeout", may_be_zero=True)
]
Yes = Annotated[bool, Option("--yes", "-y", help="Skip confirmation.")]
DryRun = Annotated[bool, Option("--dry-run", help="Show what would be done, without doing it.")]


def _full_name(word: str) -> str:
    # As a second name of the option it would leave no room for the first in the help.
    return "accelerator-type" if word == "type" else word


HELP: dict[str, Any] = {
    "help_option_names": ["-h", "--help"],
    "token_normalize_func": _full_name,
}

_common = typer.Typer(add_completion=False)


@_common.command()
def _every_command(
    as_json: bool = Option(
        False, "--json", help="Print the result as one JSON document.", expose_value=False
    ),
    verbose: bool = Option(
        False, "--verbose", "-v", help="Show the reasons for the result.", expose_value=False
    ),
    debug: bool = Option(
        False, "--debug", help="Show the traceback of an error.", expose_value=False
    ),
) -> None:
    """Carry the options that all commands share."""


def add_common_options(command: Any) -> None:
    """Add the options that all commands share, and show switches without a type.

    Their effect is read from the arguments before parsing (`output.prepare`), so that an error in
    the arguments themselves already comes in the wanted form.
    """
    command.params.extend(typer.main.get_command(_common).params)
    for parameter in (*command.params, command.get_help_option(typer.Context(command, **HELP))):
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""


def complete_command(command: Any) -> None:
    """Add the common options to a command and all below it, and name its arguments for the help."""
    if isinstance(command, TyperGroup):
        for below in command.commands.values():
            complete_command(below)
    for parameter in command.params:
        if parameter.param_type_name == "argument" and not parameter.metavar:
            name = parameter.name.upper()
            parameter.metavar = name if parameter.required else f"[{name}]"
    add_common_options(command)


def examples(*lines: str) -> str:
    """Write the end of a help screen: command lines that run as they are."""
    # Escaped, because rich takes [tpu] for markup.
    return "\n".join(["Examples:", *(line.replace("[", r"\[") for line in lines)])


def command(
    app: typer.Typer, name: str | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function as a command; the examples in its docstring end its help."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        text, _, lines = inspect.cleandoc(function.__doc__ or "").partition("\n\nExamples:\n")
        epilog = examples(*map(str.strip, lines.splitlines()))
        kind = _CLASSES.get(function, Command)
        app.command(name, cls=kind, help=text, epilog=epilog)(function)
        return function

    return register


_CLASSES: dict[Callable[..., None], type[Command]] = {}


def parsed_by(kind: type[Command]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let the given class parse the words of a command."""

    def note(function: Callable[..., None]) -> Callable[..., None]:
        _CLASSES[function] = kind
        return function

    return note
