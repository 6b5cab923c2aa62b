"""The notebook that we run in: its file, its worst finding, and its cells while they run."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from tpuctl.diagnosis.report import OwnNotebook
from tpuctl.errors import UsageError
from tpuctl.linting.cells import Cell, parse, read_cell
from tpuctl.linting.documents import Document, read_documents
from tpuctl.linting.lint import Selection, check, most_severe, ordered
from tpuctl.linting.models import Linting
from tpuctl.linting.targets import own_target, target

_COLAB = (
    "Colab keeps the notebook on Google Drive, and its runtime does not see the file;"
    " download it and run tpuctl lint FILE"
)


def look_at_own_notebook(
    runtime: str, environment: Mapping[str, str] = os.environ
) -> OwnNotebook | None:
    """Lint the notebook that we run in; None outside of a notebook.

    VS Code names the file in the kernel, Jupyter in JPY_SESSION_NAME, Colab nowhere.
    """
    path = _file(environment)
    nothing = OwnNotebook(str(path), 0, None, None, None, None, None, why_null=None)
    if path is None:
        colab = replace(nothing, path=None, why_null=_COLAB)
        return colab if runtime.startswith("colab") else None
    documents = read_documents(path)
    where = own_target(documents[0].metadata, target(None))
    placed = (each for document in documents for each in check(document, where, Selection()))
    found = ordered(each.finding for each in placed)
    worst = most_severe(found)
    if worst is None:
        return nothing
    named = {name: getattr(worst, name) for name in ("cell", "line", "code", "severity", "message")}
    return replace(nothing, findings=len(found), **named)


def _file(environment: Mapping[str, str]) -> Path | None:
    shell = _shell()
    in_kernel = shell.user_ns.get("__vsc_ipynb_file__") if shell is not None else None
    for name in (in_kernel, environment.get("JPY_SESSION_NAME")):
        if isinstance(name, str) and name.endswith(".ipynb") and Path(name).is_file():
            return Path(name)
    return None


def _shell() -> Any:
    """Return the shell of the kernel, without importing IPython where it is not running."""
    module = sys.modules.get("IPython")
    return module.get_ipython() if module is not None else None


def lint_cell(text: str, names: Mapping[str, object], *, runtime: str | None = None) -> Linting:
    """Check one cell of a running notebook, whose names say what was imported before.

    Raises UsageError if the cell does not parse.
    """
    before = "\n".join(_imports(names))
    cells = (Cell(0, before, before, (), ()), read_cell(1, text))
    starts = (1, before.count("\n") + 2)
    whole = f"{before}\n{cells[1].python}"
    try:
        document = Document(Path("cell"), text, whole, parse(whole), cells, starts, {})
    except SyntaxError as error:
        line = (error.lineno or 1) - starts[1] + 1
        raise UsageError(f"The cell does not parse: {error.msg}, line {line}.") from None
    where = target(runtime)
    placed = (each.finding for each in check(document, where, Selection()))
    found = (replace(each, cell=None, fixable=False) for each in placed if each.cell == 1)
    return Linting(ordered(found), 1, 0, where.name)


def _imports(names: Mapping[str, object]) -> Iterator[str]:
    """Write the imports that would bind the names of a namespace."""
    for name, value in list(names.items()):
        if not name.isidentifier() or name.startswith("_"):
            continue
        if isinstance(value, ModuleType):
            yield f"import {value.__name__} as {name}"
            continue
        module, own = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        if not isinstance(module, str) or not isinstance(own, str) or module == "__main__":
            continue
        if own.isidentifier() and all(map(str.isidentifier, module.split("."))):
            yield f"from {module} import {own} as {name}"
