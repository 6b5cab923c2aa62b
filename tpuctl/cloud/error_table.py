"""One table that says what an error of the Cloud TPU API means.

The same code can mean opposite resources (8: out of stock, so try elsewhere; or out of quota, so
never): what splits them is the text, and what came with it.
"""

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tpuctl import errors
from tpuctl.errors import RateLimitedError, TpuctlError
from tpuctl.runtime.redact import redact

TABLE = Path(__file__).parent / "data" / "api_errors.json"
LONGEST_MESSAGE = 600
"""Characters of the service's own words that we pass on."""

_QUOTA_ID = re.compile(r"(\b\w+PerProject\w*\b)")


@dataclass(frozen=True)
class Fault:
    """An error as the service put it, without its library.

    `reason` is that of google.rpc.ErrorInfo, `violations` are those of google.rpc.QuotaFailure,
    `retry_after_s` is that of google.rpc.RetryInfo; `in_operation` is whether it ended work that
    had been accepted.
    """

    code: int
    message: str
    reason: str = ""
    service: str = ""
    violations: tuple[str, ...] = ()
    retry_after_s: float | None = None
    in_operation: bool = False

    @property
    def evidence(self) -> str:
        """All of it as lines of text, the way the table reads them."""
        lines = [" ".join(self.message.split())]
        lines += [f"reason {self.reason}"] if self.reason else []
        lines += [f"violation {violation}" for violation in self.violations]
        return "\n".join(lines)


@dataclass(frozen=True)
class RequestContext:
    """What we were doing, in words, and the object that a hint may name."""

    doing: str
    project: str = "PROJECT"
    zone: str = "ZONE"
    name: str = "NAME"


@dataclass(frozen=True)
class Rule:
    """One line of the table: which faults it is about, and what they mean."""

    error: str
    hint: str | None
    text: str
    codes: frozenset[int]
    where: str | None

    def fits(self, fault: Fault) -> bool:
        """Whether the fault is one of those."""
        if self.codes and fault.code not in self.codes:
            return False
        if self.where and (self.where == "operation") != fault.in_operation:
            return False
        return bool(re.search(self.text, fault.evidence, re.IGNORECASE | re.MULTILINE))


def translate(fault: Fault, context: RequestContext) -> TpuctlError:
    """Turn what the service said into one of our errors, with the next command."""
    rule = next(rule for rule in _rules() if rule.fits(fault))
    said = _presentable(fault.message) or f"the service gave no reason (code {fault.code})"
    message = f"{context.doing}: {said}"
    hint = rule.hint and rule.hint.format(
        project=context.project,
        zone=context.zone,
        name=context.name,
        service=fault.service or "tpu.googleapis.com",
    )
    kind = error_classes()[rule.error]
    if issubclass(kind, RateLimitedError):
        return kind(message, hint=hint, retry_after_s=fault.retry_after_s)
    return kind(message, hint=hint)


def error_classes() -> dict[str, type[TpuctlError]]:
    """Every error class that needs no more than a message, by its code."""
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    return {kind.code: kind for kind in kinds if issubclass(kind, TpuctlError)}


def load_table() -> dict[str, Any]:
    """The table as it is written."""
    table: dict[str, Any] = json.loads(TABLE.read_text(encoding="utf-8"))
    return table


@cache
def _rules() -> tuple[Rule, ...]:
    table = load_table()
    texts = [
        Rule(
            line["error"],
            line["hint"],
            line["text"],
            frozenset(line.get("codes", ())),
            line.get("in"),
        )
        for line in table["texts"]
    ]
    codes = [
        Rule(line["error"], line["hint"], "", frozenset({line["number"]}), None)
        for line in table["codes"]
    ]
    unheard_of = Rule("error", None, "", frozenset(), None)
    return (*texts, *codes, unheard_of)


def _presentable(text: str) -> str:
    """The service's words on one line, without secrets and control characters, and not endless."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    parts = _QUOTA_ID.split(line)
    safe = "".join(part if i % 2 else redact(part) for i, part in enumerate(parts))
    return safe if len(safe) <= LONGEST_MESSAGE else f"{safe[: LONGEST_MESSAGE - 1]}…"
