"""Notebooks: code cells as Python, magics and shell lines apart, and edits that keep the rest."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from textwrap import dedent, indent
from typing import Any

_MAGIC = re.compile(r"\s*(?:[%!]|\?\??\s*\w)")
_ASSIGNED = re.compile(r"([\w.,\s\[\]\"']+=\s*)([!%](?!=).*)", re.DOTALL)
# What IPython runs as a magic without a %, where it is not Python.
_AUTOMAGIC = re.compile(
    r"\s*(?:cat|cd|cp|env|ls|ll|man|mkdir|mv|pip|conda|pwd|rm|rmdir|time|timeit|load_ext|matplotlib)"
    r"(?:[ \t]+[^=].*|[ \t]*)"
)
_HELP = re.compile(r"\s*[\w.]+\?{1,2}\s*$")
_OLD_CELL_MAGIC = re.compile(r"%(\w+)")  # of Datalab, where one % was enough
# Cell magics whose body is Python, run in the same namespace.
_PYTHON_MAGICS = {"time", "timeit", "capture", "prun", "tpuprofile", "tpulint", "debug", "memit"}
_SHELL_MAGICS = {"bash", "sh", "shell", "script", "system", "sx"}
_PLACE = "tpuctl_magic_{}__"
_PLACES = re.compile(r"\(tpuctl_magic_(\d+)__\n*\)|tpuctl_magic_(\d+)__")


@dataclass(frozen=True)
class Command:
    """A magic or a shell line; `text` begins with %, %% or !."""

    line: int
    column: int
    text: str


@dataclass(frozen=True)
class Cell:
    """A code cell: its number in the notebook, its text, and the same with magics replaced."""

    number: int
    text: str
    python: str
    commands: tuple[Command, ...]
    magics: tuple[str, ...]
    is_separate: bool = False
    indent: str = ""

    def restored(self, python: str) -> str:
        """Put the magics back into changed Python."""
        text = _PLACES.sub(lambda found: self.magics[int(found[1] or found[2])], python)
        return indent(text, self.indent) if self.indent else text


def parse(text: str) -> ast.Module:
    """Parse Python, with await at the top level as in a notebook; raises SyntaxError."""
    flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = compile(text, "<unread>", "exec", flags, dont_inherit=True)
    assert isinstance(tree, ast.Module)
    return tree


def is_python(text: str) -> bool:
    """Whether a text parses."""
    try:
        parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def read_cell(number: int, text: str) -> Cell:
    """Separate the magics and shell lines of a cell from its Python."""
    lines = text.split("\n")
    first = next((at for at, line in enumerate(lines) if line.strip()), 0)
    name = _cell_magic(lines[first])
    if name and name not in _PYTHON_MAGICS:
        return _other_cell(number, text, lines, first, name)
    if not name and (not any(map(_looks_like_magic, lines)) or is_python(text)):
        return _dedented(Cell(number, text, text, (), ()))
    commands: list[Command] = []
    magics: list[str] = []
    made = []
    for start, logical in _statements(lines):
        made.append(_masked(start, logical, commands, magics))
    cell = Cell(number, text, "\n".join(made), tuple(commands), tuple(magics))
    old = _OLD_CELL_MAGIC.match(lines[first])
    if old and not name and len(lines) > first + 1 and not is_python(cell.python):
        return _other_cell(number, text, lines, first, old[1])
    return _dedented(cell)


def _dedented(cell: Cell) -> Cell:
    """Take away the indentation of a whole cell, as IPython does."""
    margin = cell.python[: len(cell.python) - len(cell.python.lstrip(" \t"))]
    plain = dedent(cell.python)
    if not margin or indent(plain, margin) != cell.python or is_python(cell.python):
        return cell
    return replace(cell, python=plain, indent=margin)


def _other_cell(number: int, text: str, lines: list[str], first: int, name: str) -> Cell:
    """Read a cell in another language: shell commands, a Python file, or nothing of interest."""
    head = Command(first + 1, 0, lines[first].strip())
    rest = lines[first + 1 :]
    if name == "writefile" and head.text.rstrip().endswith(".py"):
        python = "\n".join(["tpuctl_magic_0__" if at == first else "" for at in range(first + 1)])
        return Cell(number, text, "\n".join([python, *rest]), (head,), (lines[first],), True)
    commands = [head]
    if name in _SHELL_MAGICS:
        commands += [
            Command(first + 2 + at, 0, f"!{line}") for at, line in enumerate(rest) if line.strip()
        ]
    return Cell(number, text, "\n" * (len(lines) - 1), tuple(commands), ())


def _cell_magic(line: str) -> str:
    return line.split()[0][2:] if line.startswith("%%") and len(line.split()[0]) > 2 else ""


def _looks_like_magic(line: str) -> bool:
    return bool(_MAGIC.match(line) or _HELP.match(line) or _ASSIGNED.fullmatch(line)) or (
        bool(_AUTOMAGIC.fullmatch(line)) and not is_python(line.strip())
    )


def _statements(lines: list[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield lines by themselves, and shell lines with those that a backslash joins to them.

    A line within brackets or a string is never taken for a magic.
    """
    state = _Lexer()
    at = 0
    while at < len(lines):
        end = at + 1
        if state.is_open or not _looks_like_magic(lines[at]):
            state.read(lines[at])
            yield -1, lines[at:end]
        else:
            while lines[end - 1].endswith("\\") and end < len(lines):
                end += 1
            yield at, lines[at:end]
        at = end


def _masked(start: int, lines: list[str], commands: list[Command], magics: list[str]) -> str:
    """Return Python of as many lines in place of a magic, and record the magic."""
    text = "\n".join(lines)
    if start < 0:
        return text
    assigned = _ASSIGNED.fullmatch(text)
    plain = text.lstrip()
    head, magic = (assigned[1], assigned[2]) if assigned else (text[: -len(plain)], plain)
    sign = "%" if _AUTOMAGIC.fullmatch(magic) else ""
    commands.append(Command(start + 1, len(head), sign + magic.strip().replace("\\\n", " ")))
    place = _PLACE.format(len(magics))
    magics.append(magic)
    return head + (f"({place}" + "\n" * (len(lines) - 1) + ")" if len(lines) > 1 else place)


class _Lexer:
    """Whether the end of a line is inside brackets or a triple-quoted string."""

    def __init__(self) -> None:
        self._quote = ""
        self._depth = 0

    @property
    def is_open(self) -> bool:
        return bool(self._quote) or self._depth > 0

    def read(self, line: str) -> None:
        at = 0
        while at < len(line):
            three = line[at : at + 3]
            if self._quote:
                if line[at] == "\\":
                    at += 1
                elif line.startswith(self._quote, at):
                    at += len(self._quote) - 1
                    self._quote = ""
            elif line[at] == "#":
                break
            elif line[at] in "\"'":
                self._quote = three if three in ('"""', "'''") else line[at]
                at += len(self._quote) - 1
            else:
                self._depth += (line[at] in "([{") - (line[at] in ")]}")
            at += 1
        # A string in single quotes ends with its line, unless a backslash continues it.
        if len(self._quote) == 1 and not line.endswith("\\"):
            self._quote = ""
        self._depth = max(0, self._depth)


def code_cells(notebook: dict[str, Any]) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of every code cell, also of the old format 3."""
    cells = notebook.get("cells")
    if not isinstance(cells, list):
        sheets = notebook.get("worksheets")
        sheets = sheets if isinstance(sheets, list) else []
        cells = [c for s in sheets if isinstance(s, dict) for c in s.get("cells") or ()]
    for number, cell in enumerate(cells, 1):
        if isinstance(cell, dict) and cell.get("cell_type") == "code":
            source = cell.get("source", cell.get("input", ""))
            lines = source if isinstance(source, list) else [source]
            text = "".join(line for line in lines if isinstance(line, str))
            yield number, text.replace("\r\n", "\n").replace("\r", "\n")


def with_sources(raw: str, sources: dict[int, str]) -> str:
    """Replace the text of cells in a notebook's JSON; every other character stays.

    `sources` is by the number of the cell. Raises ValueError for JSON of another form.
    """
    made, done = [], 0
    for number, (start, end) in enumerate(_source_spans(raw), 1):
        if number in sources and start:
            made += [raw[done:start], _as_json(sources[number], raw[start:end], raw)]
            done = end
    return "".join([*made, raw[done:]])


def _as_json(text: str, like: str, raw: str) -> str:
    """Write the text of a cell as the notebook writes it; lines that it had stay as they were."""
    ascii_only = raw.isascii()
    before = json.loads(like, strict=False)
    if "\r\n" in "".join(before):
        text = text.replace("\n", "\r\n")
    if not like.startswith("["):
        return json.dumps(text, ensure_ascii=ascii_only)
    tokens = {json.loads(like[s:e], strict=False): like[s:e] for s, e in _elements(like, 0)}
    items = [
        tokens.get(line) or json.dumps(line, ensure_ascii=ascii_only)
        for line in text.splitlines(keepends=True)
    ]
    inner = re.match(r"\[(\s*)", like)
    gap = inner[1] if inner else ""
    tail = re.search(r"(\s*)\]$", like)
    separator = f",{gap}" if "\n" in gap else ", "
    return f"[{gap}{separator.join(items)}{tail[1] if tail else ''}]" if items else "[]"


def _source_spans(raw: str) -> Iterator[tuple[int, int]]:
    """Yield where the `source` of each cell is in the JSON; (0, 0) for a cell without one."""
    cells = next((at for key, at, _ in _members(raw, 0) if key == "cells"), None)
    if cells is None:
        raise ValueError("not changed: save it in notebook format 4 first")
    for start, _ in _elements(raw, cells):
        found = [(at, end) for key, at, end in _members(raw, start) if key == "source"]
        yield found[-1] if found else (0, 0)


_SPACE = re.compile(r"[ \t\n\r]*")
_decode = json.JSONDecoder(strict=False).raw_decode


def _skip(raw: str, at: int) -> int:
    found = _SPACE.match(raw, at)
    return found.end() if found else at


def _members(raw: str, at: int) -> Iterator[tuple[str, int, int]]:
    """Yield key, start and end of each value of the JSON object that starts near `at`."""
    at = _skip(raw, at)
    if raw[at] != "{":
        raise ValueError("not an object")
    at = _skip(raw, at + 1)
    while raw[at] == '"':
        key, at = _decode(raw, at)
        start = _skip(raw, _skip(raw, at) + 1)
        _, end = _decode(raw, start)
        yield key, start, end
        at = _skip(raw, end)
        if raw[at] != ",":
            return
        at = _skip(raw, at + 1)


def _elements(raw: str, at: int) -> Iterator[tuple[int, int]]:
    at = _skip(raw, at + 1)
    while raw[at] != "]":
        _, end = _decode(raw, at)
        yield at, end
        at = _skip(raw, end)
        at = _skip(raw, at + 1) if raw[at] == "," else at
