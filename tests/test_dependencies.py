"""No release that we admit has a known advisory, and every dependency has a licence on the page."""

import json
import re
import subprocess
from collections.abc import Iterable
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.licences import ROOT, direct, everything, licence_of, listed

ADVISORIES: dict[str, Any] = json.loads((ROOT / "docs/advisories.json").read_bytes())
BETWEEN = ("6.30.2", "6.31.1", "6.32.1", "6.33.0", "6.33.4")


def requirements() -> list[Requirement]:
    """As they stand in pyproject.toml, without the groups for developers."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8").partition("[dependency-groups]")[0]
    names = "|".join(re.escape(name).replace(r"\-", "[-_]") for name in direct())
    found = re.findall(rf'"((?:{names})(?:\[\w+\])?[<>=!][^"]*)"', text)
    assert len(found) >= len(direct())
    return [Requirement(text) for text in found]


def admitted_too_early(wanted: Iterable[Requirement], minimums: dict[str, Any]) -> list[str]:
    """The requirements whose lower bound is below all minimums of the package."""
    early = []
    for requirement in wanted:
        known = minimums.get(canonicalize_name(requirement.name), {})
        lower = (one for one in requirement.specifier if one.operator in (">=", "=="))
        bounds = [Version(one.version) for one in lower]
        if known and max(bounds) not in map(Version, known):
            early.append(str(requirement))
    return early


def test_no_lower_bound_admits_a_release_with_a_known_advisory() -> None:
    assert admitted_too_early(requirements(), ADVISORIES["minimums"]) == []


def test_an_older_bound_would_be_noticed() -> None:
    old = [Requirement("pillow>=10.3"), Requirement("urllib3>=2.7")]
    assert admitted_too_early(old, ADVISORIES["minimums"]) == ["pillow>=10.3"]


def test_every_dependency_was_looked_up() -> None:
    known = {*ADVISORIES["minimums"], *ADVISORIES["none_known"]}
    assert direct().keys() == known
    assert date.fromisoformat(ADVISORIES["date"]) >= date(2026, 11, 22)
    assert all(reasons for each in ADVISORIES["minimums"].values() for reasons in each.values())


@pytest.mark.parametrize("release", BETWEEN)
def test_releases_between_two_branches_are_excluded(release: str) -> None:
    (protobuf,) = (each for each in requirements() if each.name == "protobuf")
    assert release not in protobuf.specifier
    assert "6.33.5" in protobuf.specifier
    assert "7.36.2" in protobuf.specifier


def test_what_is_installed_is_not_older_than_what_we_ask_for() -> None:
    older = []
    for each in requirements():
        try:
            installed = version(each.name)
        except PackageNotFoundError:
            continue
        if (each.marker is None or each.marker.evaluate()) and installed not in each.specifier:
            older.append(f"{each}: {installed}")
    assert older == []


def test_no_dependency_is_missing_on_the_page_of_licences() -> None:
    page = listed()
    assert everything().keys() - page.keys() == set()
    assert all(page.values())


def test_two_licences_that_need_a_look_are_named() -> None:
    page = listed()
    assert "EPL-2.0 OR GPL-2.0" in page["asyncssh"]
    assert page["libtpu"].startswith("proprietary")
    assert licence_of("asyncssh") == page["asyncssh"]


def test_every_file_has_a_name_that_any_system_can_check_out() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True)
    names = listing.stdout.decode().rstrip("\0").split("\0")
    assert len(names) > 100
    assert [name for name in names if not re.fullmatch(r"[\w./ +=@-]+", name, re.ASCII)] == []


PUBLISHED = json.loads((ROOT / "tests/published_environments.json").read_bytes())
ENVIRONMENTS = {name: each["packages"] for name, each in PUBLISHED.items() if name != "about"}


def replaced(wanted: Iterable[Requirement], installed: dict[str, str]) -> list[str]:
    """The installed packages that pip would replace."""
    return [
        str(each)
        for each in wanted
        if not each.specifier.contains(
            installed.get(canonicalize_name(each.name), "") or max_of(each)
        )
    ]


def max_of(requirement: Requirement) -> str:
    """The lower bound of a package that is not installed yet."""
    return next(one.version for one in requirement.specifier if one.operator == ">=")


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_pip_install_tpuctl_replaces_nothing_that_a_notebook_has(name: str) -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    block = text.partition("\ndependencies = [")[2].partition("\n]")[0]
    core = [
        Requirement(line.strip(' ",').replace("\\", ""))
        for line in block.splitlines()
        if line.strip()
    ]
    assert {"typer", "rich"} <= {each.name for each in core}
    assert replaced(core, ENVIRONMENTS[name]) == []
    assert replaced(core, {"typer": "0.12.0"}) == ["typer>=0.24.2"]
