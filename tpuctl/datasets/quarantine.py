"""Why a picture was left out, and the list of those that were."""

from dataclasses import dataclass
from typing import Literal

Reason = Literal[
    "empty",
    "not_image",
    "truncated",
    "corrupt",
    "bomb",
    "unsupported",
    "crashed_worker",
    "read_error",
]


class BadImageError(Exception):
    """A picture that must not become a record. Never leaves the package: it becomes a line."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason: Reason = reason
        self.detail = detail


@dataclass(frozen=True)
class Quarantined:
    """One input that was left out: its path below the source, the reason, what the decoder said."""

    path: str
    reason: Reason
    detail: str = ""
    bytes: int = 0
    sha256: str | None = None


def readable(path: str) -> str:
    """Write any file name, undecodable bytes and newlines included, in printable text."""
    text = path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
