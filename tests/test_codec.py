import contextlib
import json
import math
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpuctl.codec import from_plain, to_plain


@dataclass(frozen=True)
class Part:
    name: str
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Whole:
    state: Literal["on", "off"]
    ratio: float
    count: int
    at: datetime
    parts: list[Part]
    by_name: dict[str, Part]
    pair: tuple[int, str]
    either: int | str | None = None
    anything: Any = None
    secret: str = field(default="", metadata={"internal": True})


NOW = datetime(2026, 11, 22, 12, 30, tzinfo=timezone.utc)
WHOLE = Whole("on", 0.5, 3, NOW, [Part("a", (1, 2))], {"b": Part("b")}, (1, "x"), "y", [1])
PLAIN = to_plain(WHOLE)


def changed(**values: Any) -> dict[str, Any]:
    return {**PLAIN, **values}


def test_a_dataclass_survives_json() -> None:
    assert from_plain(Whole, json.loads(json.dumps(PLAIN))) == WHOLE


def test_internal_fields_stay_inside_and_unknown_keys_are_ignored() -> None:
    assert "secret" not in PLAIN
    assert from_plain(Whole, changed(new_in_a_later_version=1)) == WHOLE


def test_a_number_that_json_cannot_hold_becomes_null() -> None:
    assert to_plain([math.nan, math.inf, 1.5]) == [None, None, 1.5]


def test_the_z_of_other_programs_is_utc() -> None:
    assert from_plain(Whole, changed(at="2026-11-22T12:30:00Z")).at == NOW


@pytest.mark.parametrize(
    ("values", "where"),
    [
        ({"state": "broken"}, "Whole.state"),
        ({"ratio": "0.5"}, "Whole.ratio"),
        ({"ratio": True}, "Whole.ratio"),
        ({"count": 1.5}, "Whole.count"),
        ({"count": True}, "Whole.count"),
        ({"at": 7}, "Whole.at"),
        ({"at": "yesterday"}, "yesterday"),
        ({"parts": {}}, "Whole.parts"),
        ({"parts": [{"name": "a", "sizes": ["1"]}]}, r"Whole.parts\[0\].sizes\[0\]"),
        ({"by_name": {"b": {}}}, "Whole.by_name.b.name is missing"),
        ({"pair": [1]}, "Whole.pair"),
        ({"either": []}, "Whole.either"),
    ],
)
def test_a_wrong_value_is_refused_with_its_place(values: dict[str, Any], where: str) -> None:
    with pytest.raises(ValueError, match=where):
        from_plain(Whole, changed(**values))


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists, max_leaves=5))
def test_no_document_does_more_than_fail_with_a_value_error(value: Any) -> None:
    for key in PLAIN:
        with contextlib.suppress(ValueError):
            from_plain(Whole, changed(**{key: value}))
