"""The table of contents: every command, in the order of `tpuctl --help`.

A command is a module of `tpuctl.cli` with an `app`. It is imported only to run it, so its help line
is read from its source: importing all commands takes four times as long as the whole help screen.
"""

import ast
from dataclasses import dataclass
from pathlib import Path

_SECTIONS = {
    "Where am I": ("doctor", "explain", "types"),
    "Cloud TPUs": ("create", "list", "show", "wait", "delete", "gc", "watch", "quota"),
    "Workers": ("run", "cp", "logs", "stop", "free", "top", "ssh"),
    "Input pipelines": ("profile",),
    "Data sets": ("data",),
    "Training": ("fit", "launch", "templates", "bench"),
    "Practice": ("emulator", "demo"),
    "Set up": ("config",),
}
_GROUPS = {"profile", "data", "templates", "bench", "emulator"}


@dataclass(frozen=True)
class Entry:
    """One line of `tpuctl --help`."""

    section: str
    name: str
    is_group: bool = False

    @property
    def module(self) -> str:
        """The module that holds the command."""
        return f"tpuctl.cli.{self.name}"

    @property
    def help(self) -> str:
        """First line of the command's help."""
        source = Path(__file__).with_name(f"{self.name}.py").read_bytes()
        return _help_in(ast.parse(source)).partition("\n")[0]


def _help_in(module: ast.Module) -> str:
    """Return the `help` of the module's `app`, else the docstring of its first command."""
    for node in module.body:
        match node:
            case ast.Assign(targets=[ast.Name("app")], value=ast.Call(keywords=keywords)):
                for keyword in keywords:
                    if keyword.arg == "help":
                        return str(ast.literal_eval(keyword.value))
            case ast.FunctionDef(decorator_list=[_, *_]):
                return ast.get_docstring(node) or ""
    return ""


CONTENTS = tuple(
    Entry(section, name, name in _GROUPS) for section, names in _SECTIONS.items() for name in names
)
