"""The catalogue of failures: what each is called, says, means and takes to mend."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_FILE = Path(__file__).parent / "data" / "failures.json"


@dataclass(frozen=True)
class Failure:
    """One known failure. An umbrella text only wraps the message that tells the cause."""

    code: str
    title: str
    texts: tuple[str, ...]
    cause: str
    fix: str
    fix_command: str | None
    severity: str
    source: str
    confidence: str
    umbrella: bool = False


@cache
def failures() -> dict[str, Failure]:
    """Every failure by its code, in the catalogue's order."""
    entries = json.loads(_FILE.read_text(encoding="utf-8"))["failures"]
    return {
        entry["code"]: Failure(**{**entry, "texts": tuple(entry["texts"])}) for entry in entries
    }
