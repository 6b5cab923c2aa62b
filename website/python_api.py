"""The public Python functions; mkdocstrings reads what they are from the code."""

import inspect
from types import ModuleType

import tpuctl

# Imported by name, the modules keep the order of the package's own table.
NAMES = [name for name in tpuctl.__all__ if name not in ("__version__", "load_ipython_extension")]


def pages() -> dict[str, str]:
    """Return the page by its address."""
    head = [
        "# Python",
        "",
        "Every command is a function of the same name, and returns what `--json` prints. In a notebook",
        "a result is a card; `print(result)` is the report, `.to_dict()` the data, `.save(path)` writes",
        "either. One that fails raises a `tpuctl.TpuctlError`; its `hint` says what to do next.",
        "`import tpuctl` loads no framework. For `%tpuctl`, `%%tpuprofile` and `%%tpulint`, see",
        "[in a notebook](../notebooks.md).",
    ]
    parts = [section for name in NAMES for section in _sections(name, getattr(tpuctl, name))]
    return {"reference/python.md": "\n".join([*head, *parts]) + "\n"}


def _sections(name: str, thing: object) -> list[str]:
    if isinstance(thing, ModuleType):
        members = getattr(thing, "__all__", None) or [
            each
            for each in dir(thing)
            if not each.startswith("_") and callable(getattr(thing, each))
        ]
        return [
            line for each in members for line in _section(f"{name}.{each}", getattr(thing, each))
        ]
    if inspect.isroutine(thing) or inspect.isclass(thing):
        return _section(name, thing)
    kind = type(thing)
    lines = _section(name, kind.__call__, bool("__call__" in vars(kind)))
    for each, member in vars(kind).items():
        if inspect.isroutine(member) and not each.startswith("_"):
            lines += _section(f"{name}.{each}", member)
    return lines


def _section(name: str, thing: object, is_there: bool = True) -> list[str]:
    path = path_of(thing)
    if not is_there or not path.startswith("tpuctl"):
        return []
    shown = [f"heading: tpuctl.{name}", f"toc_label: tpuctl.{name}", "members: false"]
    return ["", f"::: {path}", "    options:", *(f"      {each}" for each in shown)]


def path_of(thing: object) -> str:
    """Where a function is defined, which is also its place on the page."""
    return f"{getattr(thing, '__module__', '')}.{getattr(thing, '__qualname__', '')}"
