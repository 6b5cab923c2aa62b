"""Apply the edits of findings to files; a file is changed as a whole, or not at all."""

from __future__ import annotations

import ast
import difflib
import json
import re
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tpuctl.lazy import need_modules
from tpuctl.linting.cells import code_cells, is_python, parse, with_sources
from tpuctl.linting.documents import Document, read_notebook, read_script
from tpuctl.linting.lint import Placed, Selection, check, shown
from tpuctl.linting.models import Change, Edit
from tpuctl.linting.targets import Target

# An edit inside another one is found again after it; more rounds than this mean a circle.
_ROUNDS = 6
_LINES = re.compile(r"[^\n]*\n|[^\n]+")
# Modules that never import a framework.
_HARMLESS = {*sys.stdlib_module_names, "numpy", "pandas", "matplotlib", "PIL", "scipy", "six"}


@dataclass(frozen=True)
class Fixed:
    """A file's new text, how many findings are gone, and what is left in it."""

    raw: str
    fixed: int
    left: list[Placed]
    note: str | None = None


def fix(documents: Sequence[Document], target: Target, wanted: Selection) -> Fixed:
    """Apply all edits to the documents of one file, until there are none left.

    Raises MissingExtraError without LibCST or nbformat.
    """
    need_modules("Fixing code", "libcst", extra="lint")
    if documents[0].is_notebook:
        need_modules("Fixing notebooks", "nbformat", extra="lint")
    raw, now = documents[0].raw, list(documents)
    first = _found(now, target, wanted)
    left = first
    for _ in range(_ROUNDS):
        if not any(placed.hit.edits or placed.hit.group for placed in left):
            break
        try:
            changed = _applied(now, left)
            again = _read(documents[0], changed)
            _check(now, again, raw, changed)
        except (ValueError, RecursionError) as error:
            return Fixed(raw, len(first) - len(left), left, f"{shown(documents[0].path)}: {error}")
        if changed == raw:
            break
        raw, now = changed, again
        left = _found(now, target, wanted)
    return Fixed(raw, max(0, len(first) - len(left)), left)


def _found(documents: Sequence[Document], target: Target, wanted: Selection) -> list[Placed]:
    return [placed for document in documents for placed in check(document, target, wanted)]


def _read(document: Document, raw: str) -> list[Document]:
    if document.is_notebook:
        return read_notebook(document.path, raw)
    return [replace(read_script(document.path, raw), encoding=document.encoding)]


def _applied(documents: Sequence[Document], found: Sequence[Placed]) -> str:
    """Return the file's text with the edits of all findings."""
    edits: dict[tuple[ast.AST, str], Edit] = {}
    groups = {id(placed.hit.group): placed.hit.group for placed in found}
    for group in (*(placed.hit.edits for placed in found), *groups.values()):
        for edit in group:
            edits.setdefault((edit.node, edit.kind), edit)
    if not documents[0].is_notebook:
        return _changed(documents[0].raw, documents[0].text, list(edits.values()), 1)
    sources: dict[int, str] = {}
    for document in documents:
        sources |= _changed_cells(document, list(edits.values()))
    return with_sources(documents[0].raw, sources) if sources else documents[0].raw


def _changed(raw: str, text: str, edits: list[Edit], first_line: int) -> str:
    from tpuctl.linting._edits import add_lines, apply

    made = apply(raw, edits, first_line=first_line) if edits else raw
    needs = list(dict.fromkeys(line for edit in edits for line in edit.needs))
    if needs and not _imports_framework(text):
        raise ValueError("not changed: no import at the top level to put new imports before")
    return add_lines(made, needs, _import_line(text, edits, first_line)) if needs else made


def _import_line(text: str, edits: Sequence[Edit], first_line: int) -> int:
    """Return the line for new imports: before the first of a framework, and what is edited."""
    edited = {getattr(edit.node, "lineno", 1) - first_line + 1 for edit in edits}
    start = end = head = 0
    for number, node in enumerate(parse(text).body):
        if node.lineno > end:
            start = min(each.lineno for each in (node, *getattr(node, "decorator_list", ())))
        end = node.end_lineno or node.lineno
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if (is_text and not number) or getattr(node, "module", None) == "__future__":
            head = end
        elif _is_framework_import(node) or not edited.isdisjoint(range(start, end + 1)):
            break
    if start <= head:
        raise ValueError("not changed: the first import shares a line with what must come first")
    return start


def _imports_framework(text: str) -> bool:
    return is_python(text) and any(map(_is_framework_import, parse(text).body))


def _is_framework_import(node: ast.stmt) -> bool:
    return isinstance(node, (ast.Import, ast.ImportFrom)) and not _is_harmless(node)


def _is_harmless(node: ast.Import | ast.ImportFrom) -> bool:
    names = (
        [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
    )
    roots = {name.partition(".")[0] for name in names}
    return roots <= _HARMLESS


def _changed_cells(document: Document, edits: list[Edit]) -> dict[int, str]:
    """Return the new text of each changed cell; new imports go to the first that needs them."""
    from tpuctl.linting._edits import add_lines, apply

    by_cell: dict[int, list[Edit]] = defaultdict(list)
    own = {id(node) for node in ast.walk(document.tree)}
    mine = [edit for edit in edits if id(edit.node) in own]
    for edit in mine:
        number, _ = document.place(getattr(edit.node, "lineno", 1))
        by_cell[number or 0].append(edit)
    needs = list(dict.fromkeys(line for edit in mine for line in edit.needs))
    if needs and not any(_imports_framework(cell.python) for cell in document.cells):
        raise ValueError("no cell imports anything, so there is no place for the new imports")
    made: dict[int, str] = {}
    for cell, start in zip(document.cells, document.starts, strict=True):
        python, here = cell.python, by_cell[cell.number]
        if here:
            python = apply(python, here, first_line=start)
        is_changed = any(edit.kind not in ("remove", "unwrap") for edit in here)
        if needs and (is_changed or _imports_framework(cell.python)):
            python = add_lines(python, needs, _import_line(cell.python, here, start))
            needs = []
        if python != cell.python:
            made[cell.number] = cell.restored(python)
    return made


def _check(before: Sequence[Document], after: Sequence[Document], old: str, new: str) -> None:
    """Raise ValueError if a change would break what was whole."""
    broken = [document.problem for document in before if document.problem]
    now = [document.problem for document in after if document.problem]
    if len(now) > len(broken):
        raise ValueError("not changed: the result would not parse. Please report this")
    if before[0].is_notebook:
        _check_notebook(old, new)


def _check_notebook(old: str, new: str) -> None:
    from tpuctl.linting._edits import notebook_format

    one, other = json.loads(old, strict=False), json.loads(new, strict=False)
    for notebook in (one, other):
        for cell in notebook["cells"]:
            if cell.get("cell_type") == "code":
                cell["source"] = ""
    if one != other or len(list(code_cells(one))) != len(list(code_cells(other))):
        raise ValueError("not changed: more than code would change. Please report this")
    if notebook_format(new) < 4:
        raise ValueError("not changed: save it in notebook format 4 first")


def describe_change(document: Document, fixed: Fixed) -> Change:
    """Write what changed as a unified diff; of a notebook, cell by cell."""
    name = shown(document.path)
    if not document.is_notebook:
        return Change(name, fixed.fixed, _diff(document.raw, fixed.raw, name))
    before = dict(code_cells(json.loads(document.raw, strict=False)))
    after = dict(code_cells(json.loads(fixed.raw, strict=False)))
    parts = [
        _diff(before[number], after[number], f"{name}:cell {number}")
        for number in before
        if before[number] != after[number]
    ]
    return Change(name, fixed.fixed, "".join(parts))


def _diff(old: str, new: str, name: str) -> str:
    # Not splitlines(): a form feed and the like are within a line, as patch and Python read it.
    lines = difflib.unified_diff(
        _LINES.findall(old),
        _LINES.findall(new),
        f"a/{name.lstrip('/')}",
        f"b/{name.lstrip('/')}",
    )
    none = "\n\\ No newline at end of file\n"
    return "".join(line if line.endswith("\n") else f"{line}{none}" for line in lines)
