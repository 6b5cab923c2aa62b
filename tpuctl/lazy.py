"""Public names of a package that are loaded when they are first asked for."""

import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy(
    name: str, modules: Mapping[str, str], package: str | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make `__getattr__` and `__dir__` for the module `name` from the modules that have its names.

    The modules are named relative to `package`, by default `name` itself. A name that was asked for
    stays in the module.
    """
    below = package or name

    def load(wanted: str) -> Any:
        if wanted not in modules:
            raise AttributeError(f"module {name!r} has no attribute {wanted!r}")
        import importlib

        found = getattr(importlib.import_module(f"{below}.{modules[wanted]}"), wanted)
        setattr(sys.modules[name], wanted, found)
        return found

    def names() -> list[str]:
        return sorted({*vars(sys.modules[name]), *modules})

    return load, names
