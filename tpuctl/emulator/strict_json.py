"""Strict reading of JSON: anything unknown or invalid is an error with its place."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tpuctl.errors import InvalidInputError

_SHOWN = 60
# Thirty years in seconds, so that no date can overflow.
_MOST = 1e9


def parse_json(data: bytes, path: Path) -> Any:
    """Parse a scenario file without repeated keys and NaN; raises InvalidInputError."""
    try:
        return json.loads(data, object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"Could not read the scenario {path}: {error}.") from error


class ObjectReader:
    """One JSON object of a document, and its place there."""

    def __init__(self, value: Any, source: str, place: str = "") -> None:
        self._source, self._place = source, place
        if not isinstance(value, dict):
            raise self.error("", f"must be an object, not {_short(value)}")
        self._values: dict[str, Any] = value

    def error(self, key: str, problem: str) -> InvalidInputError:
        """Make an error about the value of a key, or about the object itself."""
        place = ".".join(part for part in (self._place, key) if part)
        where = f"{self._source}: {place}" if place else self._source
        return InvalidInputError(f"{where} {problem}.", hint="See docs/emulator.md for all keys.")

    def allow(self, names: str) -> None:
        """Reject every key that is not among these."""
        known = names.split()
        for key in self._values:
            if key not in known:
                raise self.error(key, f"is not a known key; known keys: {', '.join(known)}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def value(self, key: str) -> Any:
        """Return a value unchecked."""
        return self._values[key]

    def text(self, key: str, default: str) -> str:
        """Read a non-empty string."""
        value = self._values.get(key, default)
        if key in self and not (isinstance(value, str) and value):
            raise self.error(key, f"must be a non-empty string, not {_short(value)}")
        return str(value)

    def texts(self, key: str) -> list[str]:
        """Read a list of strings."""
        value = self._values[key]
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error(key, f"must be a list of strings, not {_short(value)}")
        return value

    def flag(self, key: str) -> bool:
        """Read true or false; false if the key is missing."""
        value = self._values.get(key, False)
        if not isinstance(value, bool):
            raise self.error(key, f"must be true or false, not {_short(value)}")
        return value

    def number(
        self, key: str, default: float, *, above: float | None = None, most: float = _MOST
    ) -> float:
        """Read a number from 0 to `most`, or larger than `above`."""
        value = self._values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.error(key, f"must be a number, not {_short(value)}")
        if not 0 <= value <= most or (above is not None and value <= above):
            least = "at least 0" if above is None else f"larger than {above}"
            raise self.error(key, f"must be {least} and at most {most:g}, not {_short(value)}")
        return float(value)

    def count(self, key: str, default: int, *, least: int = 0) -> int:
        """Read a whole number."""
        value = self._values.get(key, default)
        whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        if isinstance(value, bool) or not whole or not least <= value <= _MOST:
            raise self.error(
                key, f"must be a whole number from {least} to {_MOST:g}, not {_short(value)}"
            )
        return int(value)

    def choice(self, key: str, options: Sequence[str], default: str | None = None) -> str:
        """Read one of several strings."""
        value = self._values.get(key, default)
        if value is None:
            raise self.error(key, f"is missing; it must be one of {', '.join(options)}")
        if value not in options:
            raise self.error(key, f"must be one of {', '.join(options)}, not {_short(value)}")
        return str(value)

    def object(self, key: str) -> "ObjectReader":
        """Read an object inside this one; empty if the key is missing."""
        place = f"{self._place}.{key}" if self._place else key
        return ObjectReader(self._values.get(key, {}), self._source, place)

    def objects(self, key: str) -> "list[ObjectReader]":
        """Read a list of objects; empty if the key is missing."""
        value = self._values.get(key, [])
        if not isinstance(value, list):
            raise self.error(key, f"must be a list, not {_short(value)}")
        return [
            ObjectReader(item, self._source, f"{key}[{index}]") for index, item in enumerate(value)
        ]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(n for n in names if names.count(n) > 1)!r} appears twice")
    return document


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not valid JSON")
