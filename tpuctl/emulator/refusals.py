"""What the service says when it refuses: dated texts, with the details that clients read."""

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

from tpuctl.emulator.methods import METHODS, Call, Document

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
    "UNIMPLEMENTED": (12, 501),
    "INTERNAL": (13, 500),
    "UNAVAILABLE": (14, 503),
    "UNAUTHENTICATED": (16, 401),
}
"""Every code that we send: its number in gRPC, its status in HTTP."""


class Refusal(Exception):
    """An error as the service sends it: in a reply, in an operation or in a queued resource."""

    def __init__(self, code: str, message: str, details: list[Document]) -> None:
        super().__init__(message)
        self.code, self.message, self.details = code, message, details

    @property
    def document(self) -> Document:
        """The error as a google.rpc.Status."""
        return {"code": CODES[self.code][0], "message": self.message, "details": self.details}


@cache
def load_data(name: str) -> dict[str, Any]:
    """Read one of the dated data files of this package."""
    data: dict[str, Any] = json.loads((_DATA / f"{name}.json").read_text(encoding="utf-8"))
    return data


def refusal(kind: str, **facts: object) -> Refusal:
    """Write an error of the table with these facts."""
    entry = load_data("errors")["errors"][kind]
    digest = hashlib.sha256(f"{kind} {sorted(facts.items())}".encode()).hexdigest()
    filled = {"eid": f"0x{digest[:16]}", **facts}
    return Refusal(
        entry["code"],
        entry["text"].format_map(filled),
        [_fill(detail, filled) for detail in entry.get("details", ())],
    )


def bad_request(why: str) -> Refusal:
    """Refuse a request that can never succeed as it is."""
    return refusal("bad_request", why=why)


def not_found(resource: str) -> Refusal:
    """Say that there is no such thing."""
    return refusal("not_found", resource=resource)


def planned_refusal(kind: str, call: Call, *, quota: str, limit: int) -> Refusal:
    """Write the error that a scenario planned for a call.

    `quota` and `limit` are the quota that the call would be measured by.
    """
    method = METHODS[call.method]
    place = f"projects/{call.project}" + (f"/locations/{call.zone}" if call.zone else "")
    collection = "queuedResources" if "queued" in call.method else "nodes"
    return refusal(
        kind,
        zone=call.zone,
        project=call.project,
        project_number=project_number(call.project),
        rpc=method.rpc,
        permission=method.permission,
        resource=f"{place}/{collection}/{call.name}" if call.name else place,
        quota=quota,
        limit=limit,
        retry_s=60,
    )


def project_number(project: str) -> int:
    """The number that a project has besides its name."""
    return 10**11 + int(hashlib.sha256(project.encode()).hexdigest()[:9], 16)


def _fill(value: Any, facts: dict[str, Any]) -> Any:
    if isinstance(value, dict):
        return {key: _fill(item, facts) for key, item in value.items()}
    if isinstance(value, list):
        return [_fill(item, facts) for item in value]
    return value.format_map(facts) if isinstance(value, str) else value
