"""The errors of the emulated APIs: dated messages, with the details that clients read."""

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tpuctl.emulator.methods import Document

_DATA = Path(__file__).parent / "data"

CODES = {
    "CANCELLED": (1, 499),
    "UNKNOWN": (2, 500),
    "INVALID_ARGUMENT": (3, 400),
    "DEADLINE_EXCEEDED": (4, 504),
    "NOT_FOUND": (5, 404),
    "ALREADY_EXISTS": (6, 409),
    "PERMISSION_DENIED": (7, 403),
    "RESOURCE_EXHAUSTED": (8, 429),
    "FAILED_PRECONDITION": (9, 400),
    "ABORTED": (10, 409),
    # Not 501, after which clients retry for a minute.
    "UNIMPLEMENTED": (12, 400),
    "INTERNAL": (13, 500),
    "UNAVAILABLE": (14, 503),
    "UNAUTHENTICATED": (16, 401),
}
"""The gRPC number and HTTP status of every error code that we send."""


class ServiceError(Exception):
    """An error of an emulated API, as an HTTP reply."""

    def __init__(self, message: str, *, http_status: int, http_document: Document) -> None:
        super().__init__(message)
        self.message, self.http_status, self.http_document = message, http_status, http_document
        self.http_headers: dict[str, str] = {}

    @property
    def document(self) -> Document:
        """The error as a failed operation shows it."""
        error: Document = self.http_document["error"]
        return error


class ApiError(ServiceError):
    """An error of a request, an operation or a queued resource, in Google's current format."""

    def __init__(self, code: str, message: str, details: list[Document]) -> None:
        status = CODES[code][1]
        error = {"code": status, "message": message, "status": code}
        if details:
            error["details"] = details
        super().__init__(message, http_status=status, http_document={"error": error})
        self.code, self.details = code, details

    @property
    def document(self) -> Document:
        """The error as a google.rpc.Status."""
        return {"code": CODES[self.code][0], "message": self.message, "details": self.details}


class StorageError(ServiceError):
    """An error in the format of the Cloud Storage JSON API."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        entry = {"message": message, "domain": "global", "reason": reason}
        error = {"code": status, "message": message, "errors": [entry]}
        super().__init__(message, http_status=status, http_document={"error": error})


class ComputeError(ServiceError):
    """An error of a request or an operation, in the format of Compute Engine."""

    def __init__(self, kind: str, entry: Document, message: str, details: list[Document]) -> None:
        shown = {"message": message, "domain": "global", "reason": entry["reason"]}
        error = {"code": entry["status"], "message": message, "errors": [shown]}
        super().__init__(message, http_status=entry["status"], http_document={"error": error})
        self.kind, self.code, self.details = kind, entry["code"], details

    @property
    def document(self) -> Document:
        """The error as an operation shows it."""
        details = {"errorDetails": self.details} if self.details else {}
        return {"code": self.code, "message": self.message, **details}


@cache
def load_data(name: str) -> dict[str, Any]:
    """Read one of the dated data files of this package."""
    data: dict[str, Any] = json.loads((_DATA / f"{name}.json").read_text(encoding="utf-8"))
    return data


def api_error(kind: str, **facts: object) -> ApiError:
    """Make an error from the table in errors.json."""
    entry = load_data("errors")["errors"][kind]
    # Deterministic, because the state is rebuilt by replaying the requests.
    digest = hashlib.sha256(f"{kind} {sorted(facts.items())}".encode()).hexdigest()
    facts = {"eid": f"0x{digest[:16]}", **facts}
    details = [_fill(detail, facts) for detail in entry.get("details", ())]
    return ApiError(entry["code"], entry["text"].format_map(facts), details)


def storage_error(kind: str, **facts: object) -> StorageError:
    """Make an error from the table in storage_errors.json."""
    entry = load_data("storage_errors")["errors"][kind]
    return StorageError(entry["status"], entry["reason"], entry["text"].format_map(facts))


def compute_error(kind: str, /, **facts: object) -> ComputeError:
    """Make an error from the table in compute_errors.json."""
    entry = load_data("compute_errors")["errors"][kind]
    facts = {
        "eid": hashlib.sha256(f"{kind} {sorted(facts.items())}".encode()).hexdigest()[:12],
        **facts,
    }
    details = [_fill(detail, facts) for detail in entry.get("details", ())]
    return ComputeError(kind, entry, entry["text"].format_map(facts), details)


def bad_request(why: str) -> ApiError:
    """Make the error for a request that is invalid in any state of the service."""
    return api_error("bad_request", why=why)


def not_found(resource: str) -> ApiError:
    """Make the error for a resource that does not exist."""
    return api_error("not_found", resource=resource)


def project_number(project: str) -> int:
    """Return the number of a project, derived from its ID."""
    return 10**11 + int(hashlib.sha256(project.encode()).hexdigest()[:9], 16)


def _fill(value: Any, facts: Mapping[str, object]) -> Any:
    if isinstance(value, dict):
        return {key: _fill(item, facts) for key, item in value.items()}
    if isinstance(value, list):
        return [_fill(item, facts) for item in value]
    return value.format_map(facts) if isinstance(value, str) else value
