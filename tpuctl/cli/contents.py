"""The table of contents: every command, in the order of `tpuctl --help`.

A command is a function in its module, or a typer app if it is a group. The module is imported only
to run the command, so the line of help is read from its source.
"""

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

# Each command with the module of `tpuctl.cli` that holds it.
_SECTIONS = {
    "This machine": "machine.doctor machine.explain machine.config",
    "Cloud TPUs": "machine.types cloud.offers cloud.quota create.create cloud.list cloud.show"
    " cloud.wait watch.watch cloud.migrate cloud.delete cloud.gc",
    "Workers": "workers.run workers.cp workers.logs workers.stop workers.ssh workers.top"
    " workers.free",
    "Input pipelines": "profile.profile data.data",
    "Training": "training.templates training.lint training.launch training.fit training.bench",
    "Practice": "practice.demo practice.emulator",
}
_GROUPS = {"profile", "data", "templates", "bench", "emulator"}


@dataclass(frozen=True)
class Entry:
    """One line of `tpuctl --help`."""

    section: str
    name: str
    module: str
    is_group: bool = False

    @property
    def help(self) -> str:
        """First line of the command's help."""
        return _help_lines(self.module)[self.attribute]

    @property
    def attribute(self) -> str:
        """Name of the command in its module; `list` would hide the type."""
        return "list_" if self.name == "list" else self.name


@cache
def _help_lines(module: str) -> dict[str, str]:
    """Read the help lines of a module's commands from their docstrings, or from the app's help."""
    source = Path(__file__).with_name(f"{module.rpartition('.')[2]}.py").read_bytes()
    lines = {}
    for node in ast.parse(source).body:
        match node:
            case ast.FunctionDef(name=name):
                lines[name] = (ast.get_docstring(node) or "").partition("\n")[0]
            case ast.Assign(targets=[ast.Name(name)], value=ast.Call(keywords=keywords)):
                for keyword in keywords:
                    if keyword.arg == "help":
                        lines[name] = str(ast.literal_eval(keyword.value))
    return lines


CONTENTS = tuple(
    Entry(section, name, f"tpuctl.cli.{module}", name in _GROUPS)
    for section, words in _SECTIONS.items()
    for module, name in (word.split(".") for word in words.split())
)
