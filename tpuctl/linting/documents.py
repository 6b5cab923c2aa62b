"""Read a script or a notebook for the linter; what cannot be read is one clear finding."""

from __future__ import annotations

import ast
import io
import json
import os
import re
import sys
import tokenize
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tpuctl.codec import open_regular
from tpuctl.errors import NotFoundError
from tpuctl.linting.cells import Cell, Command, code_cells, is_python, parse, read_cell
from tpuctl.linting.models import Hit, as_dict
from tpuctl.units import format_bytes

_LARGEST = {".ipynb": 64 << 20}
_LARGEST_SCRIPT = 4 << 20
_SUFFIXES = (".py", ".ipynb")
_SKIPPED_FOLDERS = {"__pycache__", "node_modules", "site-packages", "venv", "build", "dist"}
_PYTHON_2 = re.compile(
    r"^[ \t]*(?:print[ \t]+[^=(\s,.]|print[ \t]*>>|except[ \t]+[\w.]+[ \t]*,[ \t]*\w+[ \t]*:"
    r"|exec[ \t]+[\"'\w]|raise[ \t]+\w+[ \t]*,[ \t]*[\"'\w])|\bur?'[^']*'|<>|[^\w.]0\d+\b|\d[lL]\b",
    re.MULTILINE,
)
# Syntax of Python 3.11 to 3.14: type parameters, type statements, except*, t-strings.
_NEWER = re.compile(
    r"^[ \t]*(?:(?:class|(?:async[ \t]+)?def)[ \t]+\w+\[|type[ \t]+\w+.*=|except\*)|\bt[\"']",
    re.MULTILINE,
)
TOP: tuple[int, int] = (1, 0)


@dataclass(frozen=True)
class Document:
    """A script, or the cells of a notebook that share a namespace, as one text.

    `problem` says why there is nothing to check, or not all of it.
    """

    path: Path
    raw: str
    text: str
    tree: ast.Module
    cells: tuple[Cell, ...] = ()
    starts: tuple[int, ...] = ()
    metadata: dict[str, Any] | None = None
    problem: Hit | None = None
    encoding: str = "utf-8"

    @property
    def is_notebook(self) -> bool:
        """Whether this is a notebook."""
        return self.metadata is not None

    @property
    def commands(self) -> Iterator[Command]:
        """The magics and shell lines, with line numbers in the whole text."""
        for cell, start in zip(self.cells, self.starts, strict=True):
            for command in cell.commands:
                yield Command(start + command.line - 1, command.column, command.text)

    def place(self, line: int) -> tuple[int | None, int]:
        """Return the cell's number and the line in it."""
        if not self.cells:
            return None, line
        at = max(0, bisect_right(self.starts, line) - 1)
        return self.cells[at].number, line - self.starts[at] + 1


class Columns:
    """Where the bytes of UTF-8 that `ast` counts are in a line's characters."""

    def __init__(self, text: str) -> None:
        self._lines = text.split("\n")
        self._known: dict[int, list[int]] = {}

    def __call__(self, line: int, offset: int) -> int:
        """Return the column, from 0, of a byte of a line, from 1."""
        text = self._lines[line - 1] if line <= len(self._lines) else ""
        if text.isascii():
            return offset
        if line not in self._known:
            self._known[line] = [at for at, letter in enumerate(text) for _ in letter.encode()]
        known = self._known[line]
        return known[offset] if offset < len(known) else len(text)


def find_files(paths: Iterable[str | os.PathLike[str]]) -> Iterator[Path]:
    """Yield the files to lint: named ones, and the scripts and notebooks in folders.

    Raises NotFoundError for a path that does not exist.
    """
    for path in map(Path, paths):
        if path.is_dir():
            yield from sorted(_in_folder(path))
        elif path.exists() or path.is_symlink():
            yield path
        else:
            raise NotFoundError(f"Could not lint {path}: it does not exist.")


def _in_folder(folder: Path) -> Iterator[Path]:
    for here, folders, names in os.walk(folder):
        folders[:] = [f for f in folders if not f.startswith(".") and f not in _SKIPPED_FOLDERS]
        yield from (Path(here, name) for name in names if name.endswith(_SUFFIXES))


def read_documents(path: Path) -> list[Document]:
    """Read a file; a notebook that writes Python files has a document for each of them."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            most = _LARGEST.get(path.suffix, _LARGEST_SCRIPT)
            if size > most:
                return [_unread(path, "T005", _too_large(path, size, most))]
            content = file.read(most + 1)
    except OSError as error:
        return [_unread(path, "T004", f"Could not read the file: {error.strerror}.")]
    encoding, raw = _decoded(content)
    if raw is None:
        what = "The file is binary, or its text is in neither UTF-8 nor the encoding it declares."
        return [_unread(path, "T004", what)]
    if path.suffix == ".ipynb":
        return [replace(each, encoding=encoding) for each in read_notebook(path, raw)]
    return [replace(read_script(path, raw), encoding=encoding)]


def _too_large(path: Path, size: int, most: int) -> str:
    what = f"The file was not read: {format_bytes(size)}, and the limit is {format_bytes(most)}."
    if path.suffix == ".ipynb":
        what += " Clear its outputs: jupyter nbconvert --clear-output --inplace FILE"
    return what


def _unread(path: Path, code: str, message: str) -> Document:
    return Document(path, "", "", ast.Module([], []), problem=Hit(code, TOP, message))


def _decoded(content: bytes) -> tuple[str, str | None]:
    """Decode Python as Python does: a byte order mark, a coding comment, else UTF-8."""
    if b"\0" in content:
        return "", None
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        return encoding, content.decode(encoding)
    except (SyntaxError, UnicodeDecodeError, LookupError):
        return "", None


def read_script(path: Path, raw: str) -> Document:
    """Read a script."""
    text = raw.replace("\r\n", "\n").replace("\r", "\n")
    if not text.strip() and path.name != "__init__.py":
        return Document(
            path, raw, "", ast.Module([], []), problem=Hit("T003", TOP, "The file is empty.")
        )
    tree, problem = _parsed(text)
    return Document(path, raw, text, tree, problem=problem)


def _parsed(text: str) -> tuple[ast.Module, Hit | None]:
    try:
        return parse(text), None
    except SyntaxError as error:
        return ast.Module([], []), _syntax_hit(text, error, 0)
    except (ValueError, RecursionError, MemoryError) as error:
        what = f"The code could not be parsed: {type(error).__name__}, it is nested too deeply."
        return ast.Module([], []), Hit("T002", TOP, what)


def _syntax_hit(text: str, error: SyntaxError, start: int) -> Hit:
    at = (start + (error.lineno or 1), max(0, (error.offset or 1) - 1))
    if _PYTHON_2.search(text) or "print" in (error.msg or "").partition("(")[0].lower():
        return Hit("T001", at, "This is Python 2, which no TPU runtime of today has.")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if (error.msg or "").startswith("f-string") or _NEWER.search(text):
        message = f"Not checked: this seems to need a newer Python than {version}: {error.msg}."
        return Hit("T002", at, message, "maybe")
    return Hit("T002", at, f"The code does not parse: {error.msg}.")


def read_notebook(path: Path, raw: str) -> list[Document]:
    """Read a notebook; cells that do not parse are left out, and named in one finding."""
    if not raw.strip():
        return [_unread(path, "T003", "The notebook is empty: no JSON at all.")]
    try:
        notebook = json.loads(raw, strict=False)
    except (ValueError, RecursionError) as error:
        what = f"This is not a complete notebook: its JSON ends or breaks ({error})."
        return [_unread(path, "T006", what)]
    if not isinstance(notebook, dict) or not ({"cells", "worksheets"} & notebook.keys()):
        return [_unread(path, "T006", "This is JSON, but not a notebook: it has no cells.")]
    metadata = as_dict(notebook.get("metadata"))
    cells = [read_cell(number, text) for number, text in code_cells(notebook)]
    if not any(cell.text.strip() for cell in cells):
        return [_unread(path, "T003", "The notebook has no code.")]
    language = as_dict(metadata.get("kernelspec")).get("language", "python")
    if str(language).lower() not in ("python", "python3", "python2"):
        what = f"The notebook is written in {language}, not in Python."
        return [_unread(path, "T006", what)]
    together = tuple(cell for cell in cells if not cell.is_separate)
    written = [_joined(path, raw, (cell,), {}) for cell in cells if cell.is_separate]
    return [_joined(path, raw, together, metadata), *written]


def _joined(path: Path, raw: str, cells: tuple[Cell, ...], metadata: dict[str, Any]) -> Document:
    starts, line = [], 1
    for cell in cells:
        starts.append(line)
        line += cell.python.count("\n") + 1
    text = "\n".join(cell.python for cell in cells)
    problem = None
    if not is_python(text):
        broken = {n: cell for n, cell in enumerate(cells) if not is_python(cell.python)}
        problem = _broken_cells(list(broken.values()), starts[min(broken)]) if broken else None
        parts = enumerate(cell.python for cell in cells)
        text = "\n".join("\n" * part.count("\n") if n in broken else part for n, part in parts)
    tree, late = _parsed(text)
    return Document(path, raw, text, tree, cells, tuple(starts), metadata, problem=problem or late)


def _broken_cells(broken: list[Cell], start: int) -> Hit:
    _, hit = _parsed(broken[0].python)
    assert hit is not None
    line, column = hit.node if isinstance(hit.node, tuple) else TOP
    others = ", ".join(str(cell.number) for cell in broken[1:])
    more = f" Cells {others} do not parse either." if others else ""
    message = f"{hit.message}{more} The other cells were checked."
    return Hit(hit.code, (start + line - 1, column), message, hit.severity)
