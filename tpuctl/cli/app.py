"""The `tpuctl` program: commands loaded when called, and one error boundary around them all."""

import gc
import importlib
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

import tpuctl
from tpuctl import settings
from tpuctl.cli import output
from tpuctl.cli.contents import CONTENTS, Entry
from tpuctl.cli.options import HELP, add_common_options, command, complete_command
from tpuctl.errors import EXIT_INTERRUPTED, Terminated, TpuctlError

_OBJECTS_BETWEEN_COLLECTIONS = 50_000

_ENTRIES = {entry.name: entry for entry in CONTENTS}


class Contents(TyperGroup):
    """The top-level group: lists its commands from the table, imports only the one that runs."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for entry in CONTENTS:
            self.add_command(TyperCommand(entry.name))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return what help and completion show of a command, without importing it."""
        if entry := _ENTRIES.get(cmd_name):
            return TyperCommand(entry.name, help=entry.help, rich_help_panel=entry.section)
        return None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Import the command to run; suggest the nearest name if it is unknown."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, _load(_ENTRIES[name]) if name else command, rest

    def main(self, args: Sequence[str] | None = None, *_: Any, **__: Any) -> NoReturn:
        """Run the program and exit with its code."""
        arguments = list(sys.argv[1:] if args is None else args)
        output.prepare(arguments)
        add_common_options(self)
        run = super().main
        with settings.files_read_once():
            code = _guarded(lambda: run(arguments, prog_name="tpuctl", standalone_mode=False))
        # Without this, Python looks once more for garbage in all that was imported.
        gc.freeze()
        sys.exit(code)


def _guarded(run: Callable[[], Any]) -> int:
    """Run a command; an exception becomes one message and an exit code."""
    try:
        code = run()
    except TpuctlError as error:
        output.fail(error.code, str(error), error.hint)
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return _interrupted()
    except output.USAGE_ERROR as error:
        output.fail_usage(error)
        return 2
    except BrokenPipeError:
        output.close_stdout()
        return 1
    except OSError as error:
        output.fail_system(error)
        return 1
    except Exception as error:
        # Up to Python 3.11, a signal while a class is made is the cause of a RuntimeError.
        if isinstance(error.__cause__, KeyboardInterrupt):
            return _interrupted()
        if isinstance(error.__cause__, SystemExit):
            raise error.__cause__ from None
        output.fail_bug(error)
        return 1
    if code == EXIT_INTERRUPTED:
        return _interrupted()
    return code if isinstance(code, int) else 0


def _interrupted() -> int:
    output.fail_interrupted()
    return EXIT_INTERRUPTED


def _load(entry: Entry) -> Any:
    found = getattr(importlib.import_module(entry.module), entry.attribute)
    app = found if isinstance(found, typer.Typer) else typer.Typer(add_completion=False)
    if app is not found:
        command(app, entry.name)(found)
    loaded = typer.main.get_command(app)
    loaded.name = entry.name
    complete_command(loaded)
    return loaded


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tpuctl {tpuctl.__version__}")
        raise typer.Exit


app = typer.Typer(cls=Contents, no_args_is_help=True, context_settings=HELP)


@app.callback(epilog="Start with: tpuctl doctor")
def root(
    version: bool = typer.Option(
        False, "--version", help="Print the version.", is_eager=True, callback=_print_version
    ),
) -> None:
    """From "is my TPU even there?" to "my training keeps the matrix unit busy"."""


def main() -> None:
    """Run `tpuctl` with the arguments of the process."""
    output.open_closed_streams()
    # Imported objects are not garbage, and looking through them takes a tenth of a short command.
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _leave)
    app()


def _leave(number: int, _: Any) -> NoReturn:
    """End by a signal as by Ctrl-C, so that child processes are stopped and files are complete."""
    raise Terminated(128 + number)
