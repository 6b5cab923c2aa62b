"""Versions compare as PEP 440 says, pre-releases and the other odd kinds included."""

import pytest

from tpuctl.runtime.versions import minor, parse, requirement_of, satisfies


@pytest.mark.parametrize(
    ("version", "specifier", "expected"),
    [
        ("2.20.0", ">=2.20", True),
        ("2.20.0rc1", ">=2.20", False),
        ("2.20.0a1", ">=2.20", False),
        ("2.20.0.dev20250601", ">=2.20", False),
        ("2.20.0rc1", ">=2.20rc0", True),
        ("2.20.0rc1", "<2.20", False),
        ("2.21.0rc1", ">=2.20", True),
        ("2.20.0.post1", ">=2.20", True),
        ("2.20.0.post1", "==2.20.0", False),
        ("2.9.0+cpu", "==2.9.0", True),
        ("2.9.0+cpu", "<=2.9", True),
        ("1!1.0", "<2", False),
        ("0.0.24.1", "==0.0.24.*", True),
        ("0.0.25", "==0.0.24.*", False),
        ("0.0.25", "!=0.0.24.*", True),
        ("0.1.dev20240322", "==0.1.dev20240322", True),
        ("0.0.15", "~=0.0.14", True),
        ("0.1.0", "~=0.0.14", False),
        ("0.7.2", ">=0.7,<0.8", True),
        ("0.8.0", ">=0.7,<0.8", False),
        ("5.29", "", True),
    ],
)
def test_a_specifier_is_met_as_pep_440_says(version: str, specifier: str, expected: bool) -> None:
    assert satisfies(version, specifier) is expected


@pytest.mark.parametrize(
    ("version", "specifier"), [("x", ">=1"), ("1.0", "≥1"), ("9" * 5000, "<1")]
)
def test_what_cannot_be_parsed_proves_nothing(version: str, specifier: str) -> None:
    assert satisfies(version, specifier)


def test_versions_are_compared_without_their_local_part() -> None:
    assert parse("0.7.2+cuda12") == parse("0.7.2") == parse("0.7.2.0")
    assert parse("2.20.0rc1") < parse("2.20.0") < parse("2.20.0.post1")
    assert parse("3.12.3+") == parse("3.12.3-debian") == parse("3.12.3")
    assert parse("") == parse("unknown") == parse("0") < parse("9" * 5000)
    assert minor("2.19.0.dev1+cpu") == (2, 19)


def test_a_requirement_is_found_under_any_spelling_of_its_name() -> None:
    lines = (
        "numpy>=1.26",
        "not a requirement !",
        'jaxlib<=0.7.2,>=0.7.2; extra == "tpu"',
        "Libtpu_Nightly[x] (==0.1.dev1)",
    )
    assert requirement_of(lines, "jaxlib") == "<=0.7.2,>=0.7.2"
    assert requirement_of(lines, "libtpu-nightly") == "==0.1.dev1"
    assert requirement_of(lines, "numpy") == ">=1.26"
    assert requirement_of(lines, "torch") is None
    assert requirement_of(None, "torch") is None
