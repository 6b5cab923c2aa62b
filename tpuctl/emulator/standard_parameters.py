"""What all Google APIs accept in a request: standard parameters, selected fields."""

import re
from typing import Any, Protocol
from urllib.parse import parse_qsl

from tpuctl.emulator.methods import Document

_STANDARD = (
    "access_token", "alt", "bearer_token", "callback", "fields", "key", "oauth_token", "pp",
    "prettyPrint", "quotaUser", "trace", "uploadType", "upload_protocol", "userIp", "userProject",
)  # fmt: skip
_FORM = "application/x-www-form-urlencoded"
_LARGEST_QUERY_BYTES = 1 << 20

Mask = dict[str, "Mask"]
"""Selected fields, each with the mask of its subfields; an empty mask selects everything."""


class _Lookup(Protocol):
    def get(self, key: str, /) -> Any: ...


class _Body(Protocol):
    def read(self, most: int) -> bytes: ...


def is_standard(name: str) -> bool:
    """Whether every method has a parameter, also in a form such as `$alt`."""
    return name in _STANDARD or name.startswith("$")


def actual_request(
    verb: str, query: str, headers: _Lookup, body: _Body
) -> tuple[str, dict[str, str]]:
    """Return verb and parameters; a client sends a query that is too long for a URL as a form."""
    if verb == "POST" and (wanted := headers.get("X-HTTP-Method-Override")):
        verb = wanted.upper()
        if str(headers.get("Content-Type")).startswith(_FORM):
            query = body.read(_LARGEST_QUERY_BYTES).decode("ascii", "replace")
    return verb, dict(parse_qsl(query, keep_blank_values=True, errors="surrogateescape"))


def read_mask(query: _Lookup, headers: _Lookup) -> Mask:
    """Read the requested fields of a reply, such as `a,b/c,d(e,f)`; raises ValueError."""
    text = query.get("fields") or query.get("$fields") or headers.get("X-Goog-FieldMask") or ""
    tokens = re.findall(r"[^(),/.]+|[(),/.]", "".join(text.split()))
    if not tokens:
        return {}
    mask = _read_fields(tokens)
    if tokens:
        raise ValueError(text)
    return mask


def _read_fields(tokens: list[str]) -> Mask:
    """Read fields up to the end or a closing parenthesis."""
    mask: Mask = {}
    while True:
        below = mask
        while True:
            if not tokens or tokens[0] in "(),/.":
                raise ValueError("".join(tokens))
            below = below.setdefault(tokens.pop(0), {})
            if not tokens or tokens[0] not in "/.":
                break
            tokens.pop(0)
        if tokens and tokens[0] == "(":
            tokens.pop(0)
            below.update(_read_fields(tokens))
            if not tokens or tokens.pop(0) != ")":
                raise ValueError("(")
        if not tokens or tokens[0] != ",":
            return mask
        tokens.pop(0)


def select_fields(value: Any, mask: Mask) -> Any:
    """Return the selected part of a reply, or of each item of a list."""
    if isinstance(value, list):
        return [select_fields(item, mask) for item in value]
    if not mask or not isinstance(value, dict):
        return value
    found: Document = {}
    for key, item in value.items():
        below = mask.get(key, mask.get("*"))
        if below is not None:
            found[key] = select_fields(item, below)
    return found
