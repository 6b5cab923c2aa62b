"""Lists of Compute Engine: filters, pages, and items of all zones and regions in one reply."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from tpuctl.emulator.compute.resources import place_of
from tpuctl.emulator.compute.validate import invalid
from tpuctl.emulator.documents import page
from tpuctl.emulator.methods import Call, Document
from tpuctl.emulator.resources import Key

_TOKEN = re.compile(r'\s*(\(|\)|"(?:[^"\\]|\\.)*"|\'[^\']*\'|!=|>=|<=|[=<>:]|[^\s()=!<>:"\']+)')
_LARGEST_PAGE = 500

Items = Iterable[tuple[Key, Callable[[], Document]]]
Test = Callable[[Document], bool]


def show_list(call: Call, kind: str, items: Items) -> Document:
    """List one page of the items of one zone or region that match the call's filter."""
    found = [(key.name, shown) for key, shown in _matching(call, items)]
    return {"kind": f"compute#{kind}List", **_page(call, found)}


def show_aggregated(call: Call, kind: str, field: str, items: Items, places: list[str]) -> Document:
    """List one page of the items of all zones and regions, grouped by them."""
    found = [(f"{place_of(key.zone)}/{key.name}", shown) for key, shown in _matching(call, items)]
    of_item = {id(shown): key.rpartition("/")[0] for key, shown in found}
    answer = _page(call, found)
    by_place: dict[str, Document] = {place_of(place): {} for place in places}
    for shown in answer["items"]:
        by_place.setdefault(of_item[id(shown)], {}).setdefault(field, []).append(shown)
    for place, held in by_place.items():
        if not held:
            warning = f"There are no results for scope '{place}' on this page."
            data = [{"key": "scope", "value": place}]
            held["warning"] = {"code": "NO_RESULTS_ON_PAGE", "message": warning, "data": data}
    return {**answer, "kind": f"compute#{kind}AggregatedList", "items": by_place}


def _matching(call: Call, items: Items) -> list[tuple[Key, Document]]:
    matches = read_filter(str(call.body.get("filter", "")))
    return [(key, shown) for key, shown in ((key, show()) for key, show in items) if matches(shown)]


def _page(call: Call, found: list[tuple[str, Document]]) -> Document:
    return page("items", sorted(found, key=lambda item: item[0]), _paged(call), lambda item: item)


def _paged(call: Call) -> Call:
    try:
        size = int(call.body.get("maxResults") or _LARGEST_PAGE)
    except ValueError:
        raise invalid("maxResults", call.body["maxResults"], "It must be a number.") from None
    if not 0 <= size <= _LARGEST_PAGE:
        raise invalid("maxResults", size, "Acceptable values are 0 to 500, inclusive.")
    return replace(call, body={"pageSize": size, "pageToken": call.body.get("pageToken", "")})


def read_filter(text: str) -> Test:
    """Read a filter such as `(labels.a=b) AND (status!=RUNNING)`; raises ComputeError."""
    tokens = _TOKEN.findall(text)
    if not text.strip():
        return lambda _: True
    try:
        test = _any_of(tokens)
    except (IndexError, KeyError, RecursionError, re.error):
        tokens = [")"]
    if tokens or _TOKEN.sub("", text).strip():
        raise invalid("filter", text, "Invalid list filter expression.")
    return test


def _any_of(tokens: list[str]) -> Test:
    tests = [_all_of(tokens)]
    while tokens and tokens[0] in ("OR", "|"):
        tokens.pop(0)
        tests.append(_all_of(tokens))
    return lambda shown: any(test(shown) for test in tests)


def _all_of(tokens: list[str]) -> Test:
    tests = [_one(tokens)]
    while tokens and tokens[0] not in (")", "OR", "|"):
        if tokens[0] == "AND":
            tokens.pop(0)
        tests.append(_one(tokens))
    return lambda shown: all(test(shown) for test in tests)


def _one(tokens: list[str]) -> Test:
    token = tokens.pop(0)
    if token in ("NOT", "-"):
        inner = _one(tokens)
        return lambda shown: not inner(shown)
    if token == "(":  # noqa: S105 (of a grammar)
        inner = _any_of(tokens)
        if tokens.pop(0) != ")":
            raise IndexError
        return inner
    compare, wanted = tokens.pop(0), tokens.pop(0)
    if wanted[0] in "\"'":
        wanted = re.sub(r"\\(.)", r"\1", wanted[1:-1])
    path, compares = token.split(".", 1), _COMPARE[compare]
    compares([""], wanted)
    return lambda shown: compares(list(_values(shown, path)), wanted)


def _values(shown: Any, path: list[str]) -> Iterator[str]:
    """Return the values at a path as text; its last part may contain dots."""
    if isinstance(shown, list):
        for item in shown:
            yield from _values(item, path)
        return
    if isinstance(shown, dict) and path and path[0] in shown:
        value = shown[path[0]]
        if len(path) == 1:
            values = value if isinstance(value, list) else [value]
            yield from (
                str(item).lower() if isinstance(item, bool) else str(item) for item in values
            )
        elif isinstance(value, (dict, list)):
            rest = [path[1]] if path[1] in value else path[1].split(".", 1)
            yield from _values(value, rest)


def _matches(values: list[str], wanted: str) -> bool:
    pattern = re.escape(wanted).replace(r"\*", ".*")
    return any(re.fullmatch(pattern, value, re.DOTALL) for value in values)


_COMPARE: dict[str, Callable[[list[str], str], bool]] = {
    "=": _matches,
    "!=": lambda values, wanted: not _matches(values, wanted),
    ":": lambda values, wanted: bool(values) if wanted == "*" else _matches(values, wanted),
    "eq": lambda values, wanted: any(re.fullmatch(wanted, value) for value in values),
    "ne": lambda values, wanted: not any(re.fullmatch(wanted, value) for value in values),
    ">": lambda values, wanted: any(value > wanted for value in values),
    ">=": lambda values, wanted: any(value >= wanted for value in values),
    "<": lambda values, wanted: any(value < wanted for value in values),
    "<=": lambda values, wanted: any(value <= wanted for value in values),
}
