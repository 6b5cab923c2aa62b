"""The table that translates errors of the Cloud TPU API into ours.

The same code can mean opposite things: 8 is both a zone without capacity (try another) and an
exceeded quota (waiting does not help). Only the text and the details tell them apart.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, wraps
from inspect import isfunction
from pathlib import Path
from typing import Any, Literal, TypeVar

from tpuctl import errors
from tpuctl.codec import from_plain, load_facts
from tpuctl.errors import (
    RateLimitedError,
    TpuctlError,
    UnavailableError,
    ZoneHiddenError,
    did_you_mean,
)
from tpuctl.hardware.types import all_zones
from tpuctl.runtime.redact import redact

TABLE = Path(__file__).parent / "data" / "api_errors.json"
LONGEST_MESSAGE = 600
"""Longest part of the service's message that is passed on, in characters."""

T = TypeVar("T")
_MALFORMED = (
    AttributeError, IndexError, KeyError, OverflowError, RecursionError, TypeError, ValueError,
)  # fmt: skip
_ROLES = {"compute.googleapis.com": "roles/compute.instanceAdmin.v1"}
_QUOTA_ID = re.compile(r"(\b\w+PerProject\w*\b)")


@dataclass(frozen=True)
class Fault:
    """An error of the service, independent of Google's libraries.

    `reason` comes from google.rpc.ErrorInfo, `violations` from google.rpc.QuotaFailure,
    `retry_after_s` from google.rpc.RetryInfo; `in_operation` is whether it ended an operation that
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
        """The text that the rules are matched with."""
        lines = [" ".join(self.message.split())]
        lines += [f"reason {self.reason}"] if self.reason else []
        lines += [f"violation {violation}" for violation in self.violations]
        return "\n".join(lines)


@dataclass(frozen=True)
class RequestContext:
    """The operation that failed, and the names that a hint may mention."""

    doing: str
    project: str = "PROJECT"
    zone: str = "ZONE"
    name: str = "NAME"


@dataclass(frozen=True)
class Rule:
    """One line of the table: which faults it matches, and what they mean."""

    error: str
    hint: str | None = None
    text: str = ""
    codes: tuple[int, ...] = ()
    where: Literal["rpc", "operation"] | None = None

    def fits(self, fault: Fault) -> bool:
        """Whether the rule matches a fault."""
        if self.codes and fault.code not in self.codes:
            return False
        if self.where and (self.where == "operation") != fault.in_operation:
            return False
        return bool(re.search(self.text, fault.evidence, re.IGNORECASE | re.MULTILINE))


def translate(fault: Fault, context: RequestContext) -> TpuctlError:
    """Translate a fault into one of our errors, with a hint."""
    rule = next(rule for rule in _rules() if rule.fits(fault))
    said = _presentable(fault.message) or f"the service gave no reason (code {fault.code})"
    message = f"{context.doing}: {said}"
    hint = rule.hint and rule.hint.format(
        project=context.project,
        zone=context.zone,
        name=context.name,
        service=fault.service or "tpu.googleapis.com",
        role=_ROLES.get(fault.service, "roles/tpu.admin"),
    )
    kind = error_classes()[rule.error]
    if hint and kind is ZoneHiddenError and context.zone not in (zones := all_zones()):
        hint = did_you_mean(context.zone, zones) + hint
    if issubclass(kind, RateLimitedError):
        return kind(message, hint=hint, retry_after_s=fault.retry_after_s)
    return kind(message, hint=hint)


def error_classes() -> dict[str, type[TpuctlError]]:
    """Return the error classes by their codes."""
    kinds = [each for each in vars(errors).values() if "code" in getattr(each, "__dict__", ())]
    return {kind.code: kind for kind in kinds if issubclass(kind, TpuctlError)}


def load_table() -> dict[str, Any]:
    """Return the table."""
    return load_facts(TABLE)


@cache
def _rules() -> tuple[Rule, ...]:
    table = load_table()
    codes = ({**line, "codes": [line["number"]]} for line in table["codes"])
    rules = (from_plain(Rule, line) for line in (*table["texts"], *codes))
    return (*rules, Rule(TpuctlError.code))


def _presentable(text: str) -> str:
    """Return the service's message on one line, without secrets and control characters."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    # The name of a quota looks like a secret to `redact`, but it is what the user needs.
    parts = _QUOTA_ID.split(line)
    safe = "".join(part if i % 2 else redact(part) for i, part in enumerate(parts))
    return safe if len(safe) <= LONGEST_MESSAGE else f"{safe[: LONGEST_MESSAGE - 1]}…"


def read_reply(reply: Any, most_bytes: int, service: str) -> bytes:
    """Read the body of a streamed reply of requests, unpacked; raises UnavailableError if long."""
    data = bytearray()
    for block in reply.iter_content(1 << 16):
        data += block
        if len(data) > most_bytes:
            raise UnavailableError(f"The reply of {service} is too long to be one.")
    return bytes(data)


def checks_replies(service: str) -> Callable[[T], T]:
    """Make a function, or every public method of a class, refuse a malformed reply.

    Both raise UnavailableError then, instead of the error of the code that read it.
    """

    def checked(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*words: Any, **options: Any) -> Any:
            try:
                return function(*words, **options)
            except _MALFORMED as error:
                what = function.__name__.replace("_", " ")
                raise UnavailableError(
                    f"{service} answered {what!r} with something that cannot be read: {error}.",
                    hint="Try again later; if it stays so, look for a newer tpuctl.",
                ) from error

        return call

    def decorate(target: Any) -> Any:
        if not isinstance(target, type):
            return checked(target)
        for name, method in list(vars(target).items()):
            if isfunction(method) and not name.startswith("_"):
                setattr(target, name, checked(method))
        return target

    return decorate
