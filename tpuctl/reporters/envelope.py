"""The JSON document around every result (CONTRACT: schema `tpuctl/1`)."""

import dataclasses
import enum
import json
import math
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import PurePath
from typing import Any

from tpuctl.outcome import Outcome
from tpuctl.printable import printable_json

SCHEMA = "tpuctl/1"


def success(command: str, result: Outcome) -> str:
    """Write the envelope of a command that had a result."""
    return _document(
        command,
        result.status,
        to_jsonable(result),
        errors=[_error(error.code, str(error), error.hint) for error in result.failures],
        warnings=list(result.warnings),
    )


def failure(command: str, code: str, message: str, hint: str | None) -> str:
    """Write the envelope of a command that failed before it had a result."""
    return _document(command, "error", {}, errors=[_error(code, message, hint)], warnings=[])


def to_jsonable(value: Any) -> Any:
    """Reduce dataclasses, enums, dates, paths and collections to what JSON knows.

    A number that is not finite is unknown, and unknown is null. A field whose metadata says
    `internal` stays inside. A date is ISO 8601 in UTC.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [f for f in dataclasses.fields(value) if not f.metadata.get("internal")]
        return {field.name: to_jsonable(getattr(value, field.name)) for field in fields}
    if isinstance(value, Mapping):
        return {str(key): to_jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_jsonable(item) for item in value]
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, datetime):
        return value.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value) if isinstance(value, PurePath) else value


def _error(code: str, message: str, hint: str | None) -> dict[str, str | None]:
    return {"code": code, "message": message, "hint": hint}


def _document(
    command: str, status: str, data: Any, *, errors: list[Any], warnings: list[str]
) -> str:
    document = json.dumps(
        {
            "schema": SCHEMA,
            "command": command,
            "status": status,
            "data": data,
            "errors": errors,
            "warnings": warnings,
        },
        indent=2,
        ensure_ascii=False,
        allow_nan=False,
    )
    return printable_json(document)
