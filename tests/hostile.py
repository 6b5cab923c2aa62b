"""Results in which every text is hostile, made from the types of their fields."""

import ast
import dataclasses
import enum
import importlib
import itertools
import sys
import typing
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from functools import cache
from pathlib import Path, PurePath
from types import NoneType, UnionType
from typing import Any

FORGED = "FORGED: all is well"
HOSTILE = (
    f"[/data][red]\x1b[31m\x9b2J\x1b]0;title\x07\u202egpj\u2069\x7f\x00\r\n{FORGED}\u2028x"
    "\udcff\u200b[link=http://a]b[/link]<script>alert(1)</script>\"'&"
)


@cache
def names_of(module: Any) -> dict[str, Any]:
    """What annotations in a module may name: also what it imports only for type checkers."""
    found = dict(vars(module))
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                if not hasattr(module, alias.name):
                    place = importlib.import_module(node.module)
                    found[alias.asname or alias.name] = getattr(place, alias.name, None)
    return found


@cache
def hints_of(thing: Any) -> dict[str, Any]:
    names: dict[str, Any] = {}
    parts = thing.__mro__[:-1] if isinstance(thing, type) else (thing,)
    for part in reversed(parts):
        names |= names_of(sys.modules[part.__module__])
    return typing.get_type_hints(thing, names)


def made(kind: Any, depth: int = 0) -> Any:
    """Make a value of a type; a text in it that is not one of a few is hostile."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return made(arguments[0], depth)
    if origin is typing.Literal:
        return arguments[0]
    if origin in (typing.Union, UnionType):
        return made(next(one for one in arguments if one is not NoneType), depth)
    if origin in (tuple, list, set, frozenset) or origin in (Sequence,):
        if origin is tuple and Ellipsis not in arguments:
            return tuple(made(one, depth) for one in arguments)
        return (tuple if origin is Sequence else origin)([made(arguments[0], depth)])
    if origin in (dict, Mapping):
        return {made(arguments[0], depth): made(arguments[1], depth)}
    if origin is not None or kind is Any:
        return None
    return made_simple(kind, depth)


# Where a text is one of a few, although its type does not say so.
WORDS = {"severity": "warning", "generation": "v5e"}
FLOATS = itertools.count(0.5, 0.25)
SIMPLE: dict[Any, Any] = {
    str: HOSTILE, int: 3, bool: True, bytes: b"x", object: None, NoneType: None,
    datetime: datetime(2026, 1, 2, tzinfo=timezone.utc),
}  # fmt: skip


def made_simple(kind: Any, depth: int) -> Any:
    if kind is float:
        # None is twice the same, as a start and an end would be.
        return next(FLOATS)
    if kind in SIMPLE:
        return SIMPLE[kind]
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return next(iter(kind))
    if isinstance(kind, type) and issubclass(kind, PurePath):
        return Path(HOSTILE.replace("\x00", ""))
    if isinstance(kind, type) and issubclass(kind, Exception):
        return kind(HOSTILE)
    if dataclasses.is_dataclass(kind):
        return made_dataclass(kind, depth + 1)
    return None


def made_dataclass(kind: Any, depth: int) -> Any:
    hints = hints_of(kind)
    value = object.__new__(kind)
    for field in dataclasses.fields(kind):
        part = made(hints[field.name], depth) if depth < 12 else None
        if field.metadata.get("lines"):
            part = HOSTILE.replace("\n", "")
        object.__setattr__(value, field.name, WORDS.get(field.name, part))
    return value
