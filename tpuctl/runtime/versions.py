"""Comparing versions, and the dated tables of which releases belong together."""

import json
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from packaging.version import Version

_TABLE = Path(__file__).parent / "versions.json"


@cache
def tables() -> dict[str, Any]:
    """Load the dated tables: which libtpu, protobuf and jaxlib each release was made for."""
    data: dict[str, Any] = json.loads(_TABLE.read_text(encoding="utf-8"))
    return data


def parse(version: str) -> "Version":
    """Parse a version for comparison, without its local part (`2.9.0+cpu` is 2.9.0).

    Of a version that does not follow PEP 440 only the leading numbers count; without any, it is 0.
    """
    from packaging.version import Version  # here, because most commands never compare versions

    public = version.partition("+")[0]
    numbers = re.match(r"[0-9]{1,12}(\.[0-9]{1,12})*", public)
    try:
        return Version(public)
    except ValueError:
        return Version(numbers[0] if numbers else "0")


def minor(version: str) -> tuple[int, int]:
    """Return the major and minor number of a version."""
    parsed = parse(version)
    return parsed.major, parsed.minor


def satisfies(version: str, specifier: str) -> bool:
    """Whether an installed version meets a PEP 440 specifier such as `>=0.7,<0.8`.

    A version or specifier that cannot be parsed proves nothing, so it counts as met.
    """
    from packaging.specifiers import SpecifierSet
    from packaging.version import Version

    try:
        # What is installed is judged, not chosen: a pre-release is compared like any other.
        return SpecifierSet(specifier).contains(Version(version), prereleases=True)
    except ValueError:
        return True


def requirement_of(lines: tuple[str, ...] | None, distribution: str) -> str | None:
    """Find the specifier that `Requires-Dist` lines give for a distribution; None without one."""
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name

    for line in lines or ():
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        if canonicalize_name(requirement.name) == distribution:
            return str(requirement.specifier)
    return None


def image_tensorflow_is_for_tpu(runtime: str, version: str) -> bool:
    """Whether a runtime's own TPU image shipped that TensorFlow under the plain name."""
    shipped = tables()["image_tensorflow_for_tpu"].get(runtime)
    return bool(shipped) and satisfies(version, shipped)
