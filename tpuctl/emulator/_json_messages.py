"""Messages of the Cloud TPU API as JSON: which fields a client may send and each version shows."""

import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from tpuctl.emulator.errors import ApiError, api_error, load_data
from tpuctl.emulator.methods import Document

_TABLE = load_data("messages")
_MESSAGES: dict[str, dict[str, str]] = _TABLE["messages"]
_ENUMS: dict[str, dict[str, int]] = _TABLE["enums"]
_PARAMETERS: dict[str, str] = _TABLE["parameters"]
_HIDDEN = {"v2": _TABLE["only"]["v2alpha1"], "v2alpha1": _TABLE["only"]["v2"]}
_TRUE, _FALSE = ("true", "t", "yes", "y", "1"), ("false", "f", "no", "n", "0")
_TYPE = re.compile(r"type\.googleapis\.com/google\.cloud\.tpu\.(v2|v2alpha1)\.(\w+)")


def is_known(kind: str, field: str) -> bool:
    """Whether a message type has a field, in any version."""
    return field in _MESSAGES.get(kind, ())


def read_parameters(query: Mapping[str, str], allowed: list[str]) -> Document:
    """Read the parameters of a request; raises ApiError."""
    found: Document = {}
    for key, text in query.items():
        name = _camel(key)
        if name not in allowed:
            why = (
                f"Cannot bind query parameter. Field '{key}' could not be found in request message."
            )
            raise _unknown(key, "", why)
        value = _read_value(_PARAMETERS[name], text, _snake(name), "v2")
        if value:
            found[name] = value
    return found


def read_message(kind: str, document: Document, version: str, place: str = "") -> Document:
    """Read a message as Google's services do; raises ApiError.

    Names may be in snake case, a single item may stand for a list, and null or default values
    count as missing.
    """
    fields, hidden = _MESSAGES.get(kind, {}), _HIDDEN[version].get(kind, ())
    found: Document = {}
    for key, value in document.items():
        name = key if key in fields else _camel(key)
        if name not in fields or name in hidden:
            raise _unknown(key, place, "Cannot find field.")
        if value is None:
            continue
        where = f"{place}.{_snake(name)}" if place else _snake(name)
        read = _read_value(fields[name], value, where, version)
        if read or (isinstance(value, dict) and fields[name] in _MESSAGES):
            found["multisliceParams" if name == "multiNodeParams" else name] = read
    return found


def _read_value(kind: str, value: Any, place: str, version: str) -> Any:
    if kind.startswith("["):
        items = value if isinstance(value, list) else [value]
        return [
            _read_value(kind[1:-1], item, f"{place}[{index}]", version)
            for index, item in enumerate(items)
        ]
    if isinstance(value, list):
        _refuse_form(place, "Proto field is not repeating, cannot start list.")
    if kind == "any":
        return value
    if kind in _MESSAGES or kind.startswith("{"):
        if not isinstance(value, dict):
            _refuse(place, kind, value)
        if kind in _MESSAGES:
            return read_message(kind, value, version, place)
        return {key: _read_value(kind[1:-1], item, place, version) for key, item in value.items()}
    if isinstance(value, dict):
        _refuse_form(place, "Starting an object on a scalar field.")
    return _read_scalar(kind, value, place)


def _read_scalar(kind: str, value: Any, place: str) -> Any:
    try:
        if kind.startswith("enum "):
            return _read_enum(_ENUMS[kind[5:]], value)
        return _SCALARS[kind](value)
    except (ValueError, TypeError, KeyError):
        _refuse(place, kind, value)


def _read_enum(known: dict[str, int], value: Any) -> str:
    """Return the name of a value, or None for the default."""
    name = {number: text for text, number in known.items()}[value] if type(value) is int else value
    return name if known[name] else ""


def _read_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    value.encode()
    return value


def _read_flag(value: Any) -> bool:
    text = str(value).lower() if isinstance(value, (bool, str)) else ""
    if text not in (*_TRUE, *_FALSE):
        raise ValueError
    return text in _TRUE


def _read_number(value: Any) -> int:
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise ValueError
    return int(value)


def _read_long(value: Any) -> str:
    return str(_read_number(value)).removeprefix("0")


def _read_time(value: Any) -> str:
    moment = Timestamp()
    moment.FromJsonString(value)
    return moment.ToJsonString()


def _read_duration(value: Any) -> str:
    duration = Duration()
    duration.FromJsonString(value)
    return duration.ToJsonString()


def _read_mask(value: Any) -> str:
    return ",".join(_camel(path.strip()) for path in _read_text(value).split(","))


_SCALARS: dict[str, Callable[[Any], Any]] = {
    "string": _read_text,
    "boolean": _read_flag,
    "int32": _read_number,
    "int64": _read_long,
    "time": _read_time,
    "duration": _read_duration,
    "mask": _read_mask,
}


def show(kind: str, document: Document, version: str) -> Document:
    """Write a message as a version of the API shows it, without empty fields."""
    fields, hidden = _MESSAGES.get(kind, {}), _HIDDEN[version].get(kind, ())
    found: Document = {}
    for key, value in document.items():
        name = key
        if version == "v2alpha1" and key == "multisliceParams":
            name = "multiNodeParams"
        if version == "v2alpha1" and (key, value) == ("apiVersion", "V2"):
            value = "V2_ALPHA1"
        if name in hidden or value in ("", [], None) or (value is False and kind != "Operation"):
            continue
        below = fields.get(name, "").strip("[]")
        if typed := isinstance(value, dict) and _TYPE.fullmatch(str(value.get("@type"))):
            found[name] = show(typed[2], value, typed[1])
        elif isinstance(value, dict) and (value or below in _MESSAGES):
            found[name] = show(below, value, version) if below in _MESSAGES else value
        elif isinstance(value, list) and below in _MESSAGES:
            found[name] = [show(below, item, version) for item in value]
        elif not isinstance(value, dict):
            found[name] = value
    return found


def _camel(name: str) -> str:
    return re.sub(r"_([a-z0-9])", lambda found: found[1].upper(), name)


def _snake(name: str) -> str:
    return re.sub(r"([A-Z])", lambda found: f"_{found[1].lower()}", name)


def _unknown(key: str, place: str, why: str) -> ApiError:
    at = f" at '{place}'" if place else ""
    text = f'Invalid JSON payload received. Unknown name "{key}"{at}: {why}'
    return api_error("payload", why=text, field=place)


def _refuse_form(place: str, why: str) -> NoReturn:
    outer, _, key = place.rpartition(".")
    raise _unknown(key, outer, why)


def _refuse(place: str, kind: str, value: Any) -> NoReturn:
    known = f"type.googleapis.com/google.cloud.tpu.v2.{kind.removeprefix('enum ')}"
    shown = f"TYPE_{kind.upper()}" if kind in _SCALARS else known
    text = f'"{value}"' if isinstance(value, str) else str(value)
    why = f"Invalid value at '{place}' ({shown}), {text}"
    raise api_error("payload", why=why, field=place)
