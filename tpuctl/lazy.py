"""Public names of a package that are loaded when they are first used, and optional modules."""

import ast
import importlib
import sys
from collections.abc import Callable
from typing import Any


def lazy(name: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Make `__getattr__`, `__dir__` and `__all__` of a module from its TYPE_CHECKING imports.

    They are read from its source, so that what type checkers see is what there is.
    """
    with open(file, "rb") as source:
        blocks = (each for each in ast.parse(source.read()).body if isinstance(each, ast.If))
    guarded = (each for each in blocks if ast.unparse(each.test) == "TYPE_CHECKING")
    imports = (each for block in guarded for each in block.body if isinstance(each, ast.ImportFrom))
    modules = {alias.name: str(each.module) for each in imports for alias in each.names}

    def load(wanted: str) -> Any:
        if wanted not in modules:
            raise AttributeError(f"module {name!r} has no attribute {wanted!r}")
        if modules[wanted] == name:
            return importlib.import_module(f"{name}.{wanted}")
        found = getattr(importlib.import_module(modules[wanted]), wanted)
        setattr(sys.modules[name], wanted, found)
        return found

    def names() -> list[str]:
        return sorted(getattr(sys.modules[name], "__all__", modules))

    return load, names, list(modules)


def need_modules(what: str, *modules: str, extra: str) -> None:
    """Raise MissingExtraError if `what` needs a module that is not installed; imports none."""
    from importlib.util import find_spec

    from tpuctl.errors import MissingExtraError

    for module in modules:
        if find_spec(module) is None:
            raise MissingExtraError(what, extra=extra, module=module)
