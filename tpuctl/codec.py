"""Frozen dataclasses to plain JSON values and back, checked field by field."""

import base64
import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeVar

Record = TypeVar("Record")


def to_plain(value: Any) -> Any:
    """Reduce a dataclass to what JSON knows; a number that is not finite becomes null.

    Times become ISO 8601 text, bytes base64. A field whose metadata says `internal` is left out.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [f for f in dataclasses.fields(value) if not f.metadata.get("internal")]
        return {field.name: to_plain(getattr(value, field.name)) for field in fields}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def from_plain(cls: type[Record], value: Any) -> Record:
    """Make a dataclass from JSON values.

    Unknown keys are ignored. Raises ValueError for a missing key or a value of another type.
    """
    made = _read(cls, value, cls.__name__)
    assert isinstance(made, cls)
    return made


def _read(kind: Any, value: Any, where: str) -> Any:
    origin = typing.get_origin(kind)
    if kind is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        return _read_union(kind, value, where)
    if origin is typing.Literal:
        return _checked(value in typing.get_args(kind), value, where)
    if origin is tuple:
        return _read_tuple(typing.get_args(kind), value, where)
    if origin in (dict, Mapping):
        return dict(_checked(isinstance(value, dict), value, where))
    if isinstance(kind, type) and issubclass(kind, tuple):  # a NamedTuple, which JSON has as a list
        return kind(*_read_tuple(tuple(typing.get_type_hints(kind).values()), value, where))
    if dataclasses.is_dataclass(kind):
        return _read_dataclass(kind, value, where)
    return _read_scalar(kind, value, where)


def _read_union(kind: Any, value: Any, where: str) -> Any:
    options = [option for option in typing.get_args(kind) if option is not type(None)]
    return None if value is None else _read(options[0], value, where)


def _read_tuple(kinds: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    _checked(isinstance(value, list), value, where)
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        return tuple(_read(kinds[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    _checked(len(kinds) == len(value), value, where)
    pairs = zip(kinds, value, strict=True)
    return tuple(_read(kind, item, f"{where}[{i}]") for i, (kind, item) in enumerate(pairs))


def _read_dataclass(kind: Any, value: Any, where: str) -> Any:
    _checked(isinstance(value, dict), value, where)
    hints = typing.get_type_hints(kind)
    given = {}
    for field in dataclasses.fields(kind):
        if field.name in value:
            given[field.name] = _read(hints[field.name], value[field.name], f"{where}.{field.name}")
        elif _is_required(field):
            raise ValueError(f"{where}.{field.name} is missing")
    return kind(**given)


def _read_scalar(kind: Any, value: Any, where: str) -> Any:
    if kind is datetime:
        return datetime.fromisoformat(_checked(isinstance(value, str), value, where))
    if kind is bytes:
        return base64.b64decode(_checked(isinstance(value, str), value, where), validate=True)
    if kind is float:
        _checked(isinstance(value, (int, float)) and not isinstance(value, bool), value, where)
        return float(value)
    good = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    return _checked(good, value, where)


def _is_required(field: "dataclasses.Field[Any]") -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _checked(good: bool, value: Any, where: str) -> Any:
    if not good:
        raise ValueError(f"{where} is {str(value)[:60]!r}")
    return value
