"""One page for each command, from its own help."""

import html
import inspect
import re
from collections.abc import Iterator
from typing import Any

from typer._click.core import Context

from tests import contract
from tpuctl.cli.app import _load
from tpuctl.cli.contents import CONTENTS
from website.python_api import path_of

COMMON = {"--json", "--verbose", "--debug"}


def commands() -> Iterator[tuple[str, Any]]:
    """Yield every command that can be run, by its words: `data presize`."""
    for entry in CONTENTS:
        loaded = _load(entry)
        below = getattr(loaded, "commands", {})
        if not below or getattr(loaded, "invoke_without_command", False):
            yield entry.name, loaded
        for name, command in below.items():
            yield f"{entry.name} {name}", command


def examples(command: Any) -> list[str]:
    """The command lines at the end of a command's help."""
    lines = (command.epilog or "").replace(r"\[", "[").splitlines()
    return [line for line in lines if line.startswith(("tpuctl ", "eval "))]


def pages() -> dict[str, str]:
    """Return every page by its address."""
    every = dict(commands())
    written = {
        f"reference/commands/{slug(words)}.md": _page(words, every[words]) for words in every
    }
    return {"reference/commands/index.md": _index(every), **written}


def slug(words: str) -> str:
    """The name of a command's page."""
    return words.replace(" ", "-")


def _index(every: dict[str, Any]) -> str:
    lines = ["# Commands", "", "Each has its options, examples, Python function and JSON document."]
    for section in dict.fromkeys(entry.section for entry in CONTENTS):
        names = [entry.name for entry in CONTENTS if entry.section == section]
        lines += ["", f"## {section}", "", "| command | what it does |", "|---|---|"]
        for words, command in every.items():
            if words.split()[0] in names:
                summary = (command.help or "").partition("\n")[0]
                lines.append(f"| [`tpuctl {words}`]({slug(words)}.md) | {_cell(summary)} |")
    return "\n".join(lines) + "\n"


def _page(words: str, command: Any) -> str:
    context = Context(command, info_name=f"tpuctl {words}")
    arguments, options = [], []
    for parameter in command.params:
        name, text = parameter.get_help_record(context) or ("", "")
        is_argument = type(parameter).__name__ == "TyperArgument"
        if name and not COMMON & set(parameter.opts):
            (arguments if is_argument else options).append((name, text))
    usage = " ".join(
        ["tpuctl", words, "[OPTIONS]" * bool(options), *(_plain(a) for a, _ in arguments)]
    )
    parts = [f"# tpuctl {words}", _prose(command.help or ""), f"```text\n{usage.strip()}\n```"]
    parts += [_table("Argument", arguments), _table("Option", options)]
    parts.append("Every command also has `--json`, `-v` and `--debug`.")
    if lines := examples(command):
        parts += ["## Examples", "```sh\n" + "\n".join(lines) + "\n```"]
    parts += ["## In Python", _python(words), "## JSON", _json(words)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _plain(name: str) -> str:
    return re.sub(r" <\w+>$", "", name)


def _prose(text: str) -> str:
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


def _cell(text: str) -> str:
    return html.escape(" ".join(text.split()), quote=False).replace("|", "\\|")


def _table(title: str, rows: list[tuple[str, str]]) -> str:
    if not rows:
        return ""
    body = [f"| `{_plain(name)}` | {_cell(text)} |".replace("`|", "` |") for name, text in rows]
    return "\n".join([f"## {title}s", "", f"| {title.lower()} | meaning |", "|---|---|", *body])


def _python(words: str) -> str:
    function = contract.function_of(words)
    path = "demo.run" if words == "demo" else words.replace(" ", ".")
    first = (inspect.getdoc(function) or "").partition("\n")[0]
    return f"[`tpuctl.{path}`](../python.md#{path_of(function)}): {first}"


def _json(words: str) -> str:
    return f"The document that `--json` prints: [schema of `{words}`](../json/{slug(words)}.md)."
