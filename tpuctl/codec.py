"""Dataclasses to JSON values and back, every field checked against its type."""

import base64
import dataclasses
import enum
import errno
import functools
import json
import math
import os
import stat
import types
import typing
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path, PurePath
from typing import Any, BinaryIO, TypeVar

T = TypeVar("T")


# A file from anywhere may be as long, nested as deeply, and have numbers as long, as it likes.
MAX_DOCUMENT_BYTES = 256 << 20
_DEEPEST = 64
_LARGEST, _LARGEST_FLOAT = 1 << 64, 1e300


def parse_json(text: str | bytes) -> Any:
    """Parse JSON that is not trusted; whatever is wrong with it is a ValueError."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading; raises OSError for pipes, devices and folders."""
    # Checked before opening, since opening some devices has effects, and after, against a race.
    _check_regular(os.stat(path), path)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _check_regular(os.fstat(descriptor), path)
    except OSError:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


def _check_regular(state: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(state.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))


def read_limited(path: Path, most_bytes: int = MAX_DOCUMENT_BYTES) -> bytes:
    """Read a whole file; raises OSError also for one that is longer than it may be."""
    with open_regular(path) as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {most_bytes:,} bytes", str(path))
    return data


def read_json(path: Path) -> Any:
    """Read a JSON file that is not trusted; raises OSError and ValueError."""
    return parse_json(read_limited(path))


@functools.cache
def load_facts(path: Path) -> dict[str, Any]:
    """Read a data file of tpuctl's own, once."""
    facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return facts


def utc(moment: datetime) -> str:
    """Write a moment in UTC, as results show it: `2026-11-22T12:30:00Z`."""
    return moment.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")


def to_plain(value: Any, *, moment: Callable[[datetime], str] = datetime.isoformat) -> Any:
    """Turn dataclasses, dates, enums, paths and collections into what JSON can hold.

    NaN and infinities become null, bytes base64. Fields with `internal` in their metadata are left
    out. `moment` writes a datetime.
    """
    plain = functools.partial(to_plain, moment=moment)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [f for f in dataclasses.fields(value) if not f.metadata.get("internal")]
        return {field.name: plain(getattr(value, field.name)) for field in fields}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime):
        return moment(value)
    if isinstance(value, enum.Enum):
        return value.value
    return str(value) if isinstance(value, PurePath) else value


def from_plain(cls: type[T], value: Any) -> T:
    """Build a dataclass from JSON values; unknown keys are ignored.

    Raises ValueError, with the path of the field, for a missing key or a value of the wrong type.
    """
    made = _read(cls, value, cls.__name__)
    assert isinstance(made, cls)
    return made


def _read(kind: Any, value: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return _check_depth(value, where)
    if origin in (typing.Union, types.UnionType):
        return _read_union(arguments, value, where)
    if origin is typing.Literal:
        return _checked(value in arguments, value, kind, where)
    if origin in (tuple, list):
        return _read_items(origin, arguments, value, where)
    if origin in (dict, Mapping) or kind is dict:
        _checked(isinstance(value, dict), value, dict, where)
        inner = arguments[1] if arguments else Any
        return {key: _read(inner, item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(kind, type) and issubclass(kind, tuple):  # a NamedTuple is a list in JSON
        return kind(*_read_items(tuple, tuple(_hints(kind).values()), value, where))
    if dataclasses.is_dataclass(kind):
        return _read_dataclass(kind, value, where)
    return _read_scalar(kind, value, where)


def _check_depth(value: Any, where: str) -> Any:
    """Refuse what could not be written again, or only without end."""
    inside = [value]
    for _ in range(_DEEPEST):
        inside = [
            item
            for each in inside
            if isinstance(each, (dict, list))
            for item in ((*each, *each.values()) if isinstance(each, dict) else each)
        ]
        "".join(item for item in inside if isinstance(item, str)).encode(errors="surrogateescape")
        if any(isinstance(item, int) and abs(item) >= _LARGEST for item in inside):
            raise ValueError(f"{where} has a number that is too large")
        if not inside:
            return value
    raise ValueError(f"{where} is nested too deeply")


def _read_union(options: tuple[Any, ...], value: Any, where: str) -> Any:
    """Read `X | None`, or the first of several types that fits."""
    if value is None and type(None) in options:
        return None
    kinds = [option for option in options if option is not type(None)]
    for kind in kinds[:-1]:
        try:
            return _read(kind, value, where)
        except ValueError:
            continue
    return _read(kinds[-1], value, where)


def _read_items(origin: Any, kinds: tuple[Any, ...], value: Any, where: str) -> Any:
    _checked(isinstance(value, list), value, list, where)
    if origin is list or kinds[1:] == (Ellipsis,):
        if kinds[0] in (int, float) and all(type(item) is kinds[0] for item in value):
            limit = _LARGEST if kinds[0] is int else _LARGEST_FLOAT
            _checked(all(-limit < item < limit for item in value), value, kinds[0], where)
            return origin(value)
        return origin(_read(kinds[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    _checked(len(kinds) == len(value), value, f"{len(kinds)} items", where)
    pairs = zip(kinds, value, strict=True)
    return tuple(_read(kind, item, f"{where}[{i}]") for i, (kind, item) in enumerate(pairs))


_hints = functools.cache(typing.get_type_hints)


def _read_dataclass(kind: Any, value: Any, where: str) -> Any:
    _checked(isinstance(value, dict), value, dict, where)
    hints = _hints(kind)
    given = {}
    for field in filter(lambda field: field.init, dataclasses.fields(kind)):
        if field.name in value:
            given[field.name] = _read(hints[field.name], value[field.name], f"{where}.{field.name}")
        elif field.default is field.default_factory is dataclasses.MISSING:
            raise ValueError(f"{where}.{field.name} is missing")
    return kind(**given)


def _read_scalar(kind: Any, value: Any, where: str) -> Any:
    if kind is float:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        good = is_number and abs(value) < _LARGEST_FLOAT
        return float(_checked(good, value, kind, where))
    if kind is datetime:
        _checked(isinstance(value, str), value, kind, where)
        # Python 3.10 does not read the Z that other programs write for UTC.
        return datetime.fromisoformat(value.replace("Z", "+00:00"))
    if kind is bytes:
        return base64.b64decode(_checked(isinstance(value, str), value, kind, where), validate=True)
    # To Python a bool is an int; in JSON it is not.
    good = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    good = good and not (kind is int and abs(value) >= _LARGEST)
    if good and kind is str and not value.isascii():
        value.encode("utf-8", "surrogateescape")  # half a character is not text
    return _checked(good, value, kind, where)


def _checked(good: bool, value: Any, expected: Any, where: str) -> Any:
    if not good:
        name = getattr(expected, "__name__", str(expected))
        raise ValueError(f"{where} should be {name}, not {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    is_long = isinstance(value, int) and abs(value) >= _LARGEST
    return "a number that is too large" if is_long else repr(str(value)[:60])
