"""Public names of a package that are loaded when they are first used, and optional modules."""

import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy(
    name: str, modules: Mapping[str, str], package: str | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make `__getattr__` and `__dir__` of the module `name` from the modules that define its names.

    The modules are named relative to `package`, by default `name` itself; an empty one means that
    the public name is a module itself.
    """
    parent = package or name

    def load(wanted: str) -> Any:
        if wanted not in modules:
            raise AttributeError(f"module {name!r} has no attribute {wanted!r}")
        import importlib

        if not modules[wanted]:
            return importlib.import_module(f"{parent}.{wanted}")
        found = getattr(importlib.import_module(f"{parent}.{modules[wanted]}"), wanted)
        setattr(sys.modules[name], wanted, found)
        return found

    def names() -> list[str]:
        return sorted(modules)

    return load, names


def need_modules(what: str, *modules: str, extra: str) -> None:
    """Raise MissingExtraError if `what` needs a module that is not installed; imports none."""
    from importlib.util import find_spec

    from tpuctl.errors import MissingExtraError

    for module in modules:
        if find_spec(module) is None:
            raise MissingExtraError(what, extra=extra, module=module)
