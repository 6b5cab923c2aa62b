"""Comparing versions, and the dated tables of what belongs together."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

_TABLE = Path(__file__).parent / "versions.json"
_CLAUSE = re.compile(r"(===|==|~=|!=|<=|>=|<|>)\s*([\w.*+!-]+)")


@cache
def tables() -> dict[str, Any]:
    """The dated tables: which libtpu, protobuf and jaxlib each release was made for."""
    data: dict[str, Any] = json.loads(_TABLE.read_text(encoding="utf-8"))
    return data


def release(version: str) -> tuple[int, ...]:
    """The numbers of a version without trailing zeros: `2.9.0+cpu` is (2, 9)."""
    numbers = []
    for part in re.split(r"[.+-]", version.split("+")[0]):
        match = re.match(r"\d{1,12}", part)
        if match is None:
            break
        numbers.append(int(match[0]))
        if match[0] != part:
            break
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def minor(version: str) -> tuple[int, int]:
    """Major and minor number of a version."""
    major, second, *_ = (*release(version), 0, 0)
    return major, second


def satisfies(version: str, specifier: str) -> bool:
    """Whether a version meets a specifier such as `>=0.7,<0.8` or `==0.0.24.*`."""
    return all(_meets(version, *clause) for clause in _CLAUSE.findall(specifier))


def requirement_of(lines: tuple[str, ...] | None, distribution: str) -> str | None:
    """The specifier that `Requires-Dist` lines give for a distribution; None without one."""
    for line in lines or ():
        match = re.match(r"\s*([A-Za-z0-9._-]+)\s*(?:\[[^]]*\])?\s*\(?([^;)]*)", line)
        if match and re.sub(r"[-_.]+", "-", match[1]).lower() == distribution:
            return match[2].strip()
    return None


def image_tensorflow_is_for_tpu(runtime: str, version: str) -> bool:
    """Whether a runtime's own TPU image shipped that TensorFlow under the plain name."""
    last = tables()["image_tensorflow_for_tpu"].get(runtime)
    return bool(last) and minor(version) <= minor(last)


def _meets(version: str, operator: str, wanted: str) -> bool:
    have, want = release(version), release(wanted)
    if wanted.endswith(".*") or operator == "~=":
        return _meets_prefix(version, operator, wanted)
    if operator in ("==", "==="):
        return version.split("+")[0] == wanted or have == want
    comparisons = {
        "!=": have != want,
        "<=": have <= want,
        ">=": have >= want,
        "<": have < want,
        ">": have > want,
    }
    return comparisons[operator]


def _meets_prefix(version: str, operator: str, wanted: str) -> bool:
    fixed = [int(part) for part in re.findall(r"\d{1,18}", wanted.removesuffix(".*"))]
    have = [int(part) for part in re.findall(r"\d{1,18}", version.split("+")[0])]
    if operator == "~=":
        return have >= fixed and have[: len(fixed) - 1] == fixed[:-1]
    same = have[: len(fixed)] == fixed
    return not same if operator == "!=" else same
