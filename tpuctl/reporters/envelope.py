"""The JSON document around every result (CONTRACT: schema `tpuctl/1`)."""

import json
from typing import Any

from tpuctl.codec import to_plain, utc
from tpuctl.outcome import Outcome
from tpuctl.printable import printable_json

SCHEMA = "tpuctl/1"


def success(command: str, result: Outcome) -> str:
    """Write the envelope of a command that had a result."""
    return _document(
        command,
        result.status,
        to_plain(result, moment=utc),
        errors=[_error(error.code, str(error), error.hint) for error in result.failures],
        warnings=list(result.warnings),
    )


def failure(command: str, code: str, message: str, hint: str | None) -> str:
    """Write the envelope of a command that failed before it had a result."""
    return _document(command, "error", {}, errors=[_error(code, message, hint)], warnings=[])


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
