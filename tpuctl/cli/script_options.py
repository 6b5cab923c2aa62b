"""How `tpuctl launch` reads its options: those of the script are options, too."""

import contextlib
from difflib import get_close_matches
from typing import Any

from tpuctl.cli import output
from tpuctl.cli.options import Command
from tpuctl.errors import TpuctlError, UsageError
from tpuctl.printable import printable_result
from tpuctl.reporters.training import render_flags
from tpuctl.training.catalog import Template, is_template
from tpuctl.training.plan import after_dashes, find_script

_FOR_MODULES = (
    "launch takes the path of a script. To run and measure a module: "
    "tpuctl profile run -- python -m MODULE"
)


class LaunchCommand(Command):
    """A command that takes the flags of its script, too: `--steps 20` is `--set steps=20`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Turn flags that only the script has into settings."""
        end = args.index("--") if "--" in args else len(args)
        ctx.obj = _script_of(args[:end])
        words = [*self._as_settings(ctx, args[:end]), *args[end:]]
        try:
            return super().parse_args(ctx, words)
        except Exception as error:
            option = f"{getattr(error, 'option_name', '')}"
            is_module = option == "-m" and not ctx.obj
            if type(error).__name__ != "NoSuchOption" or not (is_module or _is_own(ctx.obj)):
                raise
            hint = _FOR_MODULES if is_module else after_dashes(ctx.obj)
            raise UsageError(f"No such option: {option}.", hint=hint) from error

    def _as_settings(self, ctx: Any, args: list[str]) -> list[str]:
        flags = {flag.name: flag for flag in ctx.obj.flags} if ctx.obj else {}
        options = (
            option for param in self.params for option in (*param.opts, *param.secondary_opts)
        )
        ours = {*options, *ctx.help_option_names}
        flags |= {f"--no-{name[2:]}": flag for name, flag in flags.items() if flag.type == "yes|no"}
        flags = {name: flag for name, flag in flags.items() if name not in ours}
        found, words = [], list(args)
        while words:
            word = words.pop(0)
            name, equals, value = word.partition("=")
            if not (flag := flags.get(name)):
                near = [] if name in ours or name[:2] != "--" else get_close_matches(name, flags, 1)
                if near:
                    raise UsageError(f"No such option: {name}.", hint=f"Did you mean {near[0]}?")
                found.append(word)
                continue
            if not (equals or flag.is_switch) and words:
                value = words.pop(0)
            setting = f"{name[2:]}={value}"
            if flag.is_switch and not equals:
                setting = f"{flag.name[2:]}={'true' if name == flag.name else 'false'}"
            found += ["--set", setting]
        return found

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Show the script's flags as well, if one is named."""
        super().format_help(ctx, formatter)
        if ctx.obj:
            output.print_report(render_flags(printable_result(ctx.obj)))


def _is_own(script: Template | None) -> bool:
    return script is not None and not is_template(script.path)


def _script_of(args: list[str]) -> Template | None:
    """The script that the words of a command line name, None if there is none or it is wrong."""
    for word in args:
        with contextlib.suppress(TpuctlError):
            if not word.startswith("-") and ("/" not in word or word.endswith(".py")):
                return find_script(word)
    return None
